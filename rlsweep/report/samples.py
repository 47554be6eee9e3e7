"""A few rollouts of a variant, for a person who wants to see what stands behind a pass rate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlsweep.errors import RlsweepError
from rlsweep.store import samples
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.samples import Sample

_LONGEST = 1000
"""Characters of a response that a page shows; of a longer one the middle is left out."""
_KINDS: Sequence[Callable[[Sample], bool]] = (
    lambda sample: sample.outcome == "correct",
    lambda sample: sample.outcome in ("wrong", "unparseable"),
    lambda sample: sample.finish == "length" or sample.interrupted,
)


@dataclass(frozen=True)
class Excerpt:
    """Where the samples of a run's last evaluation lie, and some of them."""

    run_key: str
    step: int
    path: str
    """Relative to the root."""
    samples: tuple[Sample, ...]
    """The first correct one, the first wrong one, and another that was truncated or interrupted; none if damaged."""

    @property
    def command(self) -> str:
        return f"rlsweep samples {self.run_key} --step {self.step}"


def excerpt(root: Root, runs: Sequence[RunFolder]) -> Excerpt | None:
    """Samples of the last evaluation of the first of `runs` that has any; None where none has."""
    file = next((found for run in runs if (found := samples.newest_evaluation(run))), None)
    if file is None:
        return None
    try:
        every = samples.read(file)
    except (RlsweepError, OSError):
        every = []  # `command` says what is wrong with the file; the numbers don't rest on it
    chosen: list[Sample] = []
    for is_kind in _KINDS:
        chosen += [sample for sample in every if is_kind(sample) and sample not in chosen][:1]
    path = file.path.relative_to(root.path)
    return Excerpt(file.path.parent.parent.name, file.step, path.as_posix(), tuple(chosen))


def shown(text: str) -> str:
    """A text as a page shows it: nothing in it is invisible, and of a long one the beginning and the end."""
    left = len(text) - _LONGEST
    if left > 0:
        half = _LONGEST // 2
        text = f"{text[:half]}\n[{left} characters left out]\n{text[-half:]}"
    return samples.visible(text)
