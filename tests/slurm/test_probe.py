"""`rlsweep cluster probe` on the real scheduler: two nodes where all is well, and nodes where something breaks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlsweep.store.layout import Root

pytestmark = pytest.mark.slurm

CHECKS = ["interpreter", "root", "nodes", "clock", "space", "limits", "home", "scontrol", "torch", "collective"]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "dossier à moi")


def command(root: Root, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "rlsweep", "cluster", "probe", "test", "--root", str(root.path), *arguments]


def probe(root: Root, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(root, *arguments), capture_output=True, text=True, timeout=280)


def told(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_two_nodes_on_which_all_is_well(root: Root, models: Path, model_folder: str) -> None:
    root.path.mkdir()
    root.models.symlink_to(models)
    done = probe(root, "--nodes", "2", "--recipe", "scalerl", "--scale", "tiny", "--json")
    found = told(done)
    verdicts = {(node["node"], each["check"]): each for node in found["nodes"] for each in node["findings"]}
    assert [key for key, each in verdicts.items() if each["verdict"] != "ok"] == [], done.stdout
    assert sorted({node for node, _ in verdicts}) == sorted(node["node"] for node in found["nodes"])
    assert [each["check"] for each in found["nodes"][0]["findings"]] == [*CHECKS, "vllm", "load"]
    texts = [each["text"] for each in verdicts.values()]
    assert sum("50 of 50 folders made by exactly one node" in text for text in texts) == 2
    assert sum("2 processes summed a tensor with gloo, met at" in text for text in texts) == 2
    assert sum("can be put back in the queue from here" in text for text in texts) == 2
    assert done.returncode == 0 and found["state"] == "COMPLETED"
    left = subprocess.run(["squeue", "--noheader", f"--job={found['job']}"], capture_output=True, text=True).stdout
    assert " PD " not in left


def test_a_setup_line_that_fails_is_shown(root: Root) -> None:
    done = probe(root, "--cluster-set", "setup=[module load cuda]")
    assert done.returncode == 1
    assert "it said: rlsweep: setup line 1 failed: module load cuda" in done.stdout
    assert "module: command not found" in done.stderr


@pytest.mark.parametrize(
    ("interpreter", "words"),
    [
        ("/nowhere/python", "/nowhere/python: not found; the job's interpreter must exist on the node"),
        (f"{sys.executable} -I -S", "No module named"),
    ],
)
def test_an_interpreter_that_does_not_work_is_shown_for_each_node(root: Root, interpreter: str, words: str) -> None:
    done = probe(root, "--nodes", "2", "--cluster-set", f"interpreter={interpreter}")
    assert done.returncode == 1
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[1:3] for row in rows] == [["report", "failed"]] * 2
    assert len({row[0] for row in rows}) == 2 and all(row[0].startswith("n") for row in rows)
    assert all(words in row[3] for row in rows), done.stdout


def test_a_torch_that_can_not_be_imported_hides_nothing_else(root: Root, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libcudart.so: cannot open shared object file')")
    done = probe(root, "--json", "--cluster-set", f"environment.PYTHONPATH={broken.parent}")
    assert done.returncode == 1
    verdicts = {each["check"]: each for each in told(done)["nodes"][0]["findings"]}
    assert [name for name, each in verdicts.items() if each["verdict"] == "failed"] == ["torch"]
    assert "libcudart.so: cannot open shared object file" in verdicts["torch"]["text"]
    assert list(verdicts)[: len(CHECKS)] == CHECKS


def test_a_root_that_a_node_can_not_write_to_is_told(root: Root, tmp_path: Path) -> None:
    """The root is mounted read-only for the task; Slurm itself still writes the task's output."""
    root.path.mkdir()
    mount = f"mount --bind '{root.path}' '{root.path}' && mount -o remount,ro,bind '{root.path}'"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("mounting isn't allowed here")
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec unshare -m sh -c "$MOUNT && exec {sys.executable} \\"\\$@\\"" _ "$@"\n')
    script.chmod(0o755)
    arguments = command(root, "--json", "--cluster-set", f"interpreter={script}")
    done = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "MOUNT": mount}, timeout=280)
    assert done.returncode == 1
    verdicts = {each["check"]: each for each in told(done)["nodes"][0]["findings"]}
    assert "is read-only there; choose a root that compute nodes write to" in verdicts["root"]["text"]
    assert {name for name, each in verdicts.items() if each["verdict"] == "failed"} == {"root", "clock", "report"}
    assert "could not be written to" in verdicts["report"]["text"]


def test_ctrl_c_cancels_the_job(root: Root) -> None:
    with subprocess.Popen(
        command(root, "--cluster-set", "setup=[sleep 300]"), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        job = first.split()[1]
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(60) == 130, said
    assert f"rlsweep: stopped, and job {job} cancelled" in said
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        asked = ["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"]
        state = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        if state == "CANCELLED":
            break
        time.sleep(1)
    assert state == "CANCELLED"


def test_a_scheduler_that_can_not_be_reached_is_exit_code_4(root: Root, tmp_path: Path) -> None:
    configuration = tmp_path / "slurm.conf"
    configuration.write_text(Path(os.environ["SLURM_CONF"]).read_text() + "\nSlurmctldPort=1\n")
    lines = [line for line in configuration.read_text().splitlines() if not line.startswith("SlurmctldPort=")]
    configuration.write_text("\n".join([*lines, "SlurmctldPort=9", ""]))
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    done = subprocess.run(command(root), capture_output=True, text=True, env=environment, timeout=280)
    assert (done.returncode, done.stdout) == (4, "")
    assert "the scheduler can't be reached" in done.stderr and "Traceback" not in done.stderr
