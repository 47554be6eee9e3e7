"""The ledger of a sweep: what is wanted and what was submitted, appended by the submitter alone."""

import os
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from rlsweep.errors import RlsweepError
from rlsweep.store.files import naming, sync_folder
from rlsweep.store.layout import SweepFolder
from rlsweep.store.rows import Row, append_bytes, open_for_append, read_rows, to_line


@dataclass(frozen=True)
class Intent:
    """One run that is wanted: its variant's name and key, its seed, what differs from the base, and its budget."""

    run_key: str
    variant: str
    variant_key: str
    seed: int
    difference: dict[str, Any]
    steps: int
    time: float
    """When it was asked for, unix seconds."""


@dataclass(frozen=True)
class Handed:
    """A chunk of runs that was, or was about to be, handed to a scheduler, as far as it came."""

    token: str
    state: Literal["submitting", "submitted", "released"]
    """`submitting`: a job may exist, and waits to be released; nobody knows its id. `submitted`: it waits. `released`:
    it may start."""
    cluster: str
    runs: tuple[str, ...]
    job: str | None
    """Id of the job or of the array; None while `submitting`."""


def read(folder: SweepFolder) -> list[Row]:
    """All rows, oldest first; none where there is no ledger. RlsweepError where it is damaged."""
    try:
        rows = read_rows(folder.ledger)
    except RlsweepError as error:
        raise RlsweepError(f"{error}; take that line out, and `rlsweep ablate` asks for its runs again") from error
    if not rows and folder.ledger.exists() and folder.ledger.stat().st_size:
        raise RlsweepError(f"{folder.ledger}: no whole row in it; the file is damaged. Put it back, or move it away")
    return rows


def append(folder: SweepFolder, rows: list[Row]) -> None:
    """Add rows at the end, durably; the folder is made if need be.

    A row is `{"kind": "intent", "time", "recipe_name", "run_key", "variant", "variant_key", "seed", "difference",
    "steps"}`, `{"kind": "attempt", "time", "run_key", "attempt"}` of the local runner, or of a submission:
    `{"kind": "submitting", "time", "token", "cluster", "runs": [run_key]}` before sbatch, `{"kind": "submitted",
    "time", "token", "job", "runs"}` once each run's submission.json stands, and `{"kind": "released", "time",
    "tokens": [token]}`. `{"kind": "cap", "time", "max_gpu_hours"}` holds for all attempts of the sweep from then on.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    with naming(folder.ledger):
        descriptor = open_for_append(folder.ledger)
        try:
            append_bytes(descriptor, b"".join(to_line(row) for row in rows))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_folder(folder.path)


def intents(folder: SweepFolder) -> list[Intent]:
    """Every intent, oldest first, those that a newer one has replaced included."""
    names = [field.name for field in fields(Intent)]
    try:
        return [Intent(**{name: row[name] for name in names}) for row in _intent_rows(folder)]
    except KeyError as error:
        raise RlsweepError(f"{folder.ledger}: an intent has no {error}; the file is damaged") from error


def recipe_name(folder: SweepFolder) -> str | None:
    """Name of the recipe the sweep was first asked for with, whatever it is called later; None where none was noted."""
    first = next(iter(_intent_rows(folder)), {})
    return first.get("recipe_name")


def wanted(folder: SweepFolder) -> list[Intent]:
    """The newest intent of each (variant, seed), variants in the order in which their names were first asked for.

    A variant has the name it was last asked for by, so that no run stands twice. Where a name came to mean another
    recipe (its variant_key changed), the older variant is left out.
    """
    newest: dict[tuple[str, int], Intent] = {}
    named: dict[str, Intent] = {}
    meaning: dict[str, str] = {}
    for intent in intents(folder):
        newest[intent.variant_key, intent.seed] = intent
        named[intent.variant_key] = intent
        meaning[intent.variant] = intent.variant_key
    found = [
        replace(intent, variant=named[key].variant, difference=named[key].difference)
        for (key, _), intent in newest.items()
        if meaning[named[key].variant] == key
    ]
    order = {name: place for place, name in enumerate(meaning)}
    return sorted(found, key=lambda intent: order[intent.variant])


def submissions(folder: SweepFolder) -> list[Handed]:
    """Every chunk, oldest first, those that came to nothing included. RlsweepError where a row of them is damaged."""
    found: dict[str, Handed] = {}
    for row in read(folder):
        kind = row.get("kind")
        try:
            if kind == "submitting":
                found[row["token"]] = Handed(row["token"], "submitting", row["cluster"], tuple(row["runs"]), None)
            elif kind == "submitted":
                found[row["token"]] = replace(found[row["token"]], state="submitted", job=row["job"])
            elif kind == "released":
                for token in row["tokens"]:
                    found[token] = replace(found[token], state="released")
        except (KeyError, TypeError) as error:
            raise RlsweepError(
                f"{folder.ledger}: a row '{kind}' is not valid ({error!r}); the file is damaged"
            ) from error
    return list(found.values())


def cap(folder: SweepFolder) -> float | None:
    """No attempt of the sweep's jobs starts once its attempts have used so many GPU-hours: the newest cap asked for,
    None without one. RlsweepError where its row is damaged."""
    newest = next((row for row in reversed(read(folder)) if row.get("kind") == "cap"), None)
    if newest is None:
        return None
    try:
        return float(newest["max_gpu_hours"])
    except (KeyError, TypeError, ValueError) as error:
        raise RlsweepError(f"{folder.ledger}: a row 'cap' is not valid ({error!r}); the file is damaged") from error


def _intent_rows(folder: SweepFolder) -> list[Row]:
    return [row for row in read(folder) if row.get("kind") == "intent"]
