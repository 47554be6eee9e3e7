"""What runs that are over still hold on disk and nobody needs to read their results: freed by `rlsweep gc`."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlsweep.store import checkpoints, ledger
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.state import Seen, look


@dataclass(frozen=True)
class Garbage:
    """One folder or file to free: its size in bytes and why nobody needs it."""

    run: RunFolder
    path: Path
    size: int
    why: str


def wanted_steps(root: Root) -> dict[str, int]:
    """The most steps that any sweep under a root wants of each run."""
    steps: dict[str, int] = {}
    for sweep in root.all_sweeps():
        for intent in ledger.wanted(sweep):
            steps[intent.run_key] = max(intent.steps, steps.get(intent.run_key, 0))
    return steps


def find(run: RunFolder, wanted: Mapping[str, int], look: Callable[[RunFolder], Seen] = look) -> list[Garbage]:
    """What can be freed of one run that does what `look` tells. Nothing of one that is at work, waits in a queue, or is
    to go further.

    What a finished or diverged run would need to go on is let go; its weights, journal and samples stay.
    """
    seen = look(run)
    if seen.state in ("running", "pending"):
        return []
    halves = [path for folder in (run.path, run.samples) for path in folder.glob(".*.tmp")]
    found = [(path, "left by a process that was killed") for path in (*checkpoints.leftovers(run), *halves)]
    found += [(path, "damaged, set aside") for path in checkpoints.damaged(run)]
    over = seen.state == "diverged" or (seen.state == "finished" and seen.step >= wanted.get(run.key, 0))
    if over:
        why = f"only needed to go on: {seen.state} at step {seen.step}"
        found += [(each.resume, why) for each in checkpoints.every(run) if each.resumable]
    return [Garbage(run, path, size_of(path), why) for path, why in found]


def free(garbage: Garbage) -> None:
    """Remove it: the name of a folder first, so that nothing half-removed passes for whole."""
    if garbage.path.is_dir():
        checkpoints.remove(garbage.path)
    else:
        garbage.path.unlink(missing_ok=True)


def size_of(path: Path) -> int:
    """Bytes of a file or of a folder's files, 0 where it has gone meanwhile."""
    total = path.stat().st_size if path.is_file() else 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total
