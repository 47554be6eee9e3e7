"""Ending runs on a person's word: processes of this host, and jobs of a scheduler that are ours."""

import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rlsweep.errors import RlsweepError, SchedulerError
from rlsweep.launch import leftover, queue, scheduler
from rlsweep.launch.queue import Job
from rlsweep.launch.recover import drop
from rlsweep.launch.scheduler import Refused
from rlsweep.launch.seen import jobs_of, look
from rlsweep.store import attempts, checkpoints, ledger
from rlsweep.store.attempts import Attempt
from rlsweep.store.claim import claimed
from rlsweep.store.files import describe, write_json
from rlsweep.store.jobs import read_attempt_job, read_submission
from rlsweep.store.layout import Root, RunFolder, SweepFolder

_POLL_S = 0.1
_ASKS_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Waits between questions to the scheduler whether jobs that were to end are gone."""
_AT_ONCE = 1000
"""Ids on one command line of scancel."""

Answer = tuple[bool, str]
"""Whether a run is at rest, and what happened to it."""


def cancel(runs: Sequence[RunFolder], wait_s: float) -> list[tuple[RunFolder, bool, str]]:
    """Ask each run to save and end, wait, and say of each whether it is at rest and what happened.

    Of this host only the very process that the run's folder names is signalled: same number, same start, same boot. Of
    a scheduler only the job that the run was handed to last is ended, and only where its name says that it is ours.
    SchedulerError where that can't be asked about jobs: nothing is ended then, here neither.
    """
    answers: dict[str, Answer] = {}
    jobs = _jobs(runs, answers)
    handed = [each for run in runs if run.key not in answers and (each := _handed(run, jobs)) is not None]
    answers |= _cancel_jobs(handed, min(wait_s, sum(_ASKS_S)))
    answers |= _cancel_processes([run for run in runs if run.key not in answers], jobs, wait_s)
    return [(run, *answers[run.key]) for run in runs]


def cancel_sweep(sweep: SweepFolder, root: Root, wait_s: float) -> tuple[int, list[tuple[RunFolder, bool, str]]]:
    """Ask all runs of a sweep to end, those that others of the same name have replaced included; as `cancel`.

    With it the number of jobs that went which a submitter had left that died: they wait, and no run knows of them. Of
    runs that other sweeps ask for, too, that is said.
    """
    wanted = ledger.wanted(sweep)
    left = leftover.find(sweep, root, wanted)
    jobs = queue.own_jobs() if left.any else []
    replaced = [intent for intent, _ in left.living(jobs)]
    dropped = 0
    if left.held(jobs):
        with claimed(sweep.path / "submitter") as claim:
            if claim is not None:  # else somebody has begun to see to them
                dropped = drop(sweep, root, left.cut_short, jobs)
    runs = [root.run(intent.run_key) for intent in (*wanted, *replaced)]
    others = _other_sweeps(sweep, root)
    return dropped, [
        (run, at_rest, f"{text}; sweep {others[run.key]} asks for it, too" if run.key in others else text)
        for run, at_rest, text in cancel(runs, wait_s)
    ]


def _other_sweeps(sweep: SweepFolder, root: Root) -> dict[str, str]:
    """Run -> another sweep that wants it."""
    others = [folder for folder in root.all_sweeps() if folder.name != sweep.name]
    return {intent.run_key: folder.name for folder in others for intent in ledger.wanted(folder)}


@dataclass(frozen=True)
class _Handed:
    """A run whose job waits or is at work. `attempt` is the one the job has in hand, None before it has made one."""

    run: RunFolder
    job: Job
    attempt: Attempt | None

    @property
    def waits(self) -> bool:
        return self.job.state in queue.WAITING


def _jobs(runs: Sequence[RunFolder], answers: dict[str, Answer]) -> dict[str, Job]:
    """What the scheduler says of all runs that were handed to it; a run whose folder is damaged gets its answer."""
    sound = []
    for run in runs:
        try:
            if read_submission(run) is not None:
                sound.append(run)
        except RlsweepError as error:
            answers[run.key] = (False, f"can't be asked: {describe(error)}")
    return jobs_of(sound) if sound else {}


def _handed(run: RunFolder, jobs: Mapping[str, Job]) -> _Handed | None:
    """A run's job where it is not over."""
    submission = read_submission(run)
    job = jobs.get(submission.job) if submission is not None else None
    if submission is None or job is None or job.state not in queue.LIVING or not queue.is_of(job, submission):
        return None
    newest = attempts.newest(run)
    of_newest = read_attempt_job(newest) if newest is not None else None
    its = of_newest is not None and of_newest.token == submission.token
    return _Handed(run, job, newest if its else None)


def _cancel_jobs(handed: Sequence[_Handed], wait_s: float) -> dict[str, Answer]:
    """Take jobs out of the queue, or have them save and end."""
    if not handed:
        return {}
    marked = [each.attempt for each in handed if each.attempt is not None and not each.attempt.cancelled.exists()]
    words = None
    try:
        for attempt in marked:  # before the signal, so that no task takes it for a fault and goes on
            write_json(attempt.cancelled, {"time": time.time()})
        for start in range(0, len(handed), _AT_ONCE):
            try:
                scheduler.call(["scancel", *(each.job.id for each in handed[start : start + _AT_ONCE])])
            except Refused as error:  # one of them has ended meanwhile, say; the others were ended all the same
                words = str(error)
    except BaseException:
        for attempt in marked:
            attempt.cancelled.unlink(missing_ok=True)
        raise
    left = _still_there({each.job.id for each in handed}, wait_s)
    return {each.run.key: _what_became(each, each.job.id in left, words) for each in handed}


def _still_there(ids: Collection[str], wait_s: float) -> set[str]:
    """Of these jobs, those that after some questions are not gone. All of them where nobody answers any more."""
    left, waited = set(ids), 0.0
    for wait in _ASKS_S:
        if not left or waited + wait > wait_s:
            break
        time.sleep(wait)
        waited += wait
        try:
            left &= {job.id for job in queue.own_jobs() if job.state in queue.LIVING}
        except SchedulerError:
            break
    return left


def _what_became(each: _Handed, still_there: bool, words: str | None) -> Answer:
    what = f"job {each.job.id}"
    if still_there:
        return False, f"{what} was asked to end and is not gone yet" + (f"; scancel said: {words}" if words else "")
    if each.waits:
        return True, f"was waiting ({what}): taken out of the queue; {_whence(each.run)}"
    return True, f"was running ({what}): ended; {_whence(each.run)}"


def _whence(run: RunFolder) -> str:
    """What it costs to have ended the run."""
    saved = checkpoints.resumable(run)
    return (
        f"goes on from step {saved.step} when asked for again" if saved else "begins at the start when asked for again"
    )


def _cancel_processes(runs: Sequence[RunFolder], jobs: Mapping[str, Job], wait_s: float) -> dict[str, Answer]:
    """Have processes of this host save and end."""
    asked: dict[str, Attempt] = {}
    answers: dict[str, Answer] = {}
    for run in runs:
        seen = look(run, jobs)
        if seen.state != "running" or seen.attempt is None:
            answers[run.key] = (True, f"is not running ({seen.state})")
            continue
        refusal = _ask(seen.attempt)
        if refusal is None:
            asked[run.key] = seen.attempt
        else:
            answers[run.key] = (False, refusal)
    deadline = time.monotonic() + wait_s
    while asked and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        for key, attempt in list(asked.items()):
            if not attempts.is_alive(attempt):
                answers[key] = (True, f"ended (attempt {attempt.number})")
                del asked[key]
    for key, attempt in asked.items():
        answers[key] = (False, f"was asked to end (attempt {attempt.number}) and is still saving")
    return answers


def _ask(attempt: Attempt) -> str | None:
    """Send SIGTERM; why not, where it can't be sent."""
    try:
        process = attempts.read_identity(attempt.process)
    except FileNotFoundError:
        return "is just being started; try again in a moment"
    except RlsweepError as error:
        return f"can't be asked: {error}"
    if attempts.is_process(process) is None:
        return f"is at work on {process['host']}; cancel it there"
    if _launcher(attempt) == process["pid"]:
        return "is just being started; try again in a moment"  # the folder still names its launcher
    write_json(attempt.cancelled, {"time": time.time()})
    try:
        os.kill(process["pid"], signal.SIGTERM)
    except ProcessLookupError:
        return None
    except PermissionError:
        attempt.cancelled.unlink()
        return "belongs to another user"
    return None


def _launcher(attempt: Attempt) -> int | None:
    """Process that started the attempt, where it can be told."""
    try:
        return int(attempts.read_identity(attempt.launcher)["pid"])
    except (FileNotFoundError, RlsweepError):
        return None
