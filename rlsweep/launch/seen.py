"""The state of a run from its folder, its process and the scheduler together."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from rlsweep.errors import RlsweepError
from rlsweep.launch.job import tail
from rlsweep.launch.pending import release, why
from rlsweep.launch.queue import UNKNOWN, UNSTARTED, WAITING, WORKING, Job, is_of, read_jobs
from rlsweep.store import attempts, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.jobs import Submission, read_attempt_job, read_submission
from rlsweep.store.layout import Root, RunFolder, SweepFolder
from rlsweep.store.outcome import Outcome
from rlsweep.store.state import Seen, State, host_of
from rlsweep.store.state import look as look_at_folder

_SKEW_S = 30.0
"""How far apart the clocks of a node and of the controller may be."""

_ENDS: dict[str, tuple[State, str]] = {
    "CANCELLED": ("interrupted", "was cancelled"),
    "COMPLETED": ("lost", "ended"),
    "TIMEOUT": ("lost", "ran into its time limit"),
    "DEADLINE": ("lost", "ran into its deadline"),
    "NODE_FAIL": ("lost", "lost its node"),
    "BOOT_FAIL": ("lost", "got a node that did not boot"),
    "PREEMPTED": ("lost", "was preempted and not queued again"),
    "OUT_OF_MEMORY": ("failed", "ran out of memory"),
}
"""What a run is whose job ended so and whose attempt left no outcome, and what became of the job."""

_NOISE = re.compile(r"srun: |submitit |slurmstepd\S*: ")
"""Lines that stand behind the reason in a job's log."""


def look(run: RunFolder, jobs: Mapping[str, Job] | None) -> Seen:
    """What a run is doing now. `jobs` are those of `jobs_of`, None where the scheduler could not be asked.

    Of a run without a submission it is what the folder says.
    """
    try:
        submission = read_submission(run)
    except RlsweepError as error:
        # Handed to another job the run is that one's, and the job that nobody knows of any more ends at once.
        seen = look_at_folder(run)
        return seen if seen.state in _SETTLED else replace(seen, state="lost", reason=str(error))
    if submission is None:
        return look_at_folder(run)
    told = _told(run, submission)
    job = jobs.get(submission.job) if jobs is not None else None
    if job is not None and not is_of(job, submission):
        job = None
    settled = _settled(run, told)
    if settled is not None and not told.own:  # it was trained without the job
        return settled
    seen = settled or _of_job(run, told, job, asked=jobs is not None)
    nodes = job.nodes if job is not None and job.state in WORKING else ""
    return replace(seen, attempt=told.attempt, job=submission.job, nodes=nodes)


def jobs_of(runs: Sequence[RunFolder]) -> dict[str, Job]:
    """Ask the scheduler about every run here that was handed to a job and is not over. No call where none was.

    SchedulerError where it can't be asked.
    """
    return read_jobs(*unsettled(runs))


def unsettled(runs: Sequence[RunFolder]) -> tuple[list[Submission], int | None]:
    """Submissions of the runs here that were handed to a job and are not over, and whose they are."""
    asked: list[Submission] = []
    owner: int | None = None
    for run in runs:
        with suppress(RlsweepError, OSError):  # damaged: `look` tells
            submission = read_submission(run)
            if submission is not None and not _told(run, submission).over:
                asked.append(submission)
                owner = run.submission.stat().st_uid if owner is None else owner
    return asked, owner


_SETTLED: tuple[State, ...] = ("running", "finished", "diverged")


@dataclass(frozen=True)
class _Told:
    """What the folder of a run that was handed to a job says."""

    submission: Submission
    attempt: Attempt | None
    own: bool
    """Whether the newest attempt is one of the job's."""
    later: bool
    """Whether it is of no job, or another one, and began after the run had been handed to this one."""
    started: float
    """When it began, unix seconds; 0 without one."""
    ended: Outcome | None
    """How it ended."""
    damage: str | None
    """What is wrong with its files."""

    @property
    def over(self) -> bool:
        """Whether no job changes any more what is known."""
        done = self.ended is not None and self.ended.state in ("finished", "diverged")
        return done and (self.own or self.later)


def _told(run: RunFolder, submission: Submission) -> _Told:
    attempt = attempts.newest(run)
    if attempt is None:
        return _Told(submission, None, False, False, 0.0, None, None)
    damage: str | None = None
    started, own = _started(attempt), False
    try:
        job = read_attempt_job(attempt)
        own = job is not None and job.token == submission.token
    except RlsweepError as error:
        damage, own = str(error), started > submission.time
    try:
        ended = outcome.read(run)
    except RlsweepError as error:
        damage, ended = str(error), None
    if ended is not None and ended.attempt not in (None, attempt.number):
        ended = None
    return _Told(submission, attempt, own, not own and started > submission.time, started, ended, damage)


def _settled(run: RunFolder, told: _Told) -> Seen | None:
    """What is so whatever the job does: a process at work here, a run that is over, a later attempt without a job."""
    if told.attempt is None:
        return None
    if told.over or attempts.is_alive(told.attempt):
        return look_at_folder(run)
    if told.later and (seen := look_at_folder(run)).state in _SETTLED:
        return seen
    return None


def _of_job(run: RunFolder, told: _Told, job: Job | None, asked: bool) -> Seen:
    step = told.ended.step if told.ended is not None and (told.own or told.later) else 0
    if not asked:
        return _unasked(run, told, step)
    if job is None or job.state == UNKNOWN:
        return _gone(run, told, job, step)
    if job.state in WAITING:
        reason = why(job)
        if told.own and told.attempt is not None:
            reason += f"; attempt {told.attempt.number} ended" + (f" at step {step}" if step else "")
        command = release(job)
        if command:
            reason += f"; to release it: {command}"
        return Seen("pending", reason, step, release=command)
    if job.state in WORKING:
        return _working(told, job, step)
    return _ended(run, told, job, step)


def _unasked(run: RunFolder, told: _Told, step: int) -> Seen:
    """What the folder alone can say."""
    doubt = f"its job {told.submission.job} could not be asked about"
    if not (told.own or told.later):
        return Seen("pending", f"handed to job {told.submission.job}, which could not be asked about", step)
    seen = look_at_folder(run)
    return replace(seen, reason=f"{seen.reason}; {doubt}")


def _working(told: _Told, job: Job, step: int) -> Seen:
    attempt = told.attempt
    place = f" on {job.nodes}" if job.nodes else ""
    present = told.own and (job.start is None or told.started > job.start - _SKEW_S)
    if job.state == "CONFIGURING":
        reason = f"starting{place}: the nodes are being prepared"
    elif present and attempt is not None and told.ended is not None:
        reason = f"attempt {attempt.number} has ended ({told.ended.reason}), its job is about to"
    elif job.state == "COMPLETING":
        reason = "its job is ending"
    elif job.state in ("SUSPENDED", "STOPPED"):
        reason = f"suspended by the scheduler{place}"
    elif present and attempt is not None:
        reason = f"attempt {attempt.number} is at work"
    else:
        again = f", attempt {attempt.number} reached step {step}" if told.own and attempt is not None and step else ""
        reason = f"starting{place}{again}"
    return Seen("running", reason, step, host=host_of(attempt) if present else None)


def _ended(run: RunFolder, told: _Told, job: Job, step: int) -> Seen:
    state, became = _ENDS.get(job.state, ("failed", f"failed ({job.reason})" if job.reason else "failed"))
    attempt = told.attempt if told.own or told.later else None
    ended = told.ended if attempt is not None else None
    if ended is not None and ended.state == "failed":
        return Seen("failed", ended.reason, step, host=host_of(attempt))
    # Why a job ended by itself is told by its last words. To one that was ended by others they add nothing.
    says = _last_words(run, told.submission) if state == "failed" or job.state == "COMPLETED" else ""
    if ended is not None and state != "failed":  # saved, and then not queued again
        return Seen("interrupted", f"its job {job.id} {became}{says}; {ended.reason}", step, host=host_of(attempt))
    if attempt is not None and ended is None:
        if attempt.cancelled.exists():
            state, became = _ENDS["CANCELLED"]
        damage = f" ({told.damage})" if told.damage else ""
        reason = f"its job {job.id} {became}, attempt {attempt.number} left no outcome{damage}{says}"
        return Seen(state, reason, step, host=host_of(attempt))
    if attempt is None and job.state == "COMPLETED":
        if told.ended is not None and told.ended.state in ("finished", "diverged"):  # and so there was nothing to do
            return Seen(told.ended.state, told.ended.reason, told.ended.step)
        return Seen("interrupted" if says else "lost", f"its job {job.id} ended without training{says}")
    before = " before it started" if job.reason == UNSTARTED else " before an attempt began"
    return Seen(state, f"its job {job.id} {became}{before if attempt is None else ''}{says}", step)


def _gone(run: RunFolder, told: _Told, job: Job | None, step: int) -> Seen:
    """The scheduler knows nothing of the job: what the folder has is all there is."""
    if job is not None:
        where = f"not in the queue, and {job.reason}"
    elif told.submission.accounting == "none":
        where = "not in the queue, and this cluster keeps no accounting"
    else:
        where = "neither in the queue nor in the accounting"
    gone = f"job {told.submission.job} is gone: {where}"
    attempt = told.attempt if told.own or told.later else None
    ended = told.ended if attempt is not None else None
    if ended is not None:
        reason = ended.reason if ended.state == "failed" else f"{ended.reason}; {gone}"
        return Seen(ended.state, reason, step, host=host_of(attempt))
    if attempt is not None and attempt.cancelled.exists():
        return Seen("interrupted", f"cancelled; {gone}", step, host=host_of(attempt))
    left = f"; attempt {attempt.number} left no outcome" if attempt is not None else ""
    if told.damage:
        left += f" ({told.damage})"
    return Seen("lost", gone + left + _last_words(run, told.submission), step, host=host_of(attempt))


def _last_words(run: RunFolder, submission: Submission) -> str:
    """What the job's own log ends with, as `: words`; empty where it says nothing."""
    folder = SweepFolder(Root(run.path.parents[1]).sweeps / submission.sweep).jobs / submission.token
    for name in (f"{submission.job}_0_log.err", f"{submission.job}_0_log.out"):  # as submitit calls them
        with suppress(OSError):
            lines = [line for line in tail(folder / name, 50) if not _NOISE.match(line)]
            if lines:
                return f": {lines[-1]}"
    return ""


def _started(attempt: Attempt) -> float:
    try:
        return float(attempts.read_identity(attempt.process)["started"])
    except (FileNotFoundError, RlsweepError):
        with suppress(OSError):
            return attempt.path.stat().st_mtime
    return 0.0
