"""slurm/one_machine.py: a cluster comes up, its nodes fail and return, and nothing of it is left."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slurm
SCRIPT = Path(__file__).parents[2] / "slurm" / "one_machine.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_machine", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


one_machine = _load()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    cluster = one_machine.up(tmp_path_factory.mktemp("slurm") / f"with spaces, é, and {'long ' * 20}", accounting=False)
    yield cluster
    cluster.down()


def _job(cluster: Any, job: str, fields: str = "%T %N") -> str:
    return str(cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", fields)).strip()


def _until(done: Any, seconds: float = 40) -> None:
    assert one_machine.wait_until(done, seconds)


def _submit(cluster: Any, *options: str) -> str:
    return str(cluster.run("sbatch", "--parsable", "--output=/dev/null", *options)).strip()


def test_a_daemon_is_waited_for_while_a_busy_machine_shows_no_sign_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process writes its number late, and has no command line in the moment in which it becomes another program."""
    (tmp_path / "run").mkdir()
    (tmp_path / "log").mkdir()
    cluster = one_machine.Cluster(tmp_path, str(tmp_path), False, [], 1)
    script = tmp_path / "late.sh"
    script.write_text(f"sleep 7; echo 12 > {tmp_path}/run/slurmctld")
    monkeypatch.setattr(cluster, "_command", lambda name: ["true"])
    monkeypatch.setattr(one_machine.subprocess, "run", lambda *a, **k: subprocess.Popen(["sh", str(script)]))
    cluster._start("slurmctld")
    assert (tmp_path / "run" / "slurmctld").read_text() == "12\n"
    seen = iter([0, 0, 0])
    monkeypatch.setattr(cluster, "_pid", lambda name: next(seen, 12))
    asked = iter([False, False])
    cluster._await("slurmctld", lambda: next(asked, True))


def test_nodes_have_names_of_their_own(cluster: Any) -> None:
    assert cluster.run("sinfo", "-h", "-p", "main", "-o", "%D %T").split() == ["4", "idle"]
    assert sorted(cluster.run("srun", "-N2", "hostname").split()) == ["n1", "n2"]
    resolve = "import socket; print(socket.gethostbyname('n3'))"
    assert cluster.run("srun", "-N1", sys.executable, "-c", resolve).strip() == "127.0.0.1"


def test_ports_are_closed_to_other_machines(cluster: Any) -> None:
    listening = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        address, port = local.split(":")
        if state == "0A":  # listen
            listening[int(port, 16)] = socket.inet_ntoa(bytes.fromhex(address)[::-1])
    ports = [cluster.port, *(cluster.node_port(node) for node in one_machine.NODES)]
    assert [listening[port] for port in ports] == ["127.0.0.1"] * 5


def test_up_again_changes_nothing_and_starts_what_died(cluster: Any) -> None:
    before = cluster.pids()
    assert one_machine.up(cluster.directory, accounting=False).pids() == before
    os.kill(before["n2"], signal.SIGKILL)
    _until(lambda: "n2" not in cluster.pids())
    after = one_machine.up(cluster.directory, accounting=False).pids()
    assert set(after) == set(before) and after.pop("n2") != before.pop("n2") and after == before


def test_a_job_outlives_its_controller_and_its_node(cluster: Any) -> None:
    job = _submit(cluster, "--wrap", "setsid sleep 1234 & exec sleep 1234")
    _until(lambda: _job(cluster, job).startswith("RUNNING"))
    cluster.stop_controller()
    assert "slurmctld" not in cluster.pids()
    cluster.start_controller()
    node = _job(cluster, job).removeprefix("RUNNING ")
    cluster.kill_node(node)
    assert not list(cluster._processes(node)) and node not in cluster.pids()
    _until(lambda: {"Restarts=1", "JobState=RUNNING"} <= set(cluster.run("scontrol", "show", "job", job).split()), 60)
    assert _job(cluster, job) != f"RUNNING {node}"
    cluster.start_node(node)
    assert cluster.run("srun", "-w", node, "hostname").strip() == node
    cluster.run("scancel", job)


def test_a_requeued_job_starts_within_seconds(cluster: Any) -> None:
    job = _submit(cluster, "--wrap", "exec sleep 1234")
    _until(lambda: _job(cluster, job).startswith("RUNNING"))
    cluster.run("scontrol", "requeue", job)
    _until(lambda: _job(cluster, job).startswith("PENDING"))
    _until(lambda: _job(cluster, job).startswith("RUNNING"), 20)
    cluster.run("scancel", job)


def test_a_parameter_of_the_running_cluster_changes(cluster: Any) -> None:
    for value, shown in (("preempt_send_user_signal", "preempt_send_user_signal"), (None, "(null)")):
        cluster.set_parameter("SlurmctldParameters", value)
        lines = cluster.run("scontrol", "show", "config").splitlines()
        assert [line.split()[-1] for line in lines if line.startswith("SlurmctldParameters")] == [shown]


def test_down_leaves_nothing(tmp_path: Path) -> None:
    cluster = one_machine.up(tmp_path, accounting=False)
    _submit(cluster, "-N2", "--wrap", "setsid sleep 1234 & exec sleep 1234")
    _until(lambda: "sleep 1234" in " ".join(map(one_machine.cmdline, cluster._processes("n1"))))
    link = cluster.link
    cluster.down()
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and link in one_machine.cmdline(int(pid))]
    assert not [node for node in one_machine.NODES if list(cluster._processes(node))]
    assert not Path(link).parent.exists() and set(os.listdir(tmp_path)) == {".gitignore", "log"}
    down = [sys.executable, str(SCRIPT), "down", str(tmp_path)]
    assert subprocess.run(down, check=False).returncode == 0


def test_after_a_power_cut_it_comes_up_and_ends_no_other_process(tmp_path: Path) -> None:
    cluster = one_machine.up(tmp_path, accounting=False)
    for pid in cluster.pids().values():
        os.kill(pid, signal.SIGKILL)
    _until(lambda: not cluster.pids())
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / "run" / "slurmctld").write_text(f"{other.pid}\n")
        (tmp_path / "run" / "n1").write_text(f"{other.pid}\n")
        again = one_machine.up(tmp_path, accounting=False)
        assert set(again.pids()) == set(again.names()) and again.link != cluster.link
        again.down()
        time.sleep(0.2)
        assert other.poll() is None
        other.kill()


def test_another_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(one_machine.Problem, match="not empty"):
        one_machine.up(tmp_path, accounting=False)
    assert os.listdir(tmp_path) == ["mine"]


def test_what_does_not_start_is_named_and_the_rest_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {**one_machine.CONFIGURATION, "cgroup.conf": "Nonsense=1\n"}
    monkeypatch.setattr(one_machine, "CONFIGURATION", broken)
    with pytest.raises(one_machine.Problem, match=r"(?s)slurmctld did not start; .*Nonsense"):
        one_machine.up(tmp_path, accounting=False)
    assert set(os.listdir(tmp_path)) == {".gitignore", "log"}
