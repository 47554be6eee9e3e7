"""What MLflow holds after a sync, after two, after a crash, a roll-back and a lost database."""

import math
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from rlsweep.errors import UsageError
from rlsweep.store.layout import RunFolder
from rlsweep.store.metrics import METRICS
from rlsweep.store.state import Seen
from rlsweep.track import SyncResult, sync
from rlsweep.track.where import locate


def _sync(world: Any) -> SyncResult:
    said: list[str] = []
    result = sync(world.root, world.sweep, say=said.append)
    result.problems.sort()
    return result


def _client(world: Any) -> MlflowClient:
    return MlflowClient(tracking_uri=locate(world.root.path, {}).uri)


def _runs(world: Any, kind: str = "run") -> list[Run]:
    client = _client(world)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(ids, f"tags.`rlsweep.kind` = '{kind}'", order_by=["attributes.start_time ASC"])
    return sorted(found, key=lambda run: ("rlsweep.supersedes" in run.data.tags, run.info.run_name))


def _points(world: Any, run: Run) -> Counter[tuple[str, int, int, float]]:
    client = _client(world)
    return Counter(
        (name, point.step, point.timestamp, point.value)
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    )


def _artifact(world: Any, run: Run, name: str) -> str:
    return Path(_client(world).download_artifacts(run.info.run_id, name)).read_text()


def test_a_finished_run_is_all_there(world: Any) -> None:
    trainer = world.begin().evaluate().steps(3).evaluate().save().steps(2).end("finished")
    result = _sync(world)
    (run,), (parent,) = _runs(world), _runs(world, "sweep")
    # The second evaluation sends no clocks: its step's own row has them.
    assert result.points == 5 * 3 + 3 + 1
    points = _points(world, run)
    assert points.total() == result.points
    assert sum(name == "clock/flops" and step == 3 for name, step, *_ in points) == 1
    assert points["train/loss", 2, 1_700_000_000_500, 0.5] == 1
    assert points["evaluation/pass_rate", 0, 1_700_000_000_100, 7 / 28] == 1
    assert run.info.run_name == "base seed 0"
    assert (run.info.status, parent.info.status) == ("FINISHED", "FINISHED")
    assert parent.info.run_name == "tiny-loss"
    tags = run.data.tags
    assert tags["mlflow.parentRunId"] == parent.info.run_id
    assert tags["rlsweep.run_key"] == trainer.run.key
    assert tags["rlsweep.sweep"] == "tiny-loss"
    assert (tags["rlsweep.variant"], tags["rlsweep.state"], tags["rlsweep.attempt"]) == ("base", "finished", "1")
    assert (tags["mlflow.source.git.commit"], tags["rlsweep.git.dirty"]) == ("c0ffee", "true")
    assert (tags["rlsweep.host"], tags["rlsweep.package.torch"]) == ("node7", "2.13.0")
    assert tags["rlsweep.budget.steps"] == "20"
    assert run.data.params["loss.type"] == "cispo"
    assert run.data.params["model.layers"] == "2"
    assert not any(name.startswith(("budget", "execution", "name")) for name in run.data.params)
    assert _artifact(world, run, "recipe.yaml") == trainer.run.recipe.read_text()
    assert _artifact(world, run, "dirty.diff").endswith("+one line\n")
    assert "one line" not in _artifact(world, run, "provenance.json")
    assert _artifact(world, parent, "sweep.yaml") == "recipe: tiny\n"


def test_a_second_sync_sends_and_changes_nothing(world: Any) -> None:
    world.begin().steps(4).evaluate().save().end("finished")
    _sync(world)
    before = [(run.to_dictionary(), _points(world, run)) for run in _runs(world) + _runs(world, "sweep")]
    result = _sync(world)
    assert (result.points, result.created) == (0, 0)
    assert [(run.to_dictionary(), _points(world, run)) for run in _runs(world) + _runs(world, "sweep")] == before


def test_only_rows_under_a_checkpoint_are_sent_while_a_run_goes_on(world: Any) -> None:
    trainer = world.begin().steps(2)
    assert _sync(world).points == 0
    assert _runs(world)[0].info.status == "RUNNING"
    trainer.save().steps(3)
    assert _sync(world).points == 2 * 3
    trainer.save()
    assert _sync(world).points == 3 * 3
    assert _runs(world)[0].info.end_time is None
    assert _runs(world, "sweep")[0].info.status == "RUNNING"
    trainer.steps(1).end("finished")
    assert _sync(world).points == 3
    (run,) = _runs(world)
    assert run.info.status == "FINISHED"
    assert _points(world, run).total() == 6 * 3


@pytest.mark.parametrize(
    ("state", "status"),
    [("finished", "FINISHED"), ("diverged", "FAILED"), ("failed", "FAILED"), ("interrupted", "KILLED")],
)
def test_end_states_are_honest(world: Any, state: str, status: str) -> None:
    world.begin().steps(1).end(state, "because")
    _sync(world)
    (run,), (parent,) = _runs(world), _runs(world, "sweep")
    assert (run.info.status, run.data.tags["rlsweep.reason"]) == (status, "because")
    assert parent.info.status == status
    assert run.info.end_time is not None


def test_a_run_that_was_killed_ends_as_killed_with_what_its_checkpoint_covers(world: Any) -> None:
    world.begin().steps(2).save().steps(5).die()
    assert _sync(world).points == 2 * 3
    (run,) = _runs(world)
    assert (run.info.status, run.data.tags["rlsweep.state"]) == ("KILLED", "lost")


@pytest.mark.parametrize("state", ["failed", "interrupted"])
def test_a_run_that_may_go_on_keeps_back_what_a_resume_takes_back(world: Any, state: str) -> None:
    trainer = world.begin().steps(2).save().steps(5).end(state, "because")
    assert _sync(world).points == 2 * 3
    (run,) = _runs(world)
    assert run.info.end_time == round(trainer.run.outcome.stat().st_mtime * 1000)
    trainer.resume().steps(5).save().end("finished")
    result = _sync(world)
    assert (result.superseded, result.created, result.points) == (0, 0, 5 * 3)
    assert len(_runs(world)) == 1


def test_a_resumed_run_is_running_again_in_the_same_mlflow_run(world: Any) -> None:
    trainer = world.begin().steps(2).save().steps(5).die()
    _sync(world)
    trainer = trainer.resume()
    _sync(world)
    (run,) = _runs(world)
    assert (run.info.status, run.data.tags["rlsweep.attempt"]) == ("RUNNING", "2")
    trainer.steps(1).end("finished")
    _sync(world)
    (run,) = _runs(world)
    assert run.info.status == "FINISHED"
    assert _points(world, run).total() == 3 * 3


def test_a_run_rolled_back_further_gets_a_new_mlflow_run(world: Any) -> None:
    trainer = world.begin().steps(2).save().steps(2).end("diverged", "loss is nan")
    assert _sync(world).points == 4 * 3
    trainer = trainer.resume().steps(3)
    result = _sync(world)
    assert (result.superseded, result.created, result.points) == (1, 1, 2 * 3)
    old, new = _runs(world)
    assert new.data.tags["rlsweep.supersedes"] == old.info.run_id
    assert old.data.tags["rlsweep.superseded_by"] == new.info.run_id
    assert (old.info.status, old.data.tags["rlsweep.state"]) == ("FAILED", "superseded")
    assert new.info.status == "RUNNING"
    trainer.save().end("finished")
    assert _sync(world).created == 0
    old, new = _runs(world)
    assert _points(world, old).total() == 4 * 3
    assert sorted(step for name, step, _, _ in _points(world, new) if name == "train/loss") == [1, 2, 3, 4, 5]


def test_an_attempt_that_has_not_rolled_back_yet_supersedes_nothing(world: Any) -> None:
    trainer = world.begin().steps(2).save().steps(2).end("diverged")
    _sync(world)
    from rlsweep.store import attempts

    attempts.record_process(attempts.claim(trainer.run))
    result = _sync(world)
    assert (result.superseded, result.points) == (0, 0)
    assert _runs(world)[0].info.status == "RUNNING"


class _Crash(BaseException):
    """As SIGKILL would: no handler for errors sees it."""


def _crash_on(monkeypatch: pytest.MonkeyPatch, name: str, when: int, *, before: bool = True) -> None:
    """Let the `when`-th call of a method of MLflow's store die, before or after it did its work."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    real, calls = getattr(SqlAlchemyStore, name), iter(range(10_000))

    def crash(*args: Any, **named: Any) -> Any:
        now = next(calls) == when
        if now and before:
            raise _Crash
        result = real(*args, **named)
        if now:
            raise _Crash
        return result

    monkeypatch.setattr(SqlAlchemyStore, name, crash)


def test_a_crash_between_points_and_their_tag_doubles_nothing(world: Any) -> None:
    world.begin().steps(700, train__loss=math.nan).save().end("finished")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Crash):
        # log_batch stores a batch's points, then its tags: the tag never arrives.
        _crash_on(patch, "_log_model_metrics", 3)
        _sync(world)
    (run,) = _runs(world)
    sent = int(run.data.tags["rlsweep.sent"].split()[0])
    stored = _points_by_count(world, run)
    assert run.info.status == "RUNNING"
    assert stored > 0
    _sync(world)
    (run,) = _runs(world)
    assert int(run.data.tags["rlsweep.sent"].split()[0]) > sent
    assert _points_by_count(world, run) == 700 * 3
    assert run.info.status == "FINISHED"


def _points_by_count(world: Any, run: Run) -> int:
    """NaN is not equal to itself, so count."""
    client = _client(world)
    return sum(len(client.get_metric_history(run.info.run_id, name)) for name in run.data.metrics)


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("create_run", False),
        ("log_batch", True),
        ("log_batch", False),
        ("update_run_info", True),
        ("_log_params", True),
        ("_set_tags", True),
    ],
)
def test_a_crash_anywhere_is_mended_by_the_next_sync(world: Any, name: str, before: bool) -> None:
    trainer = world.begin().steps(2).save().steps(1).end("diverged")
    world.begin("loss=dapo").steps(2).end("finished")
    _sync(world)
    trainer.resume().steps(3).end("finished")
    for when in range(3):
        with pytest.MonkeyPatch.context() as patch, suppress(_Crash):
            _crash_on(patch, name, when, before=before)
            _sync(world)
    _sync(world)
    result = _sync(world)
    assert (result.created, result.points) == (0, 0)
    runs = [run for run in _runs(world) if run.data.tags["rlsweep.run_key"] == trainer.run.key]
    last = [run for run in runs if "rlsweep.superseded_by" not in run.data.tags]
    assert len(last) == 1
    assert last[0].info.status == "FINISHED"
    assert _points(world, last[0]).total() == 5 * 3
    assert last[0].data.params["loss.type"] == "cispo"
    old = [run for run in runs if run is not last[0]]
    assert {run.info.status for run in old} <= {"FAILED", "KILLED"}
    assert len(_runs(world, "sweep")) == 1


def test_a_deleted_database_is_made_again_from_the_folders(world: Any) -> None:
    world.begin().steps(4).evaluate().save().end("finished")
    world.begin("loss=dapo").steps(2).save().die()
    _sync(world)
    before = [_points(world, run) for run in _runs(world)]
    params = [run.data.params for run in _runs(world)]
    _reset_engines(world)
    for file in world.root.path.glob("mlflow.db*"):
        file.unlink()
    _sync(world)
    assert [_points(world, run) for run in _runs(world)] == before
    assert [run.data.params for run in _runs(world)] == params


def _reset_engines(world: Any) -> None:
    """A later sync is a new process; here MLflow would keep the deleted file open."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from mlflow.tracking._tracking_service.utils import _tracking_store_registry

    SqlAlchemyStore._engine_map.clear()
    _tracking_store_registry._get_store_with_resolved_uri.cache_clear()


def test_the_parent_follows_its_children(world: Any) -> None:
    base, dapo = world.begin().steps(1), world.begin("loss=dapo").steps(1)
    status = []
    for act in (lambda: base.end("finished"), lambda: dapo.end("failed"), lambda: dapo.resume().end("finished")):
        act()
        _sync(world)
        status.append(_runs(world, "sweep")[0].info.status)
    world.want("base", seed=1)
    _sync(world)
    status.append(_runs(world, "sweep")[0].info.status)
    assert status == ["RUNNING", "FAILED", "FINISHED", "KILLED"]


def test_a_run_that_is_no_longer_wanted_still_ends_and_says_so(world: Any) -> None:
    trainer = world.begin().steps(1)
    _sync(world)
    from rlsweep.store import ledger

    old = ledger.read(world.root.sweep(world.sweep))[0]
    ledger.append(world.root.sweep(world.sweep), [{**old, "run_key": "0" * 12, "variant_key": "1" * 12}])
    trainer.end("finished")
    _sync(world)
    (run,) = _runs(world)
    assert (run.info.status, run.data.tags["rlsweep.wanted"]) == ("FINISHED", "false")


def test_a_value_too_long_for_mlflow_is_named_not_cut(world: Any) -> None:
    from rlsweep.track.child import _param

    assert _param("x" * 6000) == "x" * 6000
    assert _param("x" * 6001).startswith("6001 characters, SHA-256 ")


def test_a_damaged_run_does_not_keep_the_others_back(world: Any) -> None:
    bad, good = world.begin(), world.begin("loss=dapo").steps(2).end("finished")
    bad.steps(3).end("finished")
    lines = bad.run.journal.read_bytes().splitlines(keepends=True)
    bad.run.journal.write_bytes(lines[0] + b'{"kind": "st\n' + lines[2])
    result = _sync(world)
    assert len(result.problems) == 1
    assert bad.run.key in result.problems[0]
    states = {run.data.tags["rlsweep.run_key"]: run.info.status for run in _runs(world)}
    assert states[good.run.key] == "FINISHED"


def test_a_torn_last_line_is_not_sent(world: Any) -> None:
    trainer = world.begin().steps(2).end("finished")
    with open(trainer.run.journal, "ab") as file:
        file.write(b'{"kind": "step", "st')
    assert _sync(world).points == 2 * 3
    assert _sync(world).points == 0


def test_sweeps_share_a_run_but_not_its_mlflow_run(world: Any) -> None:
    from dataclasses import replace

    other = replace(world, sweep="another")
    world.begin().steps(1).end("finished")
    other.want()
    _sync(world)
    _sync(other)
    assert sorted(run.data.tags["rlsweep.sweep"] for run in _runs(world)) == ["another", "tiny-loss"]


def test_a_sweep_stays_in_the_experiment_of_its_first_recipe(world: Any) -> None:
    """Recipes that differ in nothing but their name share runs, and a sweep may be asked for again with the other."""
    from dataclasses import replace

    trainer = world.begin().steps(1).save()
    assert _sync(world).experiment == "tiny"
    other = replace(world, sweep="another", recipe="twin")
    assert other.want().key == trainer.run.key
    assert "name: twin" in trainer.run.recipe.read_text()
    replace(world, recipe="twin").want(steps=30)
    trainer.steps(1).end("finished")
    result = _sync(world)
    assert (result.experiment, result.created, len(_runs(world, "sweep"))) == ("tiny", 0, 1)
    assert _sync(other).experiment == "twin"


def test_a_sweep_whose_recipe_was_not_noted_has_its_own_experiment(world: Any) -> None:
    world.begin().steps(1).end("finished")
    ledger = world.root.sweep(world.sweep).ledger
    ledger.write_text(ledger.read_text().replace('"recipe_name": "tiny", ', ""))
    assert _sync(world).experiment == "tiny-loss"


def test_an_unknown_sweep_is_a_usage_error_that_names_the_valid_ones(world: Any) -> None:
    world.begin()
    with pytest.raises(UsageError, match="'tiny' is not a sweep; valid: tiny-loss"):
        sync(world.root, "tiny", say=print)


def test_a_sweep_where_nothing_has_begun_sends_nothing(world: Any) -> None:
    world.want()
    assert _sync(world).parent is None


def test_every_metric_has_a_name_that_mlflow_takes() -> None:
    from mlflow.utils.validation import _validate_metric_name

    for name in METRICS:
        _validate_metric_name(name)


def test_nothing_is_printed_or_left_in_the_current_folder(
    world: Any, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    world.begin().steps(1).end("finished")
    _sync(world)
    assert capfd.readouterr() == ("", "")
    assert list(here.iterdir()) == []
    assert mlflow.active_run() is None


def test_a_run_that_waits_in_a_queue_stays_open(world: Any) -> None:
    """Saved at its time limit, and not yet started again: its folder alone would have it over."""
    trainer = world.begin().steps(2).save().steps(1).end("interrupted", "asked to stop; saved")

    def queued(run: RunFolder) -> Seen:
        return Seen("pending", "waits behind jobs of higher priority [Priority]", 3, trainer.attempt)

    result = sync(world.root, world.sweep, say=lambda text: None, look=queued)
    (run,), (parent,) = _runs(world), _runs(world, "sweep")
    assert (run.info.status, run.data.tags["rlsweep.state"], run.info.end_time) == ("RUNNING", "pending", None)
    assert result.points == 2 * 3 and parent.info.status == "RUNNING"
    _sync(world)  # nobody asks the scheduler
    assert _runs(world)[0].info.status == "KILLED"
    sync(world.root, world.sweep, say=lambda text: None, look=queued)
    assert _runs(world)[0].info.status == "RUNNING"


def test_a_run_of_which_the_scheduler_alone_knows_the_end_is_closed(world: Any) -> None:
    """Killed by the scheduler: there is no outcome."""
    trainer = world.begin().steps(2).save().die()

    def out_of_memory(run: RunFolder) -> Seen:
        return Seen("failed", "its job 7 ran out of memory", 0, trainer.attempt)

    sync(world.root, world.sweep, say=lambda text: None, look=out_of_memory)
    (run,) = _runs(world)
    assert (run.info.status, run.data.tags["rlsweep.reason"]) == ("FAILED", "its job 7 ran out of memory")
    assert run.info.end_time is not None
