"""Attempts: one try at a run each. The highest number owns the run; making its folder is the claim."""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlsweep.errors import RlsweepError
from rlsweep.store.files import read_json, sync_folder, write_json
from rlsweep.store.layout import RunFolder

_JUST_CLAIMED_S = 10.0


class Superseded(RlsweepError):
    """Another attempt owns the run now: this one must stop and write nothing more."""


@dataclass(frozen=True)
class Attempt:
    """`attempts/0001` of a run."""

    run: RunFolder
    number: int

    @property
    def path(self) -> Path:
        return self.run.attempts / f"{self.number:04d}"

    @property
    def log(self) -> Path:
        """What the trainer printed."""
        return self.path / "log.txt"

    @property
    def process(self) -> Path:
        """Which process is at work on this attempt."""
        return self.path / "process.json"

    @property
    def job(self) -> Path:
        """Which job of a scheduler the attempt belongs to, on which nodes, and where its ranks meet (store/jobs.py)."""
        return self.path / "job.json"

    def rank_log(self, rank: int) -> Path:
        """What the trainer of a rank printed; rank 0 writes the log."""
        return self.log if rank == 0 else self.path / f"rank-{rank}.txt"

    @property
    def launcher(self) -> Path:
        """Which process started the attempt and waits for it."""
        return self.path / "launcher.json"

    @property
    def cancelled(self) -> Path:
        """Stands where a person ended the attempt, so that no launcher takes it for a fault and tries again."""
        return self.path / "cancelled.json"

    @property
    def provenance(self) -> Path:
        """Code, packages, host and devices of this attempt."""
        return self.path / "provenance.json"

    @property
    def discarded(self) -> Path:
        """Rows of the journal that this attempt took back when it resumed."""
        return self.path / "discarded.jsonl"

    def owns(self) -> bool:
        """Whether this is still the highest attempt."""
        return max(_numbers(self.run), default=0) == self.number

    def require_owner(self) -> None:
        """Raise Superseded unless this is still the highest attempt."""
        if not self.owns():
            raise Superseded(f"run {self.run.key}: attempt {self.number} no longer owns the run, a newer one does")


def every(run: RunFolder) -> list[Attempt]:
    """All attempts, oldest first."""
    return [Attempt(run, number) for number in sorted(_numbers(run))]


def newest(run: RunFolder) -> Attempt | None:
    """The attempt that owns the run, or None before the first."""
    number = max(_numbers(run), default=0)
    return Attempt(run, number) if number else None


def claim(run: RunFolder, number: int | None = None) -> Attempt:
    """Make the next attempt, or exactly `number`. Superseded where somebody else has it, or a higher one, already."""
    highest = max(_numbers(run), default=0)
    attempt = Attempt(run, highest + 1 if number is None else number)
    run.attempts.mkdir(parents=True, exist_ok=True)
    taken = attempt.number <= highest
    if not taken:
        try:
            attempt.path.mkdir()
        except FileExistsError:
            taken = True
    if taken:
        raise Superseded(f"run {run.key}: attempt {attempt.number} is taken by another process")
    sync_folder(run.attempts)
    return attempt


def record_process(attempt: Attempt) -> None:
    """Write the calling process into process.json: who to ask whether the attempt is alive."""
    write_json(attempt.process, identity(os.getpid()))


def identity(pid: int) -> dict[str, Any]:
    """What tells a process of this host from every other, later ones with the same number included."""
    return {
        "pid": pid,
        "start_ticks": start_ticks(pid),
        "boot": _boot(),
        "host": socket.gethostname(),
        "started": time.time(),
    }


def is_alive(attempt: Attempt) -> bool | None:
    """Whether the process of an attempt lives; None where nobody here can tell: on another host, or damaged."""
    try:
        return is_process(read_identity(attempt.process))
    except FileNotFoundError:
        return _just_claimed(attempt)
    except RlsweepError:  # damaged
        return None


def read_identity(path: Path) -> dict[str, Any]:
    """What `identity` told, from a file. FileNotFoundError where there is none, RlsweepError where it is damaged."""
    found = read_json(path)
    kinds = {"pid": int, "host": str, "started": int | float}
    if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in kinds.items()):
        raise RlsweepError(f"{path} is damaged: it doesn't say which process it is about")
    return found


def is_process(process: dict[str, Any]) -> bool | None:
    """Whether a process, as told by `identity`, still lives; None where it is on another host."""
    pid = process["pid"]
    if process["host"] != socket.gethostname():
        return None
    if process.get("boot") != _boot():
        return False
    if process.get("start_ticks") is not None:
        return bool(start_ticks(pid) == process["start_ticks"])
    try:  # no /proc here: the number is all there is
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def start_ticks(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; None where it has ended or where there is no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the command before it may hold spaces and brackets
    return None if fields[0] in "ZX" else int(fields[19])


def _boot() -> str | None:
    """Which boot of this machine ticks count from."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _just_claimed(attempt: Attempt) -> bool:
    """Between making the folder and naming the process an attempt has no process.json: for moments, not for longer."""
    try:
        age = time.time() - attempt.path.stat().st_mtime
    except FileNotFoundError:
        return False
    return abs(age) < _JUST_CLAIMED_S


def _numbers(run: RunFolder) -> list[int]:
    try:
        return [int(name) for name in os.listdir(run.attempts) if name.isdecimal()]
    except FileNotFoundError:
        return []
