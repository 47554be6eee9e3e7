"""The probe's waiting half: what it submits, what it makes of reports, and what it says where none come."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlsweep.errors import RlsweepError, SchedulerError, UsageError
from rlsweep.launch import probe as subject
from rlsweep.launch.cluster import Cluster, load_cluster
from rlsweep.launch.probe import Interrupted, Result, probe
from rlsweep.recipe.load import load_recipe
from rlsweep.store.layout import Root
from rlsweep.store.probes import Finding, ProbeFolder, Report, as_line, read_request, write_report

Play = Callable[[Callable[[ProbeFolder], None]], None]
WELL = (Finding("interpreter", "ok", "there"), Finding("torch", "ok", "computes"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_POLL_S", "_ASK_S", "_SELDOM_S", "_SETTLE_S", "_SILENT_S"):
        monkeypatch.setattr(subject, name, 0.05)


@pytest.fixture
def cluster() -> Cluster:
    return load_cluster("test", (), {})


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "dossier à moi")


@pytest.fixture
def play(root: Root, fake_slurm: Any) -> Play:
    """Do something to the probe's folder, as its nodes would, once its job was taken."""

    def later(act: Callable[[ProbeFolder], None]) -> None:
        def wait() -> None:
            deadline = time.monotonic() + 60
            while not list(root.path.glob("probes/*/job/*_submission.sh")) and time.monotonic() < deadline:
                time.sleep(0.02)
            act(ProbeFolder(next(root.path.glob("probes/*"))))

        threading.Thread(target=wait, daemon=True).start()

    return later


def run(cluster: Cluster, root: Root, nodes: int | None = None, said: list[str] | None = None) -> Result:
    return probe(cluster, root, nodes, None, (said if said is not None else []).append)


def test_what_all_nodes_reported_is_the_result(cluster: Cluster, root: Root, play: Play, fake_slurm: Any) -> None:
    bad = Finding("torch", "failed", "1 of 8 devices")

    def nodes(folder: ProbeFolder) -> None:
        write_report(folder, Report(0, "n1", "host-1", (), ("interpreter", "torch")))
        write_report(folder, Report(1, "n2", "host-2", (WELL[0], bad), ()))
        write_report(folder, Report(0, "n1", "host-1", WELL, ()))

    play(nodes)
    said: list[str] = []
    result = run(cluster, root, 2, said)
    assert [(each.node, each.host, each.findings) for each in result.nodes] == [
        ("n1", "host-1", WELL),
        ("n2", "host-2", (WELL[0], bad)),
    ]
    assert result.failed and result.log == () and result.state == "COMPLETED"
    assert said[0].startswith("job 100 submitted: 2 node(s), at most 10 minutes") and "probes/" in said[0]
    assert not any("scancel" in call for call in fake_slurm.calls)


def test_why_it_waits_is_said_once(cluster: Cluster, root: Root, play: Play) -> None:
    def nodes(folder: ProbeFolder) -> None:
        time.sleep(1)
        write_report(folder, Report(0, "n1", "host-1", WELL, ()))

    play(nodes)
    said: list[str] = []
    assert not run(cluster, root, 1, said).failed
    assert said[1:] == ["job 100 waits for nodes to become free [Resources]"]


def test_the_job_is_the_profiles_but_short(cluster: Cluster, root: Root, play: Play) -> None:
    scripts: list[str] = []

    def nodes(folder: ProbeFolder) -> None:
        scripts.append((folder.jobs / "100_submission.sh").read_text())
        write_report(folder, Report(0, "n1", "host-1", WELL, ()))

    play(nodes)
    run(load_cluster("test", ["time=120", "setup=[module load cuda]", "account=me"], {}), root)
    [text] = scripts
    lines = text.splitlines()
    assert {"#SBATCH --time=10", "#SBATCH --nodes=1", "#SBATCH --account=me", "#SBATCH --partition=main"} <= set(lines)
    assert "module load cuda" in text and "HF_HUB_OFFLINE=1" in text
    assert "#SBATCH --hold" not in lines


@pytest.mark.parametrize(("nodes", "expected"), [(None, 10), (2, 2)])
def test_by_default_it_is_as_large_as_a_run_of_the_recipe(
    root: Root, play: Play, nodes: int | None, expected: int
) -> None:
    recipe = load_recipe("scalerl")
    requests = []

    def act(folder: ProbeFolder) -> None:
        requests.append(read_request(folder))
        assert "name: scalerl" in folder.recipe.read_text()
        for rank in range(expected):
            write_report(folder, Report(rank, f"n{rank}", f"h{rank}", WELL, ()))

    play(act)
    result = probe(load_cluster("h100", ["account=me"], {}), root, nodes, recipe, lambda _: None)
    [request] = requests
    assert len(result.nodes) == request.nodes == expected
    assert (request.devices, request.engine) == (8, "vllm")


def test_nodes_are_told_the_time(cluster: Cluster, root: Root, play: Play) -> None:
    answers = []

    def nodes(folder: ProbeFolder) -> None:
        place = folder.start(0)
        place.mkdir()
        (place / "clock-0.json").write_text("{}")
        deadline = time.monotonic() + 30
        while not (place / "clock-0-answer.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        answers.append(json.loads((place / "clock-0-answer.json").read_text())["time"])
        write_report(folder, Report(0, "n1", "host-1", WELL, ()))

    play(nodes)
    result = run(cluster, root)
    assert abs(answers[0] - time.time()) < 60
    assert not list(result.folder.glob("start-*")), "what the nodes tried each other with is gone"


def over(fake_slurm: Any, *logs: tuple[str, str]) -> Callable[[ProbeFolder], None]:
    """The job ends, and Slurm has kept this output."""

    def act(folder: ProbeFolder) -> None:
        for name, text in logs:
            (folder.jobs / name).write_text(text)
        fake_slurm.set_state("FAILED")

    return act


SRUN = "srun: error: n1: task 0: Exited with exit code 2\n"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "module: command not found\nrlsweep: setup line 1 failed: module load cuda\n",
            "it said: rlsweep: setup line 1",
        ),
        (f"/no/python: 1: exec: /no/python: not found\n{SRUN}", "not found; the job's interpreter must"),
        (f"python: No module named 'submitit'\n{SRUN}", "'submitit'; rlsweep, with all it needs, must be installed"),
        ("", "there is no output of it in"),
    ],
)
def test_a_node_that_never_reported_is_told_with_what_its_output_says(
    cluster: Cluster, root: Root, play: Play, fake_slurm: Any, log: str, words: str
) -> None:
    play(over(fake_slurm, ("100_0_log.err", log)))
    result = run(cluster, root)
    [node] = result.nodes
    [finding] = node.findings
    assert (node.node, node.host, finding.check, finding.verdict) == ("node 0", None, "report", "failed")
    assert finding.text.startswith("never reported, the job is over (FAILED") and words in finding.text
    assert result.log == tuple(log.splitlines()) and result.failed


def test_what_a_node_could_only_print_is_read_from_its_output(
    cluster: Cluster, root: Root, play: Play, fake_slurm: Any
) -> None:
    lines = [as_line(Finding("root", "failed", "is read-only there")), "noise", as_line(WELL[1])]

    def nodes(folder: ProbeFolder) -> None:
        write_report(folder, Report(0, "n1", "host-1", WELL, ()))
        over(fake_slurm, ("100_1_log.out", "\n".join(lines)))(folder)

    play(nodes)
    first, second = run(cluster, root, 2).nodes
    assert first.findings == WELL
    assert [(each.check, each.verdict) for each in second.findings] == [
        ("root", "failed"),
        ("torch", "ok"),
        ("report", "failed"),
    ]
    assert "could not be written to" in second.findings[-1].text


def test_checks_that_were_cut_off_are_named(cluster: Cluster, root: Root, play: Play, fake_slurm: Any) -> None:
    def nodes(folder: ProbeFolder) -> None:
        write_report(folder, Report(0, "n1", "host-1", WELL, ("collective", "load")))
        over(fake_slurm)(folder)

    play(nodes)
    [node] = run(cluster, root).nodes
    assert node.findings[:2] == WELL
    assert [each.check for each in node.findings[2:]] == ["collective", "load"]
    assert all(each.text.startswith("not done: the job is over (FAILED") for each in node.findings[2:])


def test_a_job_that_slurm_refuses_leaves_nothing(cluster: Cluster, root: Root, fake_slurm: Any) -> None:
    fake_slurm.behave("sbatch refuse 1 Invalid account")
    with pytest.raises(
        RlsweepError, match=r"takes no such job: .*Invalid account; .*rlsweep cluster check test"
    ) as told:
        run(cluster, root)
    assert told.value.exit_code == 1
    assert not list((root.path / "probes").iterdir())


def test_a_scheduler_that_is_down_is_exit_code_4(cluster: Cluster, root: Root, fake_slurm: Any) -> None:
    fake_slurm.behave("sbatch down")
    with pytest.raises(SchedulerError):
        run(cluster, root)


def test_a_scheduler_that_goes_down_meanwhile_names_the_job(
    cluster: Cluster, root: Root, fake_slurm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlsweep.launch import scheduler

    monkeypatch.setattr(scheduler, "_WAITS_S", ())
    fake_slurm.behave("squeue down")
    with pytest.raises(SchedulerError, match=r"job 100 may go on meanwhile, and writes to .*probes/"):
        run(cluster, root)


def test_ctrl_c_cancels_the_probes_own_job(cluster: Cluster, root: Root, play: Play, fake_slurm: Any) -> None:
    play(lambda _: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted, match=r"stopped, and job 100 cancelled") as told:
        run(cluster, root)
    assert told.value.exit_code == 130
    name = fake_slurm.jobs["100"]["name"]
    assert name.startswith("rlsweep-probe:")
    assert fake_slurm.calls[-1] == f"scancel --user={os.getuid()} --name={name}"


def test_a_local_profile_has_nothing_to_probe(root: Root) -> None:
    with pytest.raises(UsageError, match="executor: local"):
        run(load_cluster("local", (), {}), root)
    assert not root.path.exists()
