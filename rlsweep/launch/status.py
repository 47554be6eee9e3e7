"""Status of a sweep: what its ledger wants, and what folders and processes say about it now."""

import math
from contextlib import suppress
from dataclasses import dataclass

from rlsweep.errors import RlsweepError
from rlsweep.store import ledger
from rlsweep.store.files import describe
from rlsweep.store.journal import newest_row
from rlsweep.store.layout import Root, RunFolder, SweepFolder
from rlsweep.store.ledger import Intent
from rlsweep.store.rows import Row
from rlsweep.store.state import STATES, Seen, State, look


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


def status(sweep: SweepFolder, root: Root) -> list[RunStatus]:
    """Status of all runs that a sweep wants, in the order of its ledger."""
    return [_of_run(intent, root.run(intent.run_key)) for intent in ledger.wanted(sweep)]


def counts(runs: list[RunStatus]) -> dict[State, int]:
    """How many runs are in each state that occurs."""
    found = {state: sum(run.state == state for run in runs) for state in STATES}
    return {state: number for state, number in found.items() if number}


def _of_run(intent: Intent, folder: RunFolder) -> RunStatus:
    trained = evaluation = None
    try:
        seen = look(folder)
    except (RlsweepError, OSError) as error:  # nobody can say; the other runs of the sweep have a status all the same
        seen = Seen("lost", describe(error))
    with suppress(RlsweepError):  # what can't be read has no rows
        trained, evaluation = newest_row(folder.journal, "step"), newest_row(folder.journal, "evaluation")
    state, reason = seen.state, seen.reason
    in_journal = trained["step"] if trained else 0
    step = max(seen.step, in_journal)
    if state != "running" and in_journal < step:
        reason = f"{reason}; rows are missing from {folder.journal}, it ends at step {in_journal}"
    if state == "finished" and seen.step < intent.steps:
        state, reason = "waiting", f"the budget was raised from {seen.step} to {intent.steps} steps"
    return RunStatus(
        variant=intent.variant,
        seed=intent.seed,
        run_key=intent.run_key,
        state=state,
        step=step,
        total=intent.steps,
        pass_rate=_pass_rate(evaluation),
        attempt=seen.attempt.number if seen.attempt else None,
        host=seen.host,
        reason=reason,
    )


def _pass_rate(evaluation: Row | None) -> float | None:
    rate = evaluation["metrics"].get("evaluation/pass_rate") if evaluation else None
    return None if rate is None or math.isnan(rate) else rate
