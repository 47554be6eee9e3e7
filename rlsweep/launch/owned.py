"""Whether a job may work on a run: it must be the one that the run was handed to last, and there must be work left."""

from rlsweep.errors import RlsweepError
from rlsweep.launch import gpu_hours
from rlsweep.launch.ranks import job_of
from rlsweep.recipe.resolved import read_resolved
from rlsweep.store import attempts, ledger, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.jobs import Submission, read_submission
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome


class Over(Exception):
    """There is nothing left to do for this job, which is no fault: why."""


class RunFailed(RlsweepError):
    """The run has failed, and would fail again."""


def require_work(run: RunFolder, token: str) -> Submission:
    """The submission of that token, where its job has something to do. Over or RunFailed where it has not."""
    submission = require_ours(run, token)
    attempt = attempts.newest(run)
    ended = settled(attempt) if attempt is not None else None
    if attempt is None:
        return submission
    if ended is not None and ended.state == "diverged":
        raise Over(f"run {run.key} diverged at step {ended.step}, and would again: {ended.reason}")
    if ended is not None and ended.state == "finished" and ended.step >= read_resolved(run.recipe).budget.steps:
        raise Over(f"run {run.key} is finished at step {ended.step}")
    job = job_of(attempt)
    if job is None or job.token != token:
        return submission  # whatever happened to it before, it was submitted again since
    if attempt.cancelled.exists():
        raise Over(f"run {run.key} was cancelled in attempt {attempt.number}")
    if ended is not None and ended.state == "failed":
        raise failure(attempt, ended)
    return submission


def require_ours(run: RunFolder, token: str) -> Submission:
    """The submission of that token. Over where the run was handed to another job since, or to none."""
    submission = read_submission(run)
    if submission is None:
        raise Over(f"run {run.key} was handed to no job: {run.submission} is not there")
    if submission.token != token:
        raise Over(f"run {run.key} was handed to job {submission.job} since, which does the rest")
    return submission


def refusal(run: RunFolder, submission: Submission, earlier: int) -> str | None:
    """Why no further attempt of a submission may start after so many, None where it may."""
    if earlier > submission.retries:
        return used_up(submission)
    root = Root(run.path.parent.parent)
    cap = ledger.cap(root.sweep(submission.sweep))
    if cap is not None and (used := gpu_hours.used(root, submission.sweep)) >= cap:
        return f"the runs of sweep {submission.sweep} have used {used:.4g} GPU-hours, and --max-gpu-hours is {cap:g}"
    return None


def used_up(submission: Submission) -> str:
    """That no attempt of a submission is left."""
    return f"this submission has made all its attempts (limits.retries: {submission.retries})"


def settled(attempt: Attempt) -> Outcome | None:
    """How an attempt ended, None where nothing says so yet. A damaged outcome says nothing."""
    try:
        ended = outcome.read(attempt.run)
    except RlsweepError:
        return None
    return ended if ended is not None and ended.attempt in (None, attempt.number) else None


def failure(attempt: Attempt, ended: Outcome) -> RunFailed:
    """What a person reads of a failed run in the job's own log."""
    run = attempt.run
    root = Root(run.path.parent.parent)
    return RunFailed(
        f"run {run.key} failed in attempt {attempt.number} at step {ended.step}: {ended.reason}; "
        f"see: rlsweep logs {run.key}{root.option}"
    )
