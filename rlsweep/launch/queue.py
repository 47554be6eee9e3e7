"""What the scheduler says about jobs now: one squeue for all, one sacct for those that squeue has forgotten."""

import os
import pwd
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rlsweep.errors import SchedulerError
from rlsweep.launch.scheduler import Refused, call
from rlsweep.store.jobs import Submission

UNKNOWN = "UNKNOWN"
"""Not in the queue, and whoever keeps what is over could not be asked: `Job.reason` says why."""
UNSTARTED = "cancelled before it started"
"""Reason of an array element that was taken out of the waiting part of its array: nobody keeps a record of it."""

WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
WORKING = ("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
LIVING = (*WAITING, *WORKING)
"""States of jobs that are not over."""

# The environment of the command decides which zone times are given and printed in; UTC knows no hour that stands twice.
# Slurm cuts the numbers of an array's waiting elements short unless told otherwise.
_VARIABLES = {"TZ": "UTC", "SLURM_BITSTR_LEN": "0"}
_MARGIN_S = 86400.0
"""Clocks of a login node, the controller and its database may differ; what is asked for in excess is little."""
_MOST_IDS = 5000
_NOWHERE = ("None assigned", "(null)")
_TIMES = "%Y-%m-%dT%H:%M:%S"


@dataclass(frozen=True)
class Job:
    """One job or array element as the scheduler knows it."""

    id: str
    """`123` or `123_4`."""
    name: str
    state: str
    """Slurm's long name: PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, ...; or UNKNOWN."""
    reason: str
    """Slurm's code of why it is pending, or why or with which exit code it ended (`exit 1:0`); empty without any."""
    nodes: str
    held: bool
    """Whether it waits for `scontrol release`."""
    start: float | None = None
    """When it was started last, or is expected to start, unix seconds."""


def read_jobs(
    submissions: Sequence[Submission], user: int | None = None, queue: Sequence[Job] | None = None
) -> dict[str, Job]:
    """Jobs of these submissions by id, those the scheduler doesn't know left out. At most two scheduler calls.

    A job of that id with another name is somebody else's (ids are recycled) and left out. `user` is whom the jobs
    belong to where that isn't the caller, `queue` what `jobs_of_user` has said of that one already. SchedulerError
    where the controller can't be asked; where it is only the accounting that can't be, jobs that it would know are
    UNKNOWN.
    """
    wanted = {submission.job: submission for submission in sorted(submissions, key=lambda each: each.time)}
    if not wanted:
        return {}
    listed = jobs_of_user(user) if queue is None else queue
    found = {job.id: job for job in listed if _belongs(job, wanted)}
    missing = [submission for job, submission in wanted.items() if job not in found]
    kept = [submission for submission in missing if submission.accounting != "none"]
    if kept:
        try:
            found.update(_over(kept, _users(user)))
        except (SchedulerError, Refused) as error:
            for submission in kept:
                words = f"the accounting can't be asked ({' '.join(str(error).split())})"
                found[submission.job] = Job(submission.job, submission.name, UNKNOWN, words, "", held=False)
    return found


def jobs_of_user(user: int | None = None) -> list[Job]:
    """All jobs of the caller, and of another user, that squeue knows, array elements one by one. One call."""
    return _queue(f"--user={_users(user)}")


def own_jobs() -> list[Job]:
    """All jobs of this user that squeue knows, array elements one by one. One call."""
    return _queue("--me")


def is_of(job: Job, submission: Submission) -> bool:
    """Whether a job is the one that was submitted, not a later one that was given the same id.

    Told by its token: a database may hold another encoding of the sweep's name.
    """
    return job.id == submission.job and _token(job.name) == submission.token


def elements(id: str) -> list[str]:
    """Ids in `123`, `123_4` or `123_[0,3-9:2%4]`."""
    parent, _, numbers = id.partition("_[")
    if not numbers:
        return [id]
    found: list[str] = []
    for part in numbers.rstrip("]").partition("%")[0].split(","):
        bounds = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if bounds:
            first, last, step = int(bounds[1]), int(bounds[2] or bounds[1]), int(bounds[3] or 1)
            found += [f"{parent}_{number}" for number in range(first, last + 1, max(1, step))]
    return found


def _users(user: int | None) -> str:
    """The caller and another user, as squeue and sacct take them."""
    users = {os.getuid()} | ({user} if user is not None and _has_account(user) else set())
    return ",".join(str(number) for number in sorted(users))


def _queue(whose: str) -> list[Job]:
    # All partitions, hidden ones too, and all states; a name may hold the separator and so stands last.
    asked = ["squeue", whose, "--all", "--array", "--noheader", "--states=all", "--format=%i|%T|%r|%N|%S|%j"]
    try:
        answer = call(asked, variables=_VARIABLES)
    except Refused as error:
        raise SchedulerError(f"the queue can't be read: {error}") from error
    jobs = []
    for id, state, reason, nodes, start, name in _fields(answer, 6):
        why = UNSTARTED if state == "CANCELLED" and not nodes else _code(reason)  # it still says why it was waiting
        jobs.append(Job(id, name, state, why, nodes, _is_held(state, reason), _time(start)))
    return jobs


def _over(submissions: Sequence[Submission], whose: str) -> dict[str, Job]:
    """What the accounting kept of jobs that squeue has forgotten."""
    newest = sorted(submissions, key=lambda submission: submission.time)[-_MOST_IDS:]
    wanted = {submission.job: submission for submission in newest}
    database = any(submission.accounting == "slurmdbd" for submission in newest)
    parents = sorted({submission.job.partition("_")[0] for submission in newest})
    # Without a beginning older versions look no further back than to midnight.
    since = datetime.fromtimestamp(newest[0].time - _MARGIN_S, UTC).strftime(_TIMES)
    asked = ["sacct", "--allocations", "--parsable2", "--noheader", f"--jobs={','.join(parents)}"]
    if database:
        # A requeued job, and one whose id was used again, have several records.
        fields = "JobID,State,ExitCode,NodeList,Start,Submit,JobName"
        answer = call(
            [*asked, "--duplicates", f"--user={whose}", f"--starttime={since}", f"--format={fields}"],
            retry=False,
            variables=_VARIABLES,
        )
    else:
        # The record of jobcomp: one a job, elements of arrays under numbers of their own that nobody can tell apart.
        fields = "JobID,State,ExitCode,NodeList,End,End,JobName"
        answer = call([*asked, "--completion", f"--format={fields}"], retry=False, variables=_VARIABLES)
    records: dict[str, tuple[str, Job]] = {}
    arrays = set()
    for id, state, code, nodes, start, submitted, name in _fields(answer, 7):
        arrays.add((id.partition("_")[0], _token(name)))
        word = state.partition(" ")[0]  # CANCELLED by 0
        waiting = "[" in id
        if not word or (waiting and word == "PENDING"):  # as it once was: squeue knows nothing of it
            continue
        for each in elements(id):
            reason = UNSTARTED if waiting and word == "CANCELLED" else f"exit {code}"
            job = Job(each, name, word, reason, "" if nodes in _NOWHERE else nodes, held=False, start=_time(start))
            if _belongs(job, wanted) and (each not in records or submitted >= records[each][0]):
                records[each] = (submitted, job)
    # squeue knows every job that isn't over: a record that says otherwise lost its end.
    found = {id: job for id, (_, job) in records.items() if job.state not in LIVING}
    for id, submission in wanted.items():
        parent, _, number = id.partition("_")
        if database and number and id not in records and (parent, submission.token) in arrays:
            found[id] = Job(id, submission.name, "CANCELLED", UNSTARTED, "", held=False)
    return found


def _fields(answer: str, count: int) -> Iterator[list[str]]:
    for line in answer.split("\n"):
        fields = line.split("|", count - 1)
        if len(fields) == count:
            yield [*(field.strip() for field in fields[:-1]), fields[-1]]


def _belongs(job: Job, wanted: dict[str, Submission]) -> bool:
    return job.id in wanted and is_of(job, wanted[job.id])


def _token(name: str) -> str:
    return name.strip().rpartition(":")[2]


def _is_held(state: str, reason: str) -> bool:
    if state in ("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"):
        return True
    # JobHeldUser, JobHeldAdmin, "launch failed requeued held", "job requeued in held state"
    return state == "PENDING" and "held" in reason.lower()


def _code(reason: str) -> str:
    return "" if reason in ("None", "(null)", "N/A") else reason


def _time(text: str) -> float | None:
    try:
        return datetime.strptime(text, _TIMES).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _has_account(user: int) -> bool:
    """squeue refuses to ask for a user that it finds no name of."""
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True
