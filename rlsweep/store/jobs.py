"""Which job of a scheduler a run was handed to, and which one an attempt belongs to."""

from dataclasses import asdict, dataclass
from typing import Literal

from rlsweep.errors import RlsweepError
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import read_json, write_json
from rlsweep.store.layout import RunFolder

Accounting = Literal["slurmdbd", "jobcomp", "none"]


@dataclass(frozen=True)
class Submission:
    """`runs/<key>/submission.json`, written by the submitter between sbatch and release. The newest one owns the run:
    a job whose token is another one ends at once, so that a run submitted twice is trained once."""

    token: str
    """Names the chunk: its jobs are called `rlsweep:<sweep>:<token>`, files lie in `sweeps/<sweep>/jobs/<token>`."""
    sweep: str
    cluster: str
    """Name of the profile."""
    job: str
    """`123`, or `123_4` for an element of an array."""
    time: float
    """When it was submitted, unix seconds."""
    devices: int
    """Devices that an attempt occupies: `execution.devices`, of exclusive nodes all that they have."""
    nodes: int
    minutes: int
    """Time limit of one attempt."""
    retries: int
    """So many attempts may follow the first one of this submission."""
    accounting: Accounting
    """What the cluster kept of jobs that are over, when this was submitted."""
    notice_s: int
    """So long before its time limit the job is told, and the trainer has that long to save."""

    @property
    def name(self) -> str:
        """Name of the job, by which a recycled id is told from ours."""
        return job_name(self.sweep, self.token)


@dataclass(frozen=True)
class AttemptJob:
    """`attempts/<n>/job.json`, written by rank 0 when the attempt starts, and again with `ended` when it is over."""

    token: str
    job: str
    restart: int
    """How often Slurm had requeued the job (SLURM_RESTART_COUNT)."""
    nodes: list[str]
    devices: int
    address: str
    """Host at which the ranks of a run on several nodes meet."""
    port: int
    started: float
    ended: float | None = None
    saved: int | None = None
    """The step that the run would have gone on from when the attempt ended. None: it is at work, or that tells nothing
    of the run, as its node was lost, or Slurm wanted it back before its time."""


def job_name(sweep: str, token: str) -> str:
    """Name of all jobs of one submission."""
    return f"rlsweep:{sweep}:{token}"


def write_submission(run: RunFolder, submission: Submission) -> None:
    """Hand a run to a job."""
    write_json(run.submission, asdict(submission))


def read_submission(run: RunFolder) -> Submission | None:
    """The job a run was last handed to, None where it never was. RlsweepError where the file is damaged."""
    try:
        found = Submission(**read_json(run.submission))
    except FileNotFoundError:
        return None
    except TypeError as error:
        raise RlsweepError(f"{run.submission}: not a submission ({error})") from error
    if not all(isinstance(text, str) for text in (found.token, found.sweep, found.job)) or not _is_time(found.time):
        raise RlsweepError(f"{run.submission}: not a submission (token, sweep and job are text, time is a number)")
    return found


def write_attempt_job(attempt: Attempt, job: AttemptJob) -> None:
    """Note which job an attempt belongs to."""
    write_json(attempt.job, asdict(job))


def read_attempt_job(attempt: Attempt) -> AttemptJob | None:
    """Which job an attempt belongs to, None where it was started on its own. RlsweepError where that is damaged."""
    try:
        found = AttemptJob(**read_json(attempt.job))
    except FileNotFoundError:
        return None
    except TypeError as error:
        raise RlsweepError(f"{attempt.job}: not a job ({error})") from error
    if not isinstance(found.token, str) or not isinstance(found.job, str) or not _is_time(found.started):
        raise RlsweepError(f"{attempt.job}: not a job (token and job are text, started is a number)")
    return found


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
