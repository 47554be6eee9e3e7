"""What runs in a job, one task a node: submitit calls `Train`, which has a trainer work on the run and outlives it.

All that it goes by is on disk: Slurm queues a job again with the pickle that was submitted first. A job is FAILED where
its run is, and COMPLETED wherever else it ends by itself, so that Slurm's states say what the run's outcome says.
"""

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlsweep.errors import RlsweepError
from rlsweep.launch.child import start
from rlsweep.launch.job import why
from rlsweep.launch.lead import Lead
from rlsweep.launch.notice import Notice
from rlsweep.launch.owned import Over, RunFailed, require_work, settled
from rlsweep.launch.ranks import ENDED_WELL, STOPPED, Death, Place, find_lead, here, job_of, report
from rlsweep.recipe.resolved import read_resolved
from rlsweep.store.attempts import Attempt, Superseded
from rlsweep.store.files import describe
from rlsweep.store.layout import RunFolder

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission

_POLL_S = 0.5
_LEAD_S = 300.0
"""How long a rank waits for rank 0 to begin: nodes start at different times, and a network file system tells late."""
_UNDECIDED_S = 60.0
"""How long a rank whose trainer failed waits for rank 0 to decide before it fails itself and takes the job along."""
_SAVING_S = 1800.0
"""How long a rank whose trainer is done, or about which rank 0 has decided, waits for the job to end."""


@dataclass
class Train:
    """Work on a run within a job of the submission that a token names."""

    run: str
    """The run's folder."""
    token: str
    _lead: Lead | None = field(default=None, init=False, repr=False, compare=False)

    def __call__(self) -> str:
        """Train until the run is over; what became of it, in one line. RunFailed where it failed."""
        try:
            with Notice() as notice:
                place = here()
                said = self._work(RunFolder(Path(self.run)), place, notice)
        except (Over, Superseded) as over:
            said = str(over)
        except (RlsweepError, OSError) as error:
            sys.tracebacklimit = 0  # the message says it all
            raise (error if isinstance(error, RunFailed) else RlsweepError(describe(error))) from None
        print(f"rlsweep: {said}", flush=True)
        return said

    def checkpoint(self) -> "DelayedSubmission":
        """Called by submitit when Slurm gives notice: have the trainer save and end; what is to be queued again.

        Over where there is nothing left to queue, RunFailed where the run failed meanwhile.
        """
        from submitit.core.utils import DelayedSubmission

        if self._lead is not None:
            self._lead.stop()
        return DelayedSubmission(Train(self.run, self.token))

    def _work(self, run: RunFolder, place: Place, notice: Notice) -> str:
        submission = require_work(run, self.token)
        if place.rank > 0:
            return _follow(run, self.token, place, notice)
        _tidy(place)
        self._lead = Lead.begin(run, submission, place, notice)
        try:
            self._lead.work()
        finally:
            self._lead.end()
        raise AssertionError("a lead works until something ends it")


def _follow(run: RunFolder, token: str, place: Place, notice: Notice) -> str:
    """Have this rank's trainer work on the attempt that rank 0 has begun, and leave every decision to rank 0."""
    attempt = _led(run, token, place)
    job = job_of(attempt)
    if job is None or job.ended is not None:
        return f"attempt {attempt.number} is over already"
    trainer = start(attempt, place, job, read_resolved(run.recipe).execution.threads, notice.signal)
    while (code := trainer.wait(_POLL_S)) is None:
        if notice.came:
            notice.pass_on()
    report(attempt, Death(place.rank, code, time.time()))
    well = code in ENDED_WELL or code in STOPPED
    began = time.monotonic()
    while not _over(attempt):
        decided = settled(attempt)
        if time.monotonic() - began > (_SAVING_S if well or decided else _UNDECIDED_S):
            break
        time.sleep(_POLL_S)
    how = why(code, attempt.rank_log(place.rank))
    decided = settled(attempt)
    if not well and (decided is None or decided.state == "failed"):
        raise RunFailed(f"run {run.key}, attempt {attempt.number}, rank {place.rank}: {how}")
    return f"rank {place.rank} of attempt {attempt.number}: {how}"


def _led(run: RunFolder, token: str, place: Place) -> Attempt:
    """The attempt that rank 0 of this start of the job has begun. RlsweepError where it doesn't in time."""
    deadline = time.monotonic() + _LEAD_S
    while (attempt := find_lead(run, place)) is None:
        require_work(run, token)
        if time.monotonic() > deadline:
            raise RlsweepError(
                f"run {run.key}, rank {place.rank}: rank 0 has not begun an attempt within {_LEAD_S:.0f} s; is "
                f"{run.attempts} on a file system that all of {', '.join(place.nodes)} see?"
            )
        time.sleep(_POLL_S)
    return attempt


def _over(attempt: Attempt) -> bool:
    """Whether rank 0 is done with an attempt, or another attempt has taken the run over."""
    job = job_of(attempt)
    return not attempt.owns() or (job is not None and job.ended is not None)


def _tidy(place: Place) -> None:
    """Remove what submitit left half-written when it was killed: where it finds that, it writes nothing more."""
    folder = os.environ.get("SUBMITIT_FOLDER")
    if folder is not None:
        for left in Path(folder).glob(f"{place.job}_*.save_tmp"):
            left.unlink(missing_ok=True)
