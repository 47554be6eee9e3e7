"""Status of a sweep: what its ledger wants, and what folders and processes say about it now."""

import math
from dataclasses import dataclass

from rlsweep.store import ledger
from rlsweep.store.journal import newest_row
from rlsweep.store.layout import Root, RunFolder, SweepFolder
from rlsweep.store.ledger import Intent
from rlsweep.store.rows import Row
from rlsweep.store.state import STATES, State, look


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
    seen = look(folder)
    state, reason = seen.state, seen.reason
    step, evaluation = seen.step, None
    if seen.attempt is not None:
        trained, evaluation = newest_row(folder.journal, "step"), newest_row(folder.journal, "evaluation")
        step = max(step, trained["step"] if trained else 0)
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
