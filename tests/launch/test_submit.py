import os
import re
import socket
from collections.abc import Callable

import pytest
import yaml

from rlsweep.errors import RlsweepError
from rlsweep.launch.plan import decide
from rlsweep.launch.submit import submitting, write_down
from rlsweep.recipe.resolved import read_resolved
from rlsweep.store import ledger
from rlsweep.store.files import read_json, write_json
from rlsweep.store.layout import Root
from rlsweep.sweep.expand import Sweep, expand

Make = Callable[..., Sweep]


def test_what_is_wanted_is_on_disk_before_anything_starts(root: Root, sweep: Make) -> None:
    wanted = sweep()
    folder = write_down(wanted, root, decide(wanted, root))
    assert folder == root.sweep("s")
    assert expand(**yaml.safe_load(folder.spec.read_text())).runs == wanted.runs
    intents = ledger.wanted(folder)
    assert [(each.run_key, each.variant, each.seed, each.steps) for each in intents] == [
        (run.key, run.variant, 0, 4) for run in wanted.runs
    ]
    assert ledger.recipe_name(folder) == "scalerl"
    assert [each.difference for each in intents] == [dict(run.difference) for run in wanted.runs]
    assert [read_resolved(root.run(run.key).recipe) for run in wanted.runs] == [run.recipe for run in wanted.runs]


def test_submitting_again_writes_nothing(root: Root, sweep: Make) -> None:
    folder = write_down(sweep(), root, decide(sweep(), root))
    before = {path: path.stat().st_mtime_ns for path in root.path.rglob("*")}
    write_down(sweep(), root, decide(sweep(), root))
    assert {path: path.stat().st_mtime_ns for path in root.path.rglob("*")} == before
    assert len(ledger.read(folder)) == 2


def test_a_raised_budget_is_a_new_intent_and_reaches_the_recipe(root: Root, sweep: Make) -> None:
    write_down(sweep(), root, decide(sweep(), root))
    more = sweep(steps=9)
    folder = write_down(more, root, decide(more, root))
    assert len(ledger.read(folder)) == 4 and [each.steps for each in ledger.wanted(folder)] == [9, 9]
    assert read_resolved(root.run(more.runs[0].key).recipe).budget.steps == 9


def test_adding_a_value_adds_its_run_only(root: Root, sweep: Make) -> None:
    write_down(sweep(), root, decide(sweep(), root))
    more = sweep(vary="loss=cispo,dapo,gspo")
    folder = write_down(more, root, decide(more, root))
    assert [row["variant"] for row in ledger.read(folder)] == ["loss=cispo", "loss=dapo", "loss=gspo"]


def test_a_root_without_permission_is_refused_before_anything_is_written(
    root: Root, sweep: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(RlsweepError, match="can't be written to"), submitting(root, "s"):
        pass
    assert not root.path.exists()


def test_a_sweep_has_one_submitter_at_a_time_and_others_have_theirs(root: Root) -> None:
    with submitting(root, "s"):
        before = sorted(root.path.rglob("*"))
        who = rf"pid {os.getpid()} on host {re.escape(socket.gethostname())} since 2\d\d\d-"
        message = rf"sweep s in .* is being worked on by {who}.*: rlsweep status s --root '{root.path}'$"
        with pytest.raises(RlsweepError, match=message), submitting(root, "s"):
            pass
        assert sorted(root.path.rglob("*")) == before
        with submitting(root, "t"):
            pass
    with submitting(root, "s"):
        pass
    assert sorted(path.name for path in root.path.rglob("*")) == ["s", "sweeps", "t"]


def test_a_submitter_on_another_host_is_told_with_when_it_is_taken_for_dead(root: Root) -> None:
    with submitting(root, "s"):
        path = root.sweep("s").path / "submitter" / "holder.json"
        write_json(path, {**read_json(path), "host": "elsewhere"})
        with pytest.raises(RlsweepError, match=r"on host elsewhere since .* dead after an hour"), submitting(root, "s"):
            pass
