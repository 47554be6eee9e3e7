"""Which prompts are asked: epochs over the pool, without the prompts that have become too easy."""

import copy
from typing import Any

import numpy as np

from rlsweep.errors import RlsweepError
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.train.randomness import generator


class PromptStream:
    """An endless stream of prompt indices in epochs, and the pass rate of each prompt so far.

    Each epoch asks every prompt of the pool once, in an order drawn from (seed, epoch), except the excluded ones. With
    no-positive-resampling (ScaleRL 3.2) a prompt is excluded from an epoch when its pass rate over all its visits so
    far, pooled, reaches the threshold at the moment the epoch begins, which is when its first prompt is asked; the set
    stays as it is until the next epoch. The paper doesn't say how it averages: pooling is our choice. If every prompt
    would be excluded, none is, and `curriculum/exclusion_lifted` says so.

    A batch may run over the end of an epoch, or over several of a small pool. The same state and the same calls give
    the same future: observe batches in the order in which they are trained, not as they arrive.
    """

    def __init__(self, options: Curriculum, size: int, seed: int) -> None:
        """A stream over prompts 0..size-1 of a run with `seed`; RlsweepError for an empty pool."""
        if size < 1:
            raise RlsweepError("the task has no training prompts; a run needs at least 1")
        self._threshold = options.no_positive_resampling
        self._seed = seed
        self._correct = np.zeros(size, dtype=np.int64)
        self._total = np.zeros(size, dtype=np.int64)
        self._begin(0)

    @property
    def size(self) -> int:
        """Number of prompts in the pool, excluded ones included."""
        return len(self._total)

    @property
    def epoch(self) -> int:
        """The epoch, from 0, of the prompt asked last."""
        return self._epoch

    @property
    def excluded(self) -> frozenset[int]:
        """Prompts that this epoch doesn't ask."""
        return frozenset(np.flatnonzero(self._excluded).tolist())

    @property
    def exclusion_lifted(self) -> bool:
        """Whether this epoch asks all prompts because every one of them had reached the threshold."""
        return self._lifted

    def next_batch(self, count: int) -> list[int]:
        """The next `count` prompts. No prompt comes twice within an epoch."""
        batch: list[int] = []
        while len(batch) < count:
            if self._position == len(self._order):
                self._begin(self._epoch + 1)
            taken = self._order[self._position : self._position + count - len(batch)].tolist()
            self._position += len(taken)
            batch += taken
        return batch

    def observe(self, prompt: int, correct: int, total: int) -> None:
        """`correct` of `total` rollouts of `prompt` were right by the verifier's raw outcome."""
        assert 0 <= correct <= total, (correct, total)
        self._correct[prompt] += correct
        self._total[prompt] += total

    def metrics(self) -> dict[str, float]:
        """The epoch that the stream is in, and how many prompts it leaves out."""
        return {
            "curriculum/epoch": self._epoch,
            "curriculum/excluded_prompts": int(self._excluded.sum()),
            "curriculum/exclusion_lifted": int(self._lifted),
        }

    def frozen(self) -> "PromptStream":
        """A copy that stays as the stream is now."""
        twin = copy.copy(self)
        twin._correct, twin._total = self._correct.copy(), self._total.copy()  # the only arrays that are written in
        return twin

    def state_dict(self) -> dict[str, Any]:
        """All that the future depends on besides recipe and pool, for JSON."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "excluded": np.flatnonzero(self._excluded).tolist(),
            "exclusion_lifted": self._lifted,
            "correct": self._correct.tolist(),
            "total": self._total.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`; RlsweepError if it belongs to a pool of another size."""
        if len(state["total"]) != self.size:
            raise RlsweepError(
                f"the checkpoint knows {len(state['total'])} training prompts, the task has {self.size}: "
                "its data changed since the run began; restore the data, or start a new run"
            )
        self._correct = np.array(state["correct"], dtype=np.int64)
        self._total = np.array(state["total"], dtype=np.int64)
        excluded = np.zeros(self.size, dtype=bool)
        excluded[state["excluded"]] = True
        self._enter(state["epoch"], excluded, state["exclusion_lifted"])
        self._position = state["position"]

    def _begin(self, epoch: int) -> None:
        """Freeze the exclusions of a new epoch."""
        excluded = np.zeros(self.size, dtype=bool)
        if self._threshold is not None:
            # A quotient rounds to the threshold as written; threshold * total may end just above the count.
            excluded = self._correct / np.maximum(self._total, 1) >= self._threshold
        lifted = bool(excluded.all())
        self._enter(epoch, np.zeros_like(excluded) if lifted else excluded, lifted)

    def _enter(self, epoch: int, excluded: np.ndarray, lifted: bool) -> None:
        order = generator(self._seed, "curriculum", epoch).permutation(self.size)
        self._epoch = epoch
        self._excluded = excluded
        self._lifted = lifted
        self._order = order[~excluded[order]]
        self._position = 0
