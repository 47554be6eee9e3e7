"""Submission: what is wanted goes to disk, durably, before anything starts."""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rlsweep.errors import RlsweepError, UsageError
from rlsweep.launch.plan import TO_START, Planned, check_root
from rlsweep.recipe.resolved import dump
from rlsweep.store import ledger
from rlsweep.store.claim import Claim, claimed, holder
from rlsweep.store.files import write_text
from rlsweep.store.layout import Root, RunFolder, SweepFolder
from rlsweep.sweep.expand import Run, Sweep

Item = TypeVar("Item")
_WRITERS = 16


@contextmanager
def submitting(root: Root, name: str) -> Iterator[Claim]:
    """The claim on a sweep, held by the one process that works on it and writes its ledger.

    RlsweepError where another process has it, UsageError where the root can't be written to.
    """
    _check_writable(root)
    folder = root.sweep(name)
    folder.path.mkdir(parents=True, exist_ok=True)
    path = folder.path / "submitter"
    with claimed(path) as claim:
        if claim is None:
            raise RlsweepError(
                f"sweep {name} in {root.path} is being worked on by {_who(path)}; to see how far it is: "
                f"rlsweep status {name}{root.option}"
            )
        yield claim


def write_down(sweep: Sweep, root: Root, decisions: Sequence[Planned]) -> SweepFolder:
    """Write the sweep's description, its new intents and the resolved recipe of each run that is to start.

    The caller holds the sweep's claim. Doing it again writes nothing new.
    """
    folder = root.sweep(sweep.name)
    folder.path.mkdir(parents=True, exist_ok=True)
    _write_if_new(folder.spec, _yaml(sweep.spec))
    known = {(intent.variant, intent.seed): _asked(vars(intent)) for intent in ledger.wanted(folder)}
    intents = [_intent(run) for run in sweep.runs]
    fresh = [row for row in intents if known.get((row["variant"], row["seed"])) != _asked(row)]
    if fresh:
        ledger.append(folder, fresh)
    starting = [planned.run for planned in decisions if planned.action in TO_START]
    at_once(lambda run: freeze(run, root.run(run.key)), starting)
    return folder


def at_once(write: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Write something for each item, several at a time: most of it is waiting for the disk, or a server, to sync."""
    with ThreadPoolExecutor(_WRITERS) as pool:
        for _ in pool.map(write, items):
            pass


def freeze(run: Run, folder: RunFolder) -> None:
    """Write the resolved recipe that a run is trained by. Budget and execution are as asked for last."""
    folder.path.mkdir(parents=True, exist_ok=True)
    _write_if_new(folder.recipe, dump(run.recipe))


def require_own(root: Root) -> None:
    """UsageError where the root is another user's: what belongs to one user is read-only to all others."""
    try:
        owner = root.path.stat().st_uid
    except FileNotFoundError:
        return
    if owner != os.geteuid():
        raise UsageError(
            f"the root {root.path} belongs to {_user(owner)}: others can read it (rlsweep status, logs, samples, "
            "report), not change it; choose another with --root"
        )


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"the user with the number {number}"


def _intent(run: Run) -> dict[str, Any]:
    return {
        "kind": "intent",
        "time": time.time(),
        "recipe_name": run.recipe.name,
        "run_key": run.key,
        "variant": run.variant,
        "variant_key": run.variant_key,
        "seed": run.seed,
        "difference": dict(run.difference),
        "steps": run.recipe.budget.steps,
    }


def _who(path: Path) -> str:
    """Who has the claim, and since when."""
    found = holder(path)
    if found is None:
        return "a process that has just ended, try again"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["started"]))
    who = f"pid {found['pid']} on host {found['host']} since {since}"
    if found["host"] == socket.gethostname():
        return who
    return f"{who} (taken for dead after an hour without a word; sooner: remove {path}, if it is dead)"


def _asked(row: dict[str, Any]) -> dict[str, Any]:
    """What an intent asks for, without when and by which recipe's name."""
    return {name: value for name, value in row.items() if name not in ("kind", "time", "recipe_name")}


def _check_writable(root: Root) -> None:
    check_root(root)
    require_own(root)
    there = next(path for path in (root.path, *root.path.parents) if path.exists())
    for path in (there, root.runs, root.sweeps):
        if path.exists() and not os.access(path, os.W_OK | os.X_OK):
            read_only = os.statvfs(path).f_flag & os.ST_RDONLY
            why = f"{path} is on a read-only file system" if read_only else f"no permission in {path}"
            raise UsageError(f"the root {root.path} can't be written to ({why}); choose another with --root")


def _write_if_new(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def _yaml(spec: dict[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(spec, sort_keys=False, allow_unicode=True))
