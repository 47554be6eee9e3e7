"""Submission: what is wanted goes to disk, durably, before anything starts."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlsweep.errors import RlsweepError
from rlsweep.launch.plan import TO_START, Planned, check_root
from rlsweep.recipe.resolved import dump
from rlsweep.store import ledger
from rlsweep.store.files import write_text
from rlsweep.store.layout import Root, RunFolder, SweepFolder
from rlsweep.sweep.expand import Run, Sweep


def submit(sweep: Sweep, root: Root, decisions: Sequence[Planned]) -> SweepFolder:
    """Write the sweep's description, its new intents and the resolved recipe of each run that is to start.

    Doing it again writes nothing new. RlsweepError, before anything is written, where the root can't be written to.
    """
    _check_writable(root)
    folder = root.sweep(sweep.name)
    folder.path.mkdir(parents=True, exist_ok=True)
    _write_if_new(folder.spec, _yaml(sweep.spec))
    known = {(intent.variant, intent.seed): _without_time(vars(intent)) for intent in ledger.wanted(folder)}
    intents = [_intent(run) for run in sweep.runs]
    fresh = [row for row in intents if known.get((row["variant"], row["seed"])) != _without_time(row)]
    if fresh:
        ledger.append(folder, fresh)
    for planned in decisions:
        if planned.action in TO_START:
            freeze(planned.run, root.run(planned.run.key))
    return folder


def freeze(run: Run, folder: RunFolder) -> None:
    """Write the resolved recipe that a run is trained by. Budget and execution are as asked for last."""
    folder.path.mkdir(parents=True, exist_ok=True)
    _write_if_new(folder.recipe, dump(run.recipe))


def _intent(run: Run) -> dict[str, Any]:
    return {
        "kind": "intent",
        "time": time.time(),
        "run_key": run.key,
        "variant": run.variant,
        "variant_key": run.variant_key,
        "seed": run.seed,
        "difference": dict(run.difference),
        "steps": run.recipe.budget.steps,
    }


def _without_time(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("kind", "time")}


def _check_writable(root: Root) -> None:
    check_root(root)
    there = next(path for path in (root.path, *root.path.parents) if path.exists())
    for path in (there, root.runs, root.sweeps):
        if path.exists() and not os.access(path, os.W_OK | os.X_OK):
            raise RlsweepError(
                f"the root {root.path} can't be written to (no permission in {path}); choose another with --root"
            )


def _write_if_new(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def _yaml(spec: dict[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(spec, sort_keys=False, allow_unicode=True))
