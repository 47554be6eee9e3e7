import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import rlsweep.track
from rlsweep.cli import planned
from rlsweep.launch import machine, scheduler
from rlsweep.launch.submit import submitting
from rlsweep.store import attempts, ledger
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


def test_runs_no_longer_asked_for_are_named_while_they_go_on(root: Path, call: Call) -> None:
    call("ablate", *LOSSES)
    fewer = ("plan", *TINY, "--vary", "loss=cispo")
    assert "no longer asked for" not in call(*fewer).stderr  # it has finished
    key = rows(call("plan", *LOSSES))[1][0]
    attempts.record_process(attempts.claim(Root(root).run(key)))
    result = call(*fewer)
    assert f"no longer asked for, left as they are: {key} (loss=dapo, seed 0)\n" in result.stderr
    found = json.loads(call(*fewer, "--json").stdout)["no_longer_asked_for"]
    assert found == [{"run_key": key, "variant": "loss=dapo", "seed": 0, "job": None}]


def test_what_mlflow_is_told_of_runs_in_a_queue_comes_from_the_scheduler(
    root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def sync(place: Root, name: str, say: Any, look: Any) -> None:
        told.extend(look(place.run(each.run_key)).state for each in ledger.wanted(place.sweep(name)))

    monkeypatch.setattr(rlsweep.track, "sync", sync)
    call("ablate", *TINY, *slurm)
    assert call("ablate", *TINY, "--seeds", "2").exit_code == 0
    assert told == ["pending", "finished"]


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
        ((*TINY, "--cluster", "nowhere"), "no such profile; shipped profiles: gres, h100, local, test"),
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


# With a profile for Slurm.


@pytest.fixture
def slurm(tmp_path: Path) -> tuple[str, str]:
    """A profile for Slurm."""
    path = tmp_path / "my site.yaml"
    path.write_text("executor: slurm\npartition: main\ntime: 0:30:00\nlimits: {retries: 1}\n")
    return "--cluster", str(path)


def test_the_plan_for_slurm_asks_the_site_and_writes_nothing(
    root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any
) -> None:
    fake_slurm.array_size(3)
    result = call("plan", *LOSSES, "--seeds", "2", *slurm, "--max-gpu-hours", "7")
    assert result.exit_code == 0 and [row[3] for row in rows(result)] == ["submit"] * 4
    assert (
        "GPU-hours: nobody knows how many are expected, at worst 4 (each run takes all of 0-00:30:00" in result.stderr
    )
    assert "in each of 2 attempts); 0 used so far" in result.stderr
    assert (
        "cap: no attempt starts once 7 GPU-hours are used; those at work then end at their time limit, at most 2 "
        in (result.stderr)
    )
    assert "2 jobs would be submitted; --emit DIR writes their scripts, --json holds them" in result.stderr
    assert "#SBATCH" not in result.output and not root.exists()
    assert call("ablate", *LOSSES, "--seeds", "2", *slurm, "--dry-run").stdout == result.stdout
    assert not any(line.startswith("sbatch") for line in fake_slurm.calls)


def test_the_scripts_of_a_plan_as_files_and_as_json(
    root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any, tmp_path: Path
) -> None:
    fake_slurm.array_size(3)
    folder = tmp_path / "scripts à voir"
    result = call("plan", *LOSSES, "--seeds", "2", *slurm, "--emit", str(folder), "--json")
    assert result.exit_code == 0 and result.stderr == ""
    found = json.loads(result.stdout)
    assert [each["runs"] for each in found["scripts"]] == [3, 1]
    names = [f"00{number}-{each['token']}.sh" for number, each in enumerate(found["scripts"], 1)]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert [(folder / name).read_text() for name in names] == [each["text"] for each in found["scripts"]]
    assert found["scripts"][0]["text"].startswith("#!/bin/bash\n") and found["problems"] != []
    assert found["cluster"] == "my site" and found["missing"] is None
    assert found["gpu_hours"] == {"used": 0, "expected": None, "worst": 4.0, "overshoot": 2.0, "most": None}
    full = call("plan", *LOSSES, *slurm, "--emit", str(folder))
    assert full.exit_code == 2 and "it has files in it; name a new or an empty folder" in full.stderr
    assert "2 scripts written to" in call("plan", *LOSSES, "--seeds", "2", *slurm, "--emit", f"{folder}/b").stderr
    assert not root.exists()


def test_the_first_script_follows_the_table_on_a_terminal(
    root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned, "on_terminal", lambda: True)
    fake_slurm.array_size(3)
    shown = call("plan", *LOSSES, "--seeds", "2", *slurm).stdout
    assert "the first of 2 scripts:\n\n#!/bin/bash\n" in shown and shown.count("#SBATCH --array=0-2%3\n") == 1


def test_a_plan_can_be_made_where_there_is_no_slurm(
    root: Path, call: Call, slurm: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    result = call("plan", *LOSSES, *slurm, "--emit", str(tmp_path / "scripts"))
    assert result.exit_code == 0 and len(list((tmp_path / "scripts").iterdir())) == 1
    assert "the site was not asked, its MaxArraySize is taken to be 1001" in result.stderr
    assert "can't run with profile my site: there is no sbatch here" in result.stderr
    result = call("ablate", *LOSSES, *slurm)
    assert result.exit_code == 1 and "there is no sbatch here" in result.stderr and not root.exists()


def test_ablate_submits_says_what_and_ends(root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any) -> None:
    fake_slurm.array_size(3)
    result = call("ablate", *LOSSES, "--seeds", "2", *slurm)
    assert result.exit_code == 0, result.output
    assert "sweep s: 4 submitted as jobs 100, 101\nnext: rlsweep status s\n" in result.stderr
    again = call("ablate", *LOSSES, "--seeds", "3", *slurm, "--cluster-set", "time=20")
    assert "sweep s: 2 submitted as job 102, 4 left as they are\n" in again.stderr
    assert [row[3] for row in rows(again)] == ["leave", "leave", "submit"] * 2
    assert "#SBATCH --time=20\n" in next(root.glob("sweeps/s/jobs/*/102_submission.sh")).read_text()


def test_runs_in_slurm_are_left_by_the_local_runner(
    root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any
) -> None:
    call("ablate", *TINY, *slurm)
    result = call("ablate", *TINY, "--seeds", "2")
    assert result.exit_code == 0, result.output
    assert "left to job 100: " in result.stderr and "sweep s: 1 pending, 1 finished" in result.stderr
    assert result.stderr.endswith("next: rlsweep status s\n")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("Invalid account specified", 2, "not submitted: 2 of 2 runs; mend the profile and run the same command again"),
        ("Job violates QOS policy (job submit limit)", 1, "may be submitted at a time: --cluster-set limits.array=N"),
        ("Requested time limit is too long", 1, "run the same command again to submit them\n"),
    ],
)
def test_what_sbatch_refuses_is_told_in_its_words(
    root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any, words: str, code: int, message: str
) -> None:
    fake_slurm.behave(f"sbatch refuse 1 {words}")
    result = call("ablate", *LOSSES, *slurm)
    assert result.exit_code == code and "Traceback" not in result.output
    assert words in result.stderr and message in result.stderr


def test_a_scheduler_that_is_down_is_exit_code_4(
    root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_WAITS_S", ())
    fake_slurm.behave("scontrol down")
    result = call("ablate", *LOSSES, *slurm)
    assert result.exit_code == 4 and "the scheduler can't be reached" in result.stderr and not root.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ablate", *TINY, "--prune"), "--prune cancels jobs of Slurm, and profile local is local"),
        (("plan", *TINY, "--emit", "x"), "--emit writes scripts for Slurm, and profile local is local"),
        (("ablate", *TINY, "--max-gpu-hours", "3"), "--max-gpu-hours is for Slurm, and profile local is local"),
        (("plan", *TINY, "--max-gpu-hours", "0"), "0"),
        (("plan", *TINY, "--cluster-set", "partition=x"), "partition"),
        (("plan", *TINY, "--cluster-set", "limits.paralell=2"), "limits.paralell"),
    ],
)
def test_what_only_slurm_knows_is_refused_for_the_local_profile(
    root: Path, call: Call, arguments: tuple[str, ...], message: str
) -> None:
    result = call(*arguments)
    assert result.exit_code == 2 and message in result.stderr and not root.exists()


def test_a_cap_below_what_was_measured_is_refused(
    root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any
) -> None:
    measured = ("--set", "execution.device_hours_per_rollout=0.01")  # 4 steps of 512 rollouts: 20 hours
    result = call("plan", *TINY, *measured, *slurm)
    assert "GPU-hours: about 20.5, at worst 1 " in result.stderr
    assert "more than the attempts of a run may take: raise the profile's time or limits.retries" in result.stderr
    result = call("ablate", *TINY, *measured, *slurm, "--max-gpu-hours", "20")
    assert result.exit_code == 2 and "is expected to take 20.48 more" in result.stderr
    assert fake_slurm.jobs == {} and list(root.rglob("*.*")) == []
    preview = call("plan", *TINY, *measured, *slurm, "--max-gpu-hours", "20")
    assert preview.exit_code == 0 and "would be submitted" not in preview.stderr
    last = preview.stderr.splitlines()[-1]
    assert last.startswith("would be refused: --max-gpu-hours 20: ") and "is expected to take 20.48 more" in last
    assert call("ablate", *TINY, *measured, *slurm, "--max-gpu-hours", "21").exit_code == 0


def test_a_cap_that_was_asked_for_stays_and_is_told(
    root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any
) -> None:
    assert call("ablate", *TINY, *slurm, "--max-gpu-hours", "7").exit_code == 0
    for command in ("plan", "ablate"):
        told = call(command, *TINY, *slurm).stderr
        assert "cap: no attempt starts once 7 GPU-hours are used (asked for earlier); those" in told
    found = json.loads(call("plan", *TINY, *slurm, "--json").stdout)
    assert found["gpu_hours"]["most"] == 7 and found["refused"] is None
    assert "once 9 GPU-hours are used; those" in call("plan", *TINY, *slurm, "--max-gpu-hours", "9").stderr


def test_a_plan_that_would_be_refused_says_so_and_not_that_it_would_be_submitted(
    root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any
) -> None:
    wrong = ("plan", *TINY, *slurm, "--cluster-set", "partition=nowhere")
    told = call(*wrong).stderr.splitlines()
    assert any(line.startswith("error: partition: ") for line in told)
    assert told[-1] == "would be refused: profile my site doesn't fit this site"
    assert json.loads(call(*wrong, "--json").stdout)["refused"] == "profile my site doesn't fit this site"


def test_the_plan_says_which_jobs_wait_for_others_and_what_a_dropped_one_may_take(
    root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any
) -> None:
    parallel = ("--cluster-set", "limits.parallel=1", "--max-gpu-hours", "7")
    result = call("plan", *TINY, "--seeds", "3", *slurm, *parallel, "--cluster-set", "limits.array=1")
    assert "3 jobs would be submitted (2 to start after others, for limits.parallel); --emit" in result.stderr
    call("ablate", *TINY, *slurm, *parallel)
    asked = ("plan", *TINY, "--seeds", "5,", *slurm, "--max-gpu-hours", "7")
    found = json.loads(call(*asked, "--cluster-set", "limits.parallel=1", "--json").stdout)
    assert [each["follows"] for each in found["scripts"]] == [True]  # the one that is dropped goes on
    assert found["gpu_hours"]["overshoot"] == 0.5
    assert json.loads(call(*asked, "--json").stdout)["gpu_hours"]["overshoot"] == 1.0


def test_ctrl_c_after_everything_was_submitted_asks_for_nothing_more(
    root: Path, call: Call, slurm: tuple[str, str], fake_slurm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ledger.append

    def interrupting(folder: Any, added: Any) -> None:
        real(folder, added)
        if added[0]["kind"] == "submitted":
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ledger, "append", interrupting)
    result = call("ablate", *TINY, *slurm)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "interrupted: nothing is left to submit"


def test_another_user_s_root_is_read_only(root: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("ablate", *TINY).exit_code == 0
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    result = call("ablate", *LOSSES)
    assert result.exit_code == 2 and "choose another with --root" in result.stderr
    assert f"the root {root} belongs to " in result.stderr
    assert call("plan", *LOSSES).exit_code == 0 and call("status", "s").exit_code == 0
