"""Which sweep and which runs a person means."""

import os

from rlsweep.errors import UsageError
from rlsweep.store import ledger
from rlsweep.store.layout import Root, RunFolder, SweepFolder
from rlsweep.store.ledger import Intent

_LEAST_PREFIX = 4


def find_sweep(root: Root, name: str | None) -> SweepFolder:
    """The sweep of a name, by default the one worked on last. UsageError where there is none."""
    sweeps = root.all_sweeps()
    if not sweeps:
        raise UsageError(f"there is no sweep under {root.path} yet")
    if name is None:
        return sweeps[-1]
    folder = root.sweep(name)
    if folder not in sweeps:
        raise UsageError(f"{name!r} is not a sweep; valid: {', '.join(sorted(sweep.name for sweep in sweeps))}")
    return folder


def find_runs(root: Root, text: str, sweep: str | None) -> list[RunFolder]:
    """Runs meant by a key, the start of one, or a variant (all its seeds) or `variant:seed` of a sweep.

    UsageError where there is none, or where the start of a key is that of several.
    """
    try:
        keys = os.listdir(root.runs)
    except FileNotFoundError:
        keys = []
    starting = sorted(key for key in keys if key.startswith(text)) if len(text) >= _LEAST_PREFIX else []
    if len(starting) > 1:
        raise UsageError(f"{text!r} is the start of several runs: {', '.join(starting)}")
    if starting:
        return [root.run(starting[0])]
    wanted = ledger.wanted(find_sweep(root, sweep))
    found = [intent for intent in wanted if text in (intent.variant, f"{intent.variant}:{intent.seed}")]
    if not found:
        raise UsageError(
            f"{text!r} is not a run: give a key, its first {_LEAST_PREFIX} digits or more, a variant, or variant:seed; "
            f"variants: {_variants(wanted)}"
        )
    return [root.run(intent.run_key) for intent in found]


def find_run(root: Root, text: str, sweep: str | None) -> RunFolder:
    """The one run meant, as by `find_runs`; UsageError where there are several."""
    found = find_runs(root, text, sweep)
    if len(found) > 1:
        raise UsageError(f"{text!r} has {len(found)} seeds: {', '.join(each.key for each in found)}; give one of them")
    return found[0]


def _variants(wanted: list[Intent]) -> str:
    names = list(dict.fromkeys(intent.variant for intent in wanted))
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
