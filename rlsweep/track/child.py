"""What MLflow should say about one run, as its folder stands: state, tags, parameters, artifacts and rows."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlsweep.errors import RlsweepError
from rlsweep.recipe.key import NOT_IDENTITY, leaves
from rlsweep.recipe.resolved import read_resolved
from rlsweep.store import attempts, checkpoints, provenance
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import read_json
from rlsweep.store.layout import RunFolder
from rlsweep.store.ledger import Intent
from rlsweep.store.provenance import Provenance
from rlsweep.store.rows import read_bytes
from rlsweep.store.state import Seen
from rlsweep.track.points import evaluations

PARAM_LIMIT = 6000
TAG_LIMIT = 8000
NAME_LIMIT = 250

STATUS = {
    "running": "RUNNING",
    "pending": "RUNNING",  # between two attempts, or about to go on
    "waiting": "KILLED",  # it has begun, and nobody goes on with it
    "finished": "FINISHED",
    "diverged": "FAILED",
    "failed": "FAILED",
    "interrupted": "KILLED",
    "lost": "KILLED",
}
"""MLflow's status of each state of a run that has begun."""

_GOES_ON = ("running", "pending")
_OVER = ("finished", "diverged")
"""From any other state a run is resumed at its newest checkpoint, and the rows after it are taken back."""


@dataclass(frozen=True)
class Child:
    """One begun run. Rows before byte `covered` of the journal are sent: no resume takes them back, or it is over."""

    name: str
    key: str
    state: str
    start: int
    """Unix milliseconds, as `end`."""
    end: int | None
    tags: dict[str, str]
    params: dict[str, str]
    artifacts: dict[str, str]
    journal: bytes
    covered: int

    @property
    def status(self) -> str:
        return STATUS[self.state]


def read_child(run: RunFolder, intent: Intent, look: Callable[[RunFolder], Seen], *, wanted: bool) -> Child | None:
    """A run of a sweep in the state that `look` tells, None where no attempt has begun it. RlsweepError where its
    folder is damaged."""
    # State first: what is written after we looked can only be more than the state promises.
    seen = look(run)
    if seen.attempt is None or not run.recipe.exists():
        return None
    reached = None if seen.state in _OVER else _journal_length(run)
    journal = read_bytes(run.journal)
    covered = len(journal) if reached is None else min(reached, len(journal))
    recipe = leaves(read_resolved(run.recipe))
    fixed = {path: value for path, value in recipe.items() if path.partition(".")[0] not in NOT_IDENTITY}
    made_with = provenance.read(run)
    tags = {
        "rlsweep.kind": "run",
        "rlsweep.run_key": run.key,
        "rlsweep.variant": intent.variant,
        "rlsweep.variant_key": intent.variant_key,
        "rlsweep.seed": intent.seed,
        "rlsweep.wanted": wanted,
        "rlsweep.wanted_steps": intent.steps,
        "rlsweep.attempt": seen.attempt.number,
        "rlsweep.state": seen.state,
        "rlsweep.reason": None if seen.state == "running" else seen.reason,
        # They may change while the run stays what it is; an MLflow parameter never may.
        **{f"rlsweep.{path}": value for path, value in recipe.items() if path not in fixed},
        **_provenance_tags(made_with),
    }
    artifacts = {"recipe.yaml": run.recipe.read_text(encoding="utf-8")}
    if made_with:
        git = dict(made_with.get("git") or {})
        diff = git.pop("diff", None)
        artifacts["provenance.json"] = json.dumps({**made_with, "git": git}, indent=2) + "\n"
        if diff:
            artifacts["dirty.diff"] = diff
    rows = evaluations(journal, covered)
    if rows:
        artifacts["evaluations.jsonl"] = rows
    return Child(
        name=f"{intent.variant} seed {intent.seed}",
        key=run.key,
        state=seen.state,
        start=_started(run),
        end=None if seen.state in _GOES_ON else _ended(run, seen.attempt, seen.state),
        tags={name: shorten(_text(value), TAG_LIMIT) for name, value in tags.items() if value is not None},
        params={path: _param(value) for path, value in fixed.items()},
        artifacts=artifacts,
        journal=journal,
        covered=covered,
    )


def shorten(text: str, limit: int) -> str:
    """`text`, cut where MLflow would cut it without a word."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _journal_length(run: RunFolder) -> int:
    """Bytes of the journal that the newest checkpoint covers, 0 before the first."""
    while (checkpoint := checkpoints.resumable(run)) is not None:
        try:
            return int(read_json(checkpoint.path / "state.json")["journal_length"])
        except FileNotFoundError as error:
            if checkpoint.path.exists():
                raise RlsweepError(f"{checkpoint.path}: has no state.json, so it is no checkpoint") from error
            # else it was pruned while we looked: a newer one is there
    return 0


def _provenance_tags(made_with: Provenance) -> dict[str, Any]:
    git, devices = made_with.get("git") or {}, made_with.get("devices") or {}
    return {
        "mlflow.source.git.commit": git.get("commit"),
        "rlsweep.git.dirty": git.get("dirty"),
        "rlsweep.host": made_with.get("host"),
        "rlsweep.platform": made_with.get("platform"),
        "rlsweep.python": made_with.get("python"),
        "rlsweep.threads": made_with.get("threads"),
        "rlsweep.device": provenance.device_kind(made_with),
        "rlsweep.device.name": devices.get("name"),
        "rlsweep.device.count": devices.get("count"),
        **{f"rlsweep.package.{name}": version for name, version in (made_with.get("packages") or {}).items()},
    }


def _started(run: RunFolder) -> int:
    first = attempts.every(run)[0]
    try:
        seconds = float(attempts.read_identity(first.process)["started"])
    except (FileNotFoundError, RlsweepError):  # claimed, and killed before its process was recorded; or damaged
        seconds = first.path.stat().st_mtime
    return round(seconds * 1000)


def _ended(run: RunFolder, attempt: Attempt, state: str) -> int:
    try:
        written = (attempt.path if state == "lost" else run.outcome).stat()
    except FileNotFoundError:  # the scheduler alone says how it ended
        written = attempt.path.stat()
    return round(written.st_mtime * 1000)


def _param(value: object) -> str:
    text = _text(value)
    if len(text) <= PARAM_LIMIT:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{len(text)} characters, SHA-256 {digest}...: see recipe.yaml"


def _text(value: object) -> str:
    """As the recipe's YAML has it: true, null."""
    return value if isinstance(value, str) else json.dumps(value)
