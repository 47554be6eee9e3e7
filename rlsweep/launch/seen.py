"""The state of a run from its folder, its process and the scheduler together."""

from collections.abc import Mapping, Sequence

from rlsweep.launch.queue import Job
from rlsweep.store.layout import RunFolder
from rlsweep.store.state import Seen


def look(run: RunFolder, jobs: Mapping[str, Job]) -> Seen:
    """What a run is doing now. `jobs` are those of `jobs_of`; without a submission it is what the folder says."""
    raise NotImplementedError


def jobs_of(runs: Sequence[RunFolder]) -> dict[str, Job]:
    """Ask the scheduler about every run here that was handed to a job and is not over. No call where none was."""
    raise NotImplementedError
