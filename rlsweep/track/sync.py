"""Bring MLflow up to the run folders: only what is missing is sent, and what was sent never changes."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlsweep.errors import RlsweepError, UsageError
from rlsweep.store import ledger
from rlsweep.store.claim import Claim, claimed
from rlsweep.store.layout import Root, RunFolder, SweepFolder
from rlsweep.store.ledger import Intent
from rlsweep.store.rows import read_bytes
from rlsweep.store.state import Seen, look
from rlsweep.track.child import NAME_LIMIT, STATUS, Child, read_child, shorten
from rlsweep.track.connect import connected
from rlsweep.track.points import Sent, batches
from rlsweep.track.search import all_runs
from rlsweep.track.where import Tracking, TrackingError, locate

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_PARENT = "mlflow.parentRunId"
_SENT = "rlsweep.sent"
_ARTIFACTS = "rlsweep.artifacts"
_SUPERSEDES = "rlsweep.supersedes"
_SUPERSEDED_BY = "rlsweep.superseded_by"


@dataclass
class SyncResult:
    """What a sync did. `store` is the address without credentials; `problems` are runs that couldn't be read."""

    sweep: str
    store: str
    skipped: bool = False
    """Another process is at it: nothing was done."""
    experiment: str | None = None
    parent: str | None = None
    runs: int = 0
    created: int = 0
    superseded: int = 0
    points: int = 0
    problems: list[str] = field(default_factory=list)


def sync(
    root: Root, sweep_name: str, *, say: Callable[[str], None], look: Callable[[RunFolder], Seen] = look
) -> SyncResult:
    """Send to MLflow what it lacks of a sweep: a parent run, and a child for each run that has begun.

    Sent are the rows covered by a complete checkpoint, all rows once a run has finished or diverged. What an MLflow run
    holds stands in its own tag, so that its store can be deleted and made again. The experiment is named after the
    recipe the sweep was first asked for with. `say` hears what a person should know. `look` tells what a run is doing:
    by default as its folder alone does, which knows nothing of a queue that it waits in.

    Raises UsageError for an unknown sweep, TrackingError where the store can't be reached, read or written.
    """
    folder = root.sweep(sweep_name)
    intents = _intents(folder)
    if not intents:
        valid = ", ".join(each.name for each in root.all_sweeps()) or f"none under {root.path} yet"
        raise UsageError(f"{sweep_name!r} is not a sweep; valid: {valid}")
    tracking = locate(root.path)
    result = SyncResult(sweep_name, tracking.shown)
    with claimed(root.path / "mlflow.sync") as claim:
        if claim is None:
            result.skipped = True
            say(
                f"another sync under {root.path} is running, so {sweep_name} was not sent; when it has ended: "
                f"rlsweep sync {sweep_name}{root.option}"
            )
            return result
        if tracking.notice:
            say(tracking.notice)
        children = list(_children(root, folder, intents, look, result, say))
        if children:
            with connected(tracking) as client:
                _Syncing(client, tracking, folder, result, claim, say).send(children, len(ledger.wanted(folder)))
    return result


def _intents(folder: SweepFolder) -> list[Intent]:
    """The newest intent of every run that was ever asked for: one no longer wanted still ends honestly."""
    return list({intent.run_key: intent for intent in ledger.intents(folder)}.values())


def _children(
    root: Root,
    folder: SweepFolder,
    intents: Sequence[Intent],
    look: Callable[[RunFolder], Seen],
    result: SyncResult,
    say: Callable[[str], None],
) -> Iterator[Child]:
    wanted = {intent.run_key for intent in ledger.wanted(folder)}
    for intent in intents:
        try:
            child = read_child(root.run(intent.run_key), intent, look, wanted=intent.run_key in wanted)
        except RlsweepError as error:  # the other runs are not to wait for this one
            problem = f"run {intent.run_key} is left out: {error}"
            result.problems.append(problem)
            say(problem)
            continue
        if child is not None:
            yield child


@dataclass
class _Syncing:
    """One sync of one sweep over an open client."""

    client: "MlflowClient"
    tracking: Tracking
    folder: SweepFolder
    result: SyncResult
    claim: Claim
    say: Callable[[str], None]

    def send(self, children: Sequence[Child], wanted: int) -> None:
        # Not after the recipe of a run: sweeps may share it, and its name is that of whoever asked for it last.
        name = ledger.recipe_name(self.folder) or self.folder.name
        experiment = self._experiment(name)
        self.result.experiment = name
        # The sweep's first intent tells it from a sweep of the same name under another root on the same server.
        first = read_bytes(self.folder.ledger).partition(b"\n")[0]
        identity = hashlib.sha256(self.folder.name.encode() + b"\n" + first).hexdigest()[:12]
        shared = {"rlsweep.sweep": self.folder.name, "rlsweep.sweep_id": identity}
        found = all_runs(self.client, [experiment], f"tags.`rlsweep.sweep_id` = '{identity}'")
        parent = self._parent(experiment, found, shared, children)
        self.result.parent = parent.info.run_id
        for child in children:
            shared_tags = {_PARENT: parent.info.run_id, **shared}
            runs = [run for run in found if run.data.tags.get("rlsweep.run_key") == child.key]
            try:
                self._send_child(experiment, child, {**child.tags, **shared_tags}, runs)
            except RlsweepError as error:
                problem = f"run {child.key}: {error}"
                self.result.problems.append(problem)
                self.say(problem)
            self.result.runs += 1
            self.claim.refresh()
        state = _sweep_state([child for child in children if child.tags["rlsweep.wanted"] == "true"], wanted)
        self._tag(parent, {"rlsweep.state": state})
        ends = [child.end for child in children if child.end is not None]
        self._end(parent, STATUS[state], max(ends, default=None))

    def _experiment(self, name: str) -> str:
        """Id of the experiment of a recipe, made if need be."""
        from mlflow.exceptions import MlflowException

        artifacts = None if self.tracking.artifacts is None else str(self.tracking.artifacts)
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            try:
                created = self.client.create_experiment(name, artifact_location=artifacts)
            except MlflowException:
                experiment = self.client.get_experiment_by_name(name)
                if experiment is None:  # not made by somebody else meanwhile: a real failure
                    raise
            else:
                return str(created)
        if experiment.lifecycle_stage == "deleted":
            raise TrackingError(
                f"MLflow store {self.tracking.shown}: the experiment {name!r} was deleted there; restore it, "
                f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`, or remove it for good"
            )
        if self.tracking.ours and experiment.artifact_location != artifacts:
            raise TrackingError(
                f"MLflow store {self.tracking.shown}: it was made when its artifacts lay in "
                f"{experiment.artifact_location}; move {self.tracking.file} away and run `rlsweep sync` again: "
                "all of it is made anew from the journals"
            )
        return str(experiment.experiment_id)

    def _parent(
        self, experiment: str, found: Sequence["Run"], shared: dict[str, str], children: Sequence[Child]
    ) -> "Run":
        tags = {**shared, "rlsweep.kind": "sweep"}
        parent = self._only([run for run in found if run.data.tags.get("rlsweep.kind") == "sweep"])
        if parent is None:
            start = min(child.start for child in children)
            parent = self.client.create_run(
                experiment, start_time=start, tags=tags, run_name=shorten(self.folder.name, NAME_LIMIT)
            )
        self._artifacts(parent, {"sweep.yaml": read_bytes(self.folder.spec).decode("utf-8", errors="replace")})
        return parent

    def _send_child(self, experiment: str, child: Child, tags: dict[str, str], runs: Sequence["Run"]) -> None:
        current = self._current(runs)
        if current is None:
            current = self._create(experiment, child, tags)
        elif not _sent(current).begins(child.journal):
            # Rows that were sent have been taken back since. Points can't be: what comes now is another history.
            old = current
            current = self._create(experiment, child, {**tags, _SUPERSEDES: old.info.run_id})
            self._retire(old, current.info.run_id)
            self.result.superseded += 1
            self.say(f"{child.name}: rolled back further than what was sent; a new MLflow run supersedes the old one")
        self._params(current, child.params)
        self._artifacts(current, child.artifacts)
        self._rows(current, child)
        # Last, so that a sync that is cut off leaves the run open rather than closed with rows missing.
        self._tag(current, tags)
        self._end(current, child.status, child.end)

    def _current(self, runs: Sequence["Run"]) -> "Run | None":
        """The MLflow run that stands for the run now; retires the one before where a sync died before it could."""
        by_old = {run.data.tags[_SUPERSEDES]: run.info.run_id for run in runs if _SUPERSEDES in run.data.tags}
        for run in runs:
            if run.info.run_id in by_old and _SUPERSEDED_BY not in run.data.tags:
                self._retire(run, by_old[run.info.run_id])
        return self._only(
            [run for run in runs if run.info.run_id not in by_old and _SUPERSEDED_BY not in run.data.tags]
        )

    def _only(self, same: Sequence["Run"]) -> "Run | None":
        """Of MLflow runs that stand for one thing, that which holds most; the others are deleted.

        A server that answers late is asked again by MLflow's client, and then makes the run again.
        """
        kept = max(same, key=lambda run: _sent(run).length, default=None)
        for run in same:
            if run is not kept:
                self.client.delete_run(run.info.run_id)
        return kept

    def _create(self, experiment: str, child: Child, tags: dict[str, str]) -> "Run":
        self.result.created += 1
        return self.client.create_run(
            experiment,
            start_time=child.start,
            # Its state becomes true with its rows; until then it has none.
            tags={**tags, "rlsweep.state": "arriving", _SENT: str(Sent.of(b"", 0))},
            run_name=shorten(child.name, NAME_LIMIT),
        )

    def _retire(self, old: "Run", new_id: str) -> None:
        """A superseded run that was open ends as killed; one that had ended keeps its end."""
        if old.info.status == "RUNNING":
            self._end(old, "KILLED", None)
        self._tag(old, {"rlsweep.state": "superseded", _SUPERSEDED_BY: new_id})

    def _params(self, run: "Run", params: dict[str, str]) -> None:
        from mlflow.entities import Param

        missing = [Param(name, value) for name, value in params.items() if name not in run.data.params]
        if missing:
            self.client.log_batch(run.info.run_id, params=missing)

    def _artifacts(self, run: "Run", artifacts: dict[str, str]) -> None:
        digests = {name: hashlib.sha256(text.encode()).hexdigest()[:12] for name, text in artifacts.items()}
        sent = json.loads(run.data.tags.get(_ARTIFACTS, "{}"))
        for name, text in artifacts.items():
            if sent.get(name) != digests[name]:
                self.client.log_text(run.info.run_id, text, name)
        self._tag(run, {_ARTIFACTS: json.dumps(digests)})

    def _rows(self, run: "Run", child: Child) -> None:
        """The rows that are new, each batch with the tag that says how far it reaches.

        MLflow stores a batch's points before its tags. Cut off in between, the batch is sent again, and MLflow keeps
        one of two identical points.
        """
        from mlflow.entities import Metric, RunTag

        for batch, reached in batches(child.journal, _sent(run).length, child.covered):
            metrics = [Metric(point.name, point.value, point.timestamp, point.step) for point in batch]
            tag = RunTag(_SENT, str(Sent.of(child.journal, reached)))
            self.client.log_batch(run.info.run_id, metrics=metrics, tags=[tag])
            self.result.points += len(metrics)

    def _tag(self, run: "Run", tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        changed = [RunTag(name, value) for name, value in tags.items() if run.data.tags.get(name) != value]
        if changed:
            self.client.log_batch(run.info.run_id, tags=changed)

    def _end(self, run: "Run", status: str, end: int | None) -> None:
        if status == "RUNNING":
            if run.info.status != status:
                self.client.update_run(run.info.run_id, status=status)
        elif run.info.status != status or (end is not None and run.info.end_time != end):
            self.client.set_terminated(run.info.run_id, status=status, end_time=end)


def _sent(run: "Run") -> Sent:
    tag = run.data.tags.get(_SENT)
    return Sent.read(tag) if tag else Sent.of(b"", 0)


def _sweep_state(children: Sequence[Child], wanted: int) -> str:
    """Of the sweep: open while a run is; finished when all that is wanted is."""
    states = [child.state for child in children]
    if any(STATUS[state] == "RUNNING" for state in states):
        return "running"
    if any(STATUS[state] == "FAILED" for state in states):
        return "failed"
    return "finished" if states and len(states) == wanted and set(states) == {"finished"} else "interrupted"
