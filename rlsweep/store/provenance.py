"""What made a run's numbers, as its trainer wrote it down: code, packages, host and devices of its attempts."""

from pathlib import Path
from typing import Any

from rlsweep.errors import RlsweepError
from rlsweep.store import attempts
from rlsweep.store.files import read_json
from rlsweep.store.layout import RunFolder

Provenance = dict[str, Any]


def read(run: RunFolder) -> Provenance:
    """Of the newest attempt; empty before the first has come so far. RlsweepError where the file is damaged."""
    return _read(run.provenance)


def every(run: RunFolder) -> tuple[Provenance, ...]:
    """Of each attempt that came so far, oldest first. RlsweepError where a file is damaged."""
    own = [found for attempt in attempts.every(run) if (found := _read(attempt.provenance))]
    newest = read(run)
    return tuple(own) or ((newest,) if newest else ())


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
    return found
