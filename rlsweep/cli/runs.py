"""Which sweep and which runs a person means."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from rlsweep.errors import RecipeError, UsageError
from rlsweep.store import ledger
from rlsweep.store.layout import Root, RunFolder, SweepFolder
from rlsweep.store.ledger import Intent

RUN_HELP = (
    "a key, its first four digits or more, a variant (all its seeds), variant:seed, indexes as `status` prints them "
    "(0-3,5), or values of axes (loss=cispo,seed=0)"
)
"""What RUN may be. A variant's whole name means it alone, even where it reads like a value that others have too."""

_LEAST_PREFIX = 4
_MOST_NAMED = 20
_INDEXES = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*")


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
    """Runs meant by a key or its start, or in a sweep by a variant, variant:seed, indexes or values of its axes.

    UsageError where there is none, or where it can't be told which are meant.
    """
    keys = _keys_from(root, text)
    folder = None if keys and sweep is None and not root.all_sweeps() else find_sweep(root, sweep)
    if text in keys:
        return [root.run(text)]
    if len(keys) > 1:
        raise UsageError(f"{text!r} is the start of several runs: {', '.join(keys)}")
    if keys and folder is not None and text.isdecimal():
        _refuse_two_meanings(text, keys[0], folder)
    if keys or folder is None:
        return [root.run(keys[0])]
    return [root.run(intent.run_key) for intent in _in_sweep(text, folder)]


def find_run(root: Root, text: str, sweep: str | None) -> RunFolder:
    """The one run meant, as by `find_runs`; UsageError where there are several."""
    found = list(dict.fromkeys(find_runs(root, text, sweep)))
    if len(found) > 1:
        wanted = {intent.run_key: intent for intent in ledger.wanted(find_sweep(root, sweep))}
        names = [f"{run.key} ({wanted[run.key].variant}:{wanted[run.key].seed})" for run in found]
        raise UsageError(f"{text!r} means {len(found)} runs: {_some(names)}; give one of them")
    return found[0]


def _keys_from(root: Root, start: str) -> list[str]:
    """Keys that begin so; none where that is too short to be meant as one."""
    if len(start) < _LEAST_PREFIX:
        return []
    try:
        return sorted(key for key in os.listdir(root.runs) if key.startswith(start))
    except FileNotFoundError:
        return []


def _refuse_two_meanings(text: str, key: str, folder: SweepFolder) -> None:
    wanted = ledger.wanted(folder)
    if int(text) < len(wanted) and wanted[int(text)].run_key != key:
        raise UsageError(
            f"{text!r} is the start of run {key}, and an index of sweep {folder.name} (run "
            f"{wanted[int(text)].run_key}); for the one give {key}, for the other {int(text)}-{int(text)}"
        )


def _in_sweep(text: str, folder: SweepFolder) -> list[Intent]:
    wanted = ledger.wanted(folder)
    if _INDEXES.fullmatch(text):
        return [wanted[at] for at in _indexes(text, folder, len(wanted))]
    named = [intent for intent in wanted if text in (intent.variant, f"{intent.variant}:{intent.seed}")]
    if named:
        return named
    parts = split_labels(text)
    if "=" in parts[0]:
        return _having(parts, folder, wanted)
    variants = list(dict.fromkeys(intent.variant for intent in wanted))
    raise UsageError(f"{text!r} is not a run: give {RUN_HELP}; variants of sweep {folder.name}: {_some(variants)}")


def _indexes(text: str, folder: SweepFolder, number: int) -> Iterator[int]:
    """Places named by `0-3,5`, each once, in the order given. UsageError beyond the sweep's."""
    places: dict[int, None] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, stop = int(first), int(last or first)
        if stop < start:
            raise UsageError(f"{part!r} runs backwards; write {stop}-{start}")
        if stop >= number:
            key = ", and no run's key begins so" if len(text) >= _LEAST_PREFIX and text.isdecimal() else ""
            valid = f"0 to {number - 1}" if number else "none"
            raise UsageError(f"{text!r} is not a run: the indexes of sweep {folder.name} are {valid}{key}")
        places |= dict.fromkeys(range(start, stop + 1))
    yield from places


def _having(parts: Sequence[str], folder: SweepFolder, wanted: Sequence[Intent]) -> list[Intent]:
    """Runs that have, of every axis named, one of the values named. UsageError for an axis or a value of no run."""
    from rlsweep.recipe.fields import nearest

    stated = [{**labels(intent.variant), "seed": str(intent.seed)} for intent in wanted]
    axes = list(dict.fromkeys(key for each in stated for key in each))
    asked: dict[str, list[str]] = {}
    key = ""
    for part in parts:
        name, equals, value = part.partition("=")
        key = name.strip() if equals else key  # what has no name is a further value of the axis before
        if key not in axes:
            raise UsageError(
                f"{key!r} is not an axis of sweep {folder.name}{nearest(key, axes)}; valid: {', '.join(axes)}"
            )
        value = (value if equals else part).strip()
        values = list(dict.fromkeys(each[key] for each in stated if key in each))
        meant = next((each for each in values if _same_value(value, each)), None)
        if meant is None:
            raise UsageError(
                f"no run of sweep {folder.name} has {key}={value}{nearest(value, values)}; {key} is one of: "
                f"{_some(values)}"
            )
        asked.setdefault(key, []).append(meant)
    found = [
        intent
        for intent, each in zip(wanted, stated, strict=True)
        if all(each.get(key) in values for key, values in asked.items())
    ]
    if not found:
        together = " and ".join(f"{key}={' or '.join(values)}" for key, values in asked.items())
        raise UsageError(f"no run of sweep {folder.name} has {together} together")
    return found


def labels(variant: str) -> dict[str, str]:
    """Axis -> value, as a variant's name states them: none for the recipe itself."""
    pairs = (each.partition("=") for each in split_labels(variant))
    return {key: value for key, equals, value in pairs if equals}


def split_labels(text: str) -> list[str]:
    """A variant's name cut at its commas, those inside quotes, brackets and braces left out."""
    parts, depth, quoted, start, at = [], 0, False, 0, 0
    while at < len(text):
        symbol = text[at]
        if quoted and symbol == "\\":
            at += 1
        elif symbol == '"':
            quoted = not quoted
        elif not quoted:
            depth += (symbol in "[{") - (symbol in "]}")
            if symbol == "," and depth == 0:
                parts.append(text[start:at])
                start = at + 1
        at += 1
    return [*parts, text[start:]]


def _same_value(typed: str, stated: str) -> bool:
    """Whether what was typed is the value that a variant's name states, perhaps written otherwise: 3e-4 is 0.0003."""
    from rlsweep.recipe.nodes import Node, Place, parse_value

    def plain(node: Node) -> object:
        value = node.value
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return (isinstance(value, bool), value)  # true is not 1

    if typed == stated:
        return True
    try:
        return plain(parse_value(typed, Place("RUN"))) == plain(parse_value(stated, Place("RUN")))
    except RecipeError:
        return False


def _some(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    all_ = list(names)
    more = f" and {len(all_) - _MOST_NAMED} more" if len(all_) > _MOST_NAMED else ""
    return ", ".join(all_[:_MOST_NAMED]) + more
