import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import rlsweep.track
from rlsweep.launch import machine
from rlsweep.launch.submit import submitting
from rlsweep.store.layout import Root

Call = Callable[..., Result]
TINY = ("scalerl", "--scale", "tiny", "--set", "budget.steps=4", "--name", "s")
LOSSES = (*TINY, "--vary", "loss=cispo,dapo")


def rows(result: Result) -> list[list[str]]:
    return [line.split("\t") for line in result.stdout.splitlines()]


def test_the_plan_is_a_row_a_run_and_writes_nothing(root: Path, call: Call) -> None:
    result = call("plan", *LOSSES, "--seeds", "2")
    assert result.exit_code == 0
    assert [(row[1], row[2], row[3], row[4], row[7]) for row in rows(result)] == [
        ("loss=cispo", "0", "submit", "4", "new"),
        ("loss=cispo", "1", "submit", "4", "new"),
        ("loss=dapo", "0", "submit", "4", "new"),
        ("loss=dapo", "1", "submit", "4", "new"),
    ]
    assert all(len(row[0]) == 12 and row[5].endswith(" FLOP") and row[6].endswith(" MB") for row in rows(result))
    assert "4 to submit" in result.stderr and "compute: at most " in result.stderr
    assert "disk: at most " in result.stderr
    assert not root.exists()
    assert call("ablate", *LOSSES, "--seeds", "2", "--dry-run").stdout == result.stdout
    assert not root.exists()


def test_the_plan_as_json_is_one_document(root: Path, call: Call) -> None:
    result = call("plan", *LOSSES, "--json")
    assert result.exit_code == 0 and result.stderr == ""
    found = json.loads(result.stdout)
    assert found["sweep"] == "s" and found["recipe"] == "scalerl" and found["scale"] == "tiny"
    assert found["missing"] is None and found["no_longer_asked_for"] == []
    base, dapo = found["runs"]
    assert base["difference"] == {} and dapo["difference"]["loss.type"] == "dapo"
    assert base["compute"]["rollouts"] == (4 + 8) * 64 * 8 and base["device_hours"] is None
    assert found["disk"] == {name: 2 * size for name, size in base["disk"].items()}
    assert base["disk"]["running"] > base["disk"]["finished"] > base["disk"]["collected"]
    assert found["compute"]["rollouts"] == 2 * base["compute"]["rollouts"] and found["device_hours"] is None
    assert json.loads(call("ablate", *LOSSES, "--dry-run", "--json").stdout) == found
    assert call("ablate", *LOSSES, "--json").exit_code == 2


def test_measured_device_hours_are_an_expectation_and_no_bound(root: Path, call: Call) -> None:
    result = call("plan", "scalerl", "--vary", "batch.prompts=48,96")
    assert [row[5] for row in rows(result)] == ["about 15,600 device-hours", "about 31,200 device-hours"]
    assert "compute: about 46,800 device-hours; at most " in result.stderr
    found = json.loads(call("plan", "scalerl", "--json").stdout)
    assert round(found["device_hours"], -2) == round(found["runs"][0]["device_hours"], -2) == 15_600
    assert "device_hours" not in found["compute"]


def test_the_disk_of_a_model_that_nobody_has_measured_is_not_guessed(root: Path, call: Call) -> None:
    result = call(
        "plan", "scalerl"
    )  # two checkpoints and one being written, 12 bytes for each of 8.19e9 parameters, and waiting rollouts
    assert [row[6] for row in rows(result)] == ["301 GB"]
    result = call("plan", "scalerl", "--set", "execution.parameters=null")
    assert [row[6] for row in rows(result)] == ["-"] and "disk: not known" in result.stderr


def test_a_second_ablate_of_a_sweep_is_refused_in_one_line_and_writes_nothing(root: Path, call: Call) -> None:
    with submitting(Root(root), "s"):
        before = sorted(root.rglob("*"))
        result = call("ablate", *LOSSES)
        assert result.exit_code == 1 and sorted(root.rglob("*")) == before
        last = result.stderr.splitlines()[-1]
        assert last.startswith(f"rlsweep: sweep s in {root} is being worked on by pid {os.getpid()} on host ")
        assert last.endswith("rlsweep status s")
        assert call("plan", *LOSSES).exit_code == 0
        assert call("ablate", *LOSSES, "--name", "t").exit_code == 0  # the same runs
    assert [row[3] for row in rows(call("ablate", *LOSSES))] == ["skip", "skip"]


def test_ablate_trains_syncs_and_names_the_report(root: Path, call: Call) -> None:
    result = call("ablate", *LOSSES)
    assert result.exit_code == 0, result.output
    assert "sweep s: 2 finished" in result.stderr and "synced s" in result.stderr
    assert result.stderr.rstrip().endswith("next: rlsweep report s")
    again = call("ablate", *LOSSES)
    assert [(row[3], row[4], row[5], row[7]) for row in rows(again)] == [("skip", "0", "-", "finished at step 4")] * 2
    more = call("plan", *LOSSES, "--set", "budget.steps=6")
    assert [(row[3], row[4], row[7]) for row in rows(more)] == [
        ("continue", "2", "budget raised from 4 to 6 steps")
    ] * 2


def test_a_failed_run_is_told_with_its_log_and_the_exit_code(
    root: Path, call: Call, behave: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RLSWEEP_ROOT")  # else the commands that are named need no --root
    key = rows(call("plan", *LOSSES, "--root", str(root)))[1][0]
    behave(f"{key} crash")
    result = call("ablate", *LOSSES, "--root", str(root))
    assert result.exit_code == 3
    assert f"run {key} (loss=dapo, seed 0) failed: exit code 1: ValueError: no such thing" in result.stderr
    assert f"see: rlsweep logs {key} --root '{root}'" in result.stderr
    assert "sweep s: 1 finished, 1 failed" in result.stderr
    assert f"next: rlsweep report s --root '{root}'" in result.stderr


def test_mlflow_failing_is_a_warning(root: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no database")

    monkeypatch.setattr(rlsweep.track, "sync", fail)
    result = call("ablate", *TINY)
    assert result.exit_code == 0
    assert "warning: MLflow was not updated: no database" in result.stderr and "1 finished" in result.stderr


def test_runs_no_longer_asked_for_are_named_and_left(root: Path, call: Call) -> None:
    call("ablate", *LOSSES)
    result = call("plan", *TINY, "--vary", "loss=cispo")
    assert "no longer asked for, left as they are: " in result.stderr and "(loss=dapo, seed 0)" in result.stderr
    found = json.loads(call("plan", *TINY, "--json").stdout)["no_longer_asked_for"]
    assert [(each["variant"], each["seed"]) for each in found] == [("loss=dapo", 0)]


def test_a_recipe_too_large_for_this_machine_is_planned_and_refused_in_one_line(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_has_gpu", lambda: False)
    monkeypatch.setattr(machine, "_has_slurm", lambda: False)
    planned = call("plan", "scalerl")
    assert planned.exit_code == 0 and "there is neither a GPU nor Slurm here" in planned.stderr
    by_hand = ("scalerl", "--set", "execution.engine=local", "--set", "execution.device=cpu")
    assert "this version has no task 'math'; try --scale tiny" in call("plan", *by_hand).stderr
    assert json.loads(call("plan", *by_hand, "--json").stdout)["missing"].endswith("try --scale tiny")
    result = call("ablate", "scalerl")
    assert result.exit_code == 1 and result.stdout == planned.stdout
    last = result.stderr.splitlines()[-1]
    assert last.startswith("rlsweep: recipe 'scalerl' can't run on this machine: there is neither a GPU nor Slurm here")
    assert last.endswith("try --scale tiny")
    assert not root.exists()


def test_a_shipped_sweep_needs_no_recipe(root: Path, call: Call) -> None:
    result = call("plan", "--sweep", "loss", "--scale", "tiny")
    assert sorted(row[1] for row in rows(result)) == ["loss=cispo", "loss=dapo", "loss=gspo"]
    result = call("plan")
    assert result.exit_code == 2 and "no recipe; give its file or a shipped name: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("scalerI",), "no such recipe"),
        ((*TINY, "--vary", "loss=ppo"), "loss"),
        ((*TINY, "--vary", "loss"), "loss"),
        ((*TINY, "--set", "optimizer.lrr=1"), "optimizer.lrr"),
        ((*TINY, "--cluster", "nowhere"), "no such profile; shipped profiles: local"),
        ((*TINY, "--leave-two-out"), "No such option"),
        ((*TINY, "--name", "../x"), "no name for a sweep"),
    ],
)
def test_mistakes_are_usage_errors_before_anything_is_written(
    root: Path, call: Call, arguments: tuple[str, ...], message: str
) -> None:
    for command in ("plan", "ablate"):
        result = call(command, *arguments)
        assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output
    assert not root.exists()


def test_a_root_that_is_a_file_or_cannot_be_written_is_refused(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.write_text("a file")
    result = call("ablate", *TINY)
    assert result.exit_code == 2 and "is not a folder; choose another with --root" in result.stderr
    root.unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    result = call("ablate", *TINY)
    assert result.exit_code == 2 and "can't be written to" in result.stderr and not root.exists()
    assert call("plan", *TINY).exit_code == 0
