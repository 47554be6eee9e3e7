"""Status of a sweep: what its ledger wants, and what folders, processes and the scheduler say about it now."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from rlsweep.errors import RlsweepError, SchedulerError
from rlsweep.launch.eta import seconds_to_go
from rlsweep.launch.leftover import Leftover, find
from rlsweep.launch.queue import Job, jobs_of_user, read_jobs
from rlsweep.launch.seen import look, unsettled
from rlsweep.store import ledger
from rlsweep.store.files import describe
from rlsweep.store.journal import newest_rows
from rlsweep.store.layout import Root, RunFolder, SweepFolder
from rlsweep.store.ledger import Intent
from rlsweep.store.rows import Row
from rlsweep.store.state import STATES, Seen, State


@dataclass(frozen=True)
class RunStatus:
    """One run that is wanted. `step` of `total` steps are in its journal, `pass_rate` is its newest evaluation's."""

    variant: str
    seed: int
    run_key: str
    state: State
    step: int
    total: int
    pass_rate: float | None
    attempt: int | None
    host: str | None
    reason: str
    job: str | None = None
    """The job of a scheduler that it was last handed to: `123`, or `123_4` for an element of an array."""
    nodes: str | None = None
    """Nodes that job occupies now, in the scheduler's short form: `n[1-2]`."""
    eta_s: float | None = None
    """Seconds until it has trained `total` steps at the pace of its newest ones; None where it isn't at work."""
    release: str | None = None
    """The command that lets its job go where that is held."""


@dataclass(frozen=True)
class Status:
    """Where the runs of a sweep stand, in the order of its ledger."""

    runs: list[RunStatus]
    scheduler_error: SchedulerError | None = None
    """Why the scheduler could not be asked about runs that were handed to it: of those it is what folders say."""
    replaced: Sequence[RunStatus] = ()
    """Runs that others of the same name have replaced, where their jobs still wait or are at work."""
    cut_short: Sequence[str] = ()
    """Ids of jobs on hold that a submitter has left which died: no run knows of them."""


def status(sweep: SweepFolder, root: Root) -> Status:
    """Status of all runs that a sweep wants. Asks the scheduler with two calls at most."""
    wanted = ledger.wanted(sweep)
    folders = [root.run(intent.run_key) for intent in wanted]
    left = find(sweep, root, wanted)
    jobs: Mapping[str, Job] | None = None
    queue: Sequence[Job] = ()
    failure: SchedulerError | None = None
    try:
        queue, jobs = _ask(folders, left)
    except SchedulerError as error:
        failure = error
    return Status(
        [_of_run(intent, folder, jobs) for intent, folder in zip(wanted, folders, strict=True)],
        failure,
        [_of_replaced(intent, root.run(intent.run_key), job) for intent, job in left.living(queue)],
        left.held(queue),
    )


def counts(runs: list[RunStatus]) -> dict[State, int]:
    """How many runs are in each state that occurs."""
    found = {state: sum(run.state == state for run in runs) for state in STATES}
    return {state: number for state, number in found.items() if number}


def _ask(runs: Sequence[RunFolder], left: Leftover) -> tuple[Sequence[Job], Mapping[str, Job]]:
    """The queue, and what became of the jobs of runs. No call where none was handed to a job."""
    submissions, owner = unsettled(runs)
    if not submissions and not left.any:
        return (), {}
    queue = jobs_of_user(left.sweep.ledger.stat().st_uid if owner is None else owner)
    return queue, read_jobs(submissions, owner, queue)


def _of_replaced(intent: Intent, folder: RunFolder, job: Job) -> RunStatus:
    found = _of_run(intent, folder, {job.id: job})
    return replace(found, reason=f"no longer asked for; {found.reason}")


def _of_run(intent: Intent, folder: RunFolder, jobs: Mapping[str, Job] | None) -> RunStatus:
    rows: Mapping[str, Row] = {}
    try:
        seen = look(folder, jobs)
    except (RlsweepError, OSError) as error:  # nobody can say; the other runs of the sweep have a status all the same
        seen = Seen("lost", describe(error))
    with suppress(RlsweepError):  # what can't be read has no rows
        rows = newest_rows(folder.journal, ("step", "evaluation"))
    state, reason = seen.state, seen.reason
    in_journal = rows["step"]["step"] if "step" in rows else 0
    step = max(seen.step, in_journal)
    if state != "running" and in_journal < step:
        reason = f"{reason}; rows are missing from {folder.journal}, it ends at step {in_journal}"
    if state == "finished" and seen.step < intent.steps:
        state, reason = "waiting", f"the budget was raised from {seen.step} to {intent.steps} steps"
    at_work = state == "running" and seen.host is not None  # else its job is starting, and the newest attempt is over
    return RunStatus(
        variant=intent.variant,
        seed=intent.seed,
        run_key=intent.run_key,
        state=state,
        step=step,
        total=intent.steps,
        pass_rate=_pass_rate(rows.get("evaluation")),
        attempt=seen.attempt.number if seen.attempt else None,
        host=seen.host or seen.nodes or None,
        reason=reason,
        job=seen.job,
        nodes=seen.nodes or None,
        eta_s=seconds_to_go(seen.attempt, intent.steps) if at_work and seen.attempt else None,
        release=seen.release,
    )


def _pass_rate(evaluation: Row | None) -> float | None:
    rate = evaluation["metrics"].get("evaluation/pass_rate") if evaluation else None
    return None if rate is None or math.isnan(rate) else rate
