"""The plan: what would be done about each run of a sweep, by store, processes and scheduler. Writes nothing."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from rlsweep.errors import UsageError
from rlsweep.launch.queue import Job
from rlsweep.launch.seen import jobs_of, look
from rlsweep.store import checkpoints, ledger
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.ledger import Intent
from rlsweep.store.state import look as look_at_folder
from rlsweep.sweep.expand import Run, Sweep

Action = Literal["submit", "resume", "continue", "skip", "leave"]
ACTIONS: tuple[Action, ...] = get_args(Action)
TO_START: tuple[Action, ...] = ("submit", "resume", "continue")


@dataclass(frozen=True)
class Planned:
    """What to do about a run and why. `step` is where it stands on disk: the budget beyond it is left to pay."""

    run: Run
    action: Action
    reason: str
    step: int = 0
    job: str | None = None
    """The job of a scheduler that a run which is left belongs to."""


def decide(sweep: Sweep, root: Root) -> list[Planned]:
    """A decision for each run, in the sweep's order. UsageError where the root can't be one.

    SchedulerError where a run was handed to a job and the scheduler can't be asked: it might be submitted twice.
    """
    check_root(root)
    try:
        existing = set(os.listdir(root.runs))
    except FileNotFoundError:
        existing = set()
    folders = {run.key: root.run(run.key) for run in sweep.runs if run.key in existing}
    jobs = jobs_of(list(folders.values()))
    return [
        decide_run(run, folders[run.key], jobs) if run.key in folders else Planned(run, "submit", "new")
        for run in sweep.runs
    ]


def decide_run(run: Run, folder: RunFolder, jobs: Mapping[str, Job] | None = None) -> Planned:
    """The decision about one run whose folder may exist, by what the scheduler said of its job (`seen.jobs_of`).

    Without `jobs`: by its folder and its process alone, whatever job it was handed to.
    """
    seen = look_at_folder(folder) if jobs is None else look(folder, jobs)
    steps = run.recipe.budget.steps
    if seen.state == "waiting":
        return Planned(run, "submit", seen.reason)
    if seen.state in ("running", "pending"):
        return Planned(run, "leave", seen.reason, _saved(folder), seen.job)
    if seen.state == "diverged":
        return Planned(run, "skip", f"diverged at step {seen.step}, and would again: {seen.reason}", seen.step)
    if seen.state == "finished":
        if seen.step >= steps:
            return Planned(run, "skip", f"finished at step {seen.step}", seen.step)
        raised, saved = f"budget raised from {seen.step} to {steps} steps", _saved(folder)
        if saved < seen.step:
            raised += f"; from {f'step {saved}' if saved else 'the start'}, what it needs to go on later was let go"
        return Planned(run, "continue", raised, saved)
    if seen.attempt is None:  # its job ended before it began
        return Planned(run, "submit", f"{seen.state} ({seen.reason})")
    saved = _saved(folder)
    whence = f"from the checkpoint of step {saved}" if saved else "from the start, there is no checkpoint"
    why = f"failed ({seen.reason})" if seen.state == "failed" else seen.state
    return Planned(run, "resume", f"{why}; {whence}", saved)


def no_longer_asked_for(sweep: Sweep, root: Root) -> list[Intent]:
    """Runs in the sweep's ledger that the sweep as asked for now does not have. They are left as they are."""
    asked = {run.key for run in sweep.runs}
    return [intent for intent in ledger.wanted(root.sweep(sweep.name)) if intent.run_key not in asked]


def check_root(root: Root) -> None:
    """UsageError where the root, or a folder that must be under it, is something else than a folder."""
    for path in (*reversed(root.path.parents), root.path, root.runs, root.sweeps, root.models):
        if path.exists() and not path.is_dir():
            raise UsageError(f"the root {root.path} can't be used: {path} is not a folder; choose another with --root")


def _saved(folder: RunFolder) -> int:
    checkpoint = checkpoints.resumable(folder)
    return checkpoint.step if checkpoint else 0
