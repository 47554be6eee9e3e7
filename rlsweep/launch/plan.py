"""The plan: what would be done about each run of a sweep, by store, processes and scheduler. Writes nothing."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

from rlsweep.errors import SchedulerError, UsageError
from rlsweep.launch.queue import Job
from rlsweep.launch.seen import jobs_of, look
from rlsweep.store import checkpoints, ledger
from rlsweep.store.jobs import read_submission
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.ledger import Intent
from rlsweep.store.state import look as look_at_folder
from rlsweep.sweep.expand import Run, Sweep

Action = Literal["submit", "resume", "continue", "skip", "leave"]
ACTIONS: tuple[Action, ...] = get_args(Action)
TO_START: tuple[Action, ...] = ("submit", "resume", "continue")

_STEPS = re.compile(r"^budget:\n(?:  .*\n)*?  steps: (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Planned:
    """What to do about a run and why. `step` is where it stands on disk: the budget beyond it is left to pay."""

    run: Run
    action: Action
    reason: str
    step: int = 0
    job: str | None = None
    """The job of a scheduler that a run which is left belongs to."""


@dataclass(frozen=True)
class Dropped:
    """A run that the sweep once asked for and now does not (left out, or replaced by another of the same name), and
    that waits or is at work all the same."""

    intent: Intent
    job: str | None
    """Its job, which this sweep submitted; None: a process of a host."""
    devices: int
    """Devices that an attempt of the job occupies."""


def survey(sweep: Sweep, root: Root) -> tuple[list[Planned], list[Dropped]]:
    """A decision for each run, in the sweep's order, and what goes on without being asked for. At most one question
    to the scheduler about all of them. UsageError where the root can't be one.

    SchedulerError where a run of the sweep was handed to a job and the scheduler can't be asked: it might be submitted
    twice.
    """
    check_root(root)
    try:
        existing = set(os.listdir(root.runs))
    except FileNotFoundError:
        existing = set()
    folders = {run.key: root.run(run.key) for run in sweep.runs if run.key in existing}
    asked = {run.key for run in sweep.runs}
    newest = {intent.run_key: intent for intent in ledger.intents(root.sweep(sweep.name))}
    left = [intent for key, intent in newest.items() if key in existing - asked]
    jobs: Mapping[str, Job] | None
    try:
        jobs = known = jobs_of([*folders.values(), *(root.run(intent.run_key) for intent in left)])
    except SchedulerError:
        if not left:
            raise
        known, jobs = jobs_of(list(folders.values())), None  # no question where none of these was handed to a job
    decisions = [
        decide_run(run, folders[run.key], known) if run.key in folders else Planned(run, "submit", "new")
        for run in sweep.runs
    ]
    dropped = (_dropped(intent, root.run(intent.run_key), sweep.name, jobs) for intent in left)
    return decisions, [each for each in dropped if each is not None]


def decide(sweep: Sweep, root: Root) -> list[Planned]:
    """The decisions of `survey`."""
    return survey(sweep, root)[0]


def decide_run(run: Run, folder: RunFolder, jobs: Mapping[str, Job] | None = None) -> Planned:
    """The decision about one run whose folder may exist, by what the scheduler said of its job (`seen.jobs_of`).

    Without `jobs`: by its folder and its process alone, whatever job it was handed to.
    """
    seen = look_at_folder(folder) if jobs is None else look(folder, jobs)
    steps = run.recipe.budget.steps
    if seen.state == "waiting":
        return Planned(run, "submit", seen.reason)
    if seen.state in ("running", "pending"):
        going = _budget(folder)
        more = f"; it goes to step {going} first, ask again for {steps} once it is over" if going < steps else ""
        return Planned(run, "leave", seen.reason + more, _saved(folder), seen.job)
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
    why = f"{seen.state} ({seen.reason})" if seen.state in ("failed", "interrupted") else seen.state
    return Planned(run, "resume", f"{why}; {whence}", saved)


def check_root(root: Root) -> None:
    """UsageError where the root, or a folder that must be under it, is something else than a folder."""
    for path in (*reversed(root.path.parents), root.path, root.runs, root.sweeps, root.models):
        if path.exists() and not path.is_dir():
            raise UsageError(f"the root {root.path} can't be used: {path} is not a folder; choose another with --root")


def _saved(folder: RunFolder) -> int:
    checkpoint = checkpoints.resumable(folder)
    return checkpoint.step if checkpoint else 0


def _dropped(intent: Intent, folder: RunFolder, sweep: str, jobs: Mapping[str, Job] | None) -> Dropped | None:
    """None where the run is over, or in the hands of another sweep."""
    seen = look(folder, jobs)
    if seen.state not in ("pending", "running"):
        return None
    if seen.job is None:
        return Dropped(intent, None, 0)
    submission = read_submission(folder)
    if submission is None or submission.sweep != sweep:
        return None
    return Dropped(intent, seen.job, submission.devices)


def _budget(folder: RunFolder) -> float:
    """Steps that a run's attempts go to, by the recipe they are given. Looked up as text: parsing thousands of recipes
    takes a minute. Infinite where none is there."""
    try:
        found = _STEPS.search(folder.recipe.read_text(encoding="utf-8"))
    except OSError:
        return inf
    return int(found[1]) if found else inf
