"""Several processes, one run: every rank derives the same batches and trains its share; here they agree and add up.

Started with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them. Rank 0
alone writes; the others read. What ranks exchange is tiny but for the gradients: whether one of them was asked to stop,
and whether they still do the same work. It comes in the same order on each, so a rank may only ask where all do: after
so many tokens, prompts or micro-batches, never after so many seconds.
"""

import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rlsweep.errors import RlsweepError, UsageError
from rlsweep.train.asked import Asked, Stop

if TYPE_CHECKING:
    import torch

TIMEOUT = timedelta(minutes=10)
"""A rank that is silent for so long, while others wait for it, counts as lost. Writing a checkpoint must take less. One
that has ended is noticed at once."""
SPARINGLY = 8
"""Ranks agree on whether to stop at every so many token positions or prompts: what costs nothing in one process is a
message to all others between several."""

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_POLL_S = 0.05
_LINGER_S = 2.0
_MOST = 1 << 24
"""Most elements of gradients that are summed in one message."""


class Lost(RlsweepError):
    """Another rank has ended without a word, or can't be reached: nothing more can be trained in this attempt."""


class Ranks:
    """The ranks of a run as one of them sees them. With one rank nothing here calls another process."""

    def __init__(self, rank: int = 0, world: int = 1, address: tuple[str, int] | None = None, stop: Stop | None = None):
        self.rank = rank
        self.world = world
        self.stop = stop or Stop()
        self._address = address
        self._store: Any = None  # a TCPStore, which has no types
        self._sparing = 0

    @property
    def leads(self) -> bool:
        """Whether this rank writes what the run leaves."""
        return self.rank == 0

    def meet(self, cuda: bool) -> None:
        """Wait until all ranks have come, then connect them. Asked on all of them where one was asked meanwhile."""
        if self.world == 1:
            return
        import torch.distributed as dist

        with self._together("the ranks meet"):
            store = self._store = self._connect()
            if not self._all_come(store):
                raise Asked
            store.set_timeout(TIMEOUT)
            backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world, timeout=TIMEOUT)

    def check(self) -> None:
        """Raise Asked, on all ranks at the same call, if any of them was asked to stop."""
        if self.any("being asked to stop", self.stop.asked):
            raise Asked

    def check_sparingly(self) -> None:
        """The same for what comes often and is short: several ranks agree at every eighth call."""
        if self.world == 1:
            return self.check()
        self._sparing += 1
        if self._sparing % SPARINGLY == 0:
            self.check()

    def any(self, what: str, flag: bool, digest: int = 0) -> bool:
        """Whether `flag` is set on any rank. RlsweepError unless all ranks ask the same, with the same `digest`."""
        if self.world == 1:
            return flag
        import torch
        import torch.distributed as dist

        asks = zlib.crc32(f"{what} {digest}".encode())
        told = torch.tensor([int(flag), asks, -asks])
        with self._together(what):
            dist.all_reduce(told, dist.ReduceOp.MAX)
        found, most, least = told.tolist()
        if most != -least:
            raise RlsweepError(
                f"rank {self.rank} of {self.world}: the ranks no longer do the same work ({what}); they must run on "
                "like machines with the same packages"
            )
        return bool(found)

    def require_same(self, what: str, digest: Callable[[], int]) -> None:
        """RlsweepError unless all ranks have the same of something, told by a number; not computed for one rank."""
        if self.world > 1:
            self.any(what, False, digest())

    def from_lead(self, value: Any) -> Any:
        """What rank 0 gave: small and made of plain types. The others' `value` is ignored."""
        if self.world == 1:
            return value
        import torch.distributed as dist

        box = [value]
        with self._together("taking over from rank 0"):
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of each rank, in the order of ranks."""
        if self.world == 1:
            return [list(numbers)]
        import torch
        import torch.distributed as dist

        mine = torch.tensor(numbers, dtype=torch.float64)
        every = [torch.empty_like(mine) for _ in range(self.world)]
        with self._together("adding up what was measured"):
            dist.all_gather(every, mine)
        return [each.tolist() for each in every]

    def add_gradients(self, model: "torch.nn.Module") -> None:
        """Sum the gradients of all ranks. Where no rank has one, as a parameter that wasn't used, there is none."""
        if self.world == 1:
            return
        import torch
        import torch.distributed as dist

        parameters = [each for each in model.parameters() if each.requires_grad]
        with self._together("summing gradients"):
            used = torch.tensor([each.grad is not None for each in parameters], dtype=torch.long)
            dist.all_reduce(used, dist.ReduceOp.MAX)
            for each, on_some_rank in zip(parameters, used.tolist(), strict=True):
                if on_some_rank and each.grad is None:
                    each.grad = torch.zeros_like(each)
            for bucket in _buckets([each.grad for each in parameters if each.grad is not None]):
                flat = torch.cat([gradient.flatten() for gradient in bucket])
                dist.all_reduce(flat)
                parts = flat.split([gradient.numel() for gradient in bucket])
                for gradient, part in zip(bucket, parts, strict=True):
                    gradient.copy_(part.view_as(gradient))

    def tell(self, reason: str) -> None:
        """Let the others know why this rank fails, so that they don't take it for lost."""
        if self._store is not None:
            with suppress(RuntimeError):
                self._store.set("failed", f"rank {self.rank} of {self.world} failed: {reason}")

    def part(self) -> None:
        """Let go of the others, where all is done."""
        if self._store is not None:
            import torch.distributed as dist

            with suppress(RuntimeError):
                dist.destroy_process_group()

    def _connect(self) -> Any:
        """The table that rank 0 keeps, through which ranks find each other. Python is awake meanwhile, for signals."""
        import torch.distributed as dist

        assert self._address is not None
        host, port = self._address
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        while True:
            self.stop.check()
            try:
                # PyTorch's types don't know the store.
                return dist.TCPStore(host, port, self.world, self.leads, timedelta(seconds=5), wait_for_workers=False)  # type: ignore[attr-defined]
            except RuntimeError as error:
                if self.leads:
                    raise Lost(f"rank 0 can't listen on port {port}: {_first_line(error)}") from error
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)

    def _all_come(self, store: Any) -> bool:
        """Wait for all; the same answer on each rank: False where one was asked to stop before all had come."""
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        store.add("came", 1)
        while not store.check(["goes on"]):
            come = store.add("came", 0)
            if self.stop.asked or come == self.world:
                store.compare_set("goes on", "", "no" if self.stop.asked else "yes")  # the first one decides
            elif time.monotonic() > deadline:
                raise Lost(f"only {come} of {self.world} ranks have come within {TIMEOUT}")
            time.sleep(_POLL_S)
        goes_on: bool = store.get("goes on") == b"yes"
        if not goes_on:
            store.add("gone", 1)
            deadline = time.monotonic() + _LINGER_S
            while self.leads and store.add("gone", 0) < store.add("came", 0) and time.monotonic() < deadline:
                time.sleep(_POLL_S)  # the table goes with rank 0
        return goes_on

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """Where an exchange with other ranks fails: Lost, or what the rank that failed has told."""
        try:
            yield
        except RuntimeError as error:
            told = self._told()
            if told is not None:
                raise RlsweepError(told) from error
            lost = f"rank {self.rank} of {self.world} has lost another rank ({what}): {_first_line(error)}"
            raise Lost(lost) from error

    def _told(self) -> str | None:
        with suppress(RuntimeError):
            if self._store is not None and self._store.check(["failed"]):
                return str(self._store.get("failed").decode())
        return None


ALONE = Ranks()
"""One process that nobody asks to stop."""


def ranks_of(environment: Mapping[str, str], stop: Stop) -> Ranks:
    """Which rank this process is. UsageError where the variables make no sense."""
    if environment.get("WORLD_SIZE", "1") == "1":
        return Ranks(stop=stop)
    missing = [name for name in _VARIABLES if name not in environment]
    if missing:
        raise UsageError(f"WORLD_SIZE is {environment['WORLD_SIZE']}, and {', '.join(missing)} not set")
    try:
        rank, world, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError as error:
        raise UsageError(f"RANK, WORLD_SIZE and MASTER_PORT must be whole numbers ({error})") from error
    if not 0 <= rank < world:
        raise UsageError(f"RANK: {rank} is not one of 0..{world - 1} (WORLD_SIZE: {world})")
    return Ranks(rank, world, (environment["MASTER_ADDR"], port), stop)


def forget_alone() -> None:
    """Let libraries take a process that was started as the only rank for what it is: not distributed."""
    for name in _VARIABLES:
        os.environ.pop(name, None)


def digest(*numbers: object) -> int:
    """A number that tells plain values from others."""
    return zlib.crc32(repr(numbers).encode())


def _first_line(error: RuntimeError) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


def _buckets(gradients: "Sequence[torch.Tensor]") -> "Iterator[list[torch.Tensor]]":
    """Gradients in their order, of one type and together at most `_MOST` elements, or one alone."""
    bucket: list[torch.Tensor] = []
    for gradient in gradients:
        full = sum(each.numel() for each in bucket) + gradient.numel() > _MOST
        if bucket and (full or bucket[0].dtype != gradient.dtype):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket
