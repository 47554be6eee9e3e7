"""What made a run's numbers, as its trainer wrote it down: code, packages, host and devices of its attempts."""

from pathlib import Path
from typing import Any

from rlsweep.errors import RlsweepError
from rlsweep.store import attempts
from rlsweep.store.files import describe, read_json
from rlsweep.store.layout import RunFolder

Provenance = dict[str, Any]

_PARTS = ("git", "packages", "devices")


def read(run: RunFolder) -> Provenance:
    """Of the newest attempt; empty before the first has come so far. RlsweepError where the file is damaged."""
    return _read(run.provenance)


def every(run: RunFolder) -> tuple[tuple[Provenance, ...], tuple[str, ...]]:
    """Of each attempt that came so far and whose file can be read, oldest first; and what is wrong with other files."""
    wrong: list[str] = []

    def readable(path: Path) -> Provenance:
        try:
            return _read(path)
        except RlsweepError as error:
            wrong.append(str(error))
            return {}

    try:
        paths = [attempt.provenance for attempt in attempts.every(run)]
    except OSError as error:
        paths = []
        wrong.append(describe(error))
    own = [found for path in paths if (found := readable(path))]
    newest = readable(run.provenance)
    return tuple(own) or ((newest,) if newest else ()), tuple(wrong)


def device_kind(provenance: Provenance) -> str | None:
    """`cpu` or `cuda`, None where it isn't known."""
    kind = (provenance.get("devices") or {}).get("kind")
    return None if kind is None else str(kind)


def _read(path: Path) -> Provenance:
    try:
        found = read_json(path)
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise RlsweepError(f"{path}: not an object")
    for part in _PARTS:
        if not isinstance(found.get(part), dict | None):
            raise RlsweepError(f"{path}: {part} is not an object")
    return found
