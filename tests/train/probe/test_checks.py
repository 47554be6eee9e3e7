"""Each check by itself: where all is well, and where it is not."""

import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rlsweep.recipe.model import Pretrained
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.schema import Recipe
from rlsweep.store.layout import Root
from rlsweep.store.probes import Finding, Request, code_hash, probe_folder, read_report, write_request
from rlsweep.train.probe import __main__ as driver
from rlsweep.train.probe import devices, node, others
from rlsweep.train.probe.node import Here

Make = Callable[..., Here]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A place in a probe, with a request as a submitter on another host writes it."""

    def here(rank: int = 0, **changes: object) -> Here:
        from importlib import metadata

        request = Request(
            nodes=1,
            devices=0,
            cpus=None,
            memory_gb=None,
            engine="local",
            host="login",
            version=metadata.version("rlsweep"),
            code=code_hash.__wrapped__(),  # sources may have been edited since this process began
        )
        folder = probe_folder(Root(tmp_path / "dossier à moi"), "0123456789")
        folder.path.mkdir(parents=True, exist_ok=True)
        request = replace(request, **changes)  # type: ignore[arg-type]
        write_request(folder, request)
        return Here(folder, request, rank, start=0)

    return here


def test_a_node_on_which_all_is_well(make: Make) -> None:
    here = make()
    for check in (node.interpreter, node.root, others.nodes, node.space, node.home, node.vllm, node.load):
        verdict, text = check(here)
        assert verdict == "ok", (check.__name__, text)
    assert sys.executable in node.interpreter(here)[1]
    assert str(here.folder.root.path) in node.root(here)[1]
    assert os.listdir(here.meeting) == [], "the checks clean up"


def test_other_code_than_the_submitters_is_told(make: Make) -> None:
    assert node.interpreter(make(version="9.9"))[0] == "failed"
    assert "login submits with 9.9" in node.interpreter(make(version="9.9"))[1]
    verdict, text = node.interpreter(make(code="0" * 12))
    assert verdict == "failed" and "its files differ from those on login" in text


def test_a_root_that_can_not_be_written_to_is_told(make: Make) -> None:
    here = replace(make(), folder=probe_folder(Root(Path("/proc/self/root-of-runs")), "x"))
    verdict, text = node.root(here)
    assert verdict == "failed" and "choose a root that compute nodes write to" in text


def test_less_than_was_asked_for_is_told(make: Make) -> None:
    verdict, text = node.limits(make(cpus=10_000, memory_gb=1e6))
    assert verdict == "warning"
    assert "10000 CPUs were asked for" in text and "1e+06 GB were asked for" in text
    assert node.limits(make(cpus=1, memory_gb=0.01))[0] == "ok"


def test_few_open_files_are_told(make: Make) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        verdict, text = node.limits(make())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert verdict == "warning" and "256 open files" in text and "ulimit -n" in text


def test_memory_is_at_most_the_machines() -> None:
    total = float(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < node.memory_limit() <= total


def test_a_home_that_can_not_be_written_to_is_only_noted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/self/nobody")
    verdict, text = node.home(make())
    assert verdict == "ok" and "can't be written to" in text


def test_without_scontrol_runs_could_not_go_on(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    verdict, text = node.scontrol(make())
    assert verdict == "failed" and "no scontrol on PATH" in text
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho slurm_load_jobs error: unable to contact >&2\nexit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    verdict, text = node.scontrol(make())
    assert verdict == "failed" and "(slurm_load_jobs error: unable to contact)" in text


def test_vllm_is_looked_for_where_the_recipe_needs_it(make: Make) -> None:
    assert node.vllm(make(engine=None)) == ("ok", "not needed: no recipe was named")
    found = driver.check(make(engine="vllm").folder, 0, 0, "vllm")
    if found.verdict != "ok":  # it isn't installed here
        assert "can't import what it needs: No module named 'vllm'" in found.text and sys.executable in found.text


def test_model_and_data_are_loaded_where_a_recipe_is_named(
    make: Make, small_recipe: Recipe, model_folder: str, models: Path
) -> None:
    here = make()
    here.folder.recipe.write_text(dump(small_recipe))
    assert "is not made yet" in node.load(here)[1]
    here.folder.root.models.symlink_to(models)
    verdict, text = node.load(here)
    assert verdict == "ok" and "qwen3 with " in text
    here.folder.recipe.write_text(dump(replace(small_recipe, model=Pretrained(path=str(models / "absent")))))
    found = driver.check(here.folder, 0, 0, "load")
    assert found.verdict == "failed" and found.text.endswith("absent: there is no such folder here")


def test_torch_computes_and_devices_are_counted(make: Make) -> None:
    import torch

    assert devices.torch(make()) == ("ok", f"torch {torch.__version__}, computes on the CPU")
    if torch.version.cuda is None:
        verdict, text = devices.torch(make(devices=8))
        assert verdict == "failed" and "this torch was built without CUDA" in text


def together(make: Make, check: Callable[[Here], node.Found], world: int) -> list[node.Found]:
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(lambda rank: check(make(rank, nodes=world)), range(world)))


def test_nodes_that_see_each_other_say_so(make: Make) -> None:
    found = together(make, others.nodes, 3)
    assert [verdict for verdict, _ in found] == ["ok"] * 3
    assert all("50 of 50 folders made by exactly one node" in text for _, text in found)


def test_a_node_that_never_comes_is_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "_MEETING_S", 0.2)
    verdict, text = others.nodes(make(1, nodes=3))
    assert verdict == "failed" and "nothing of node(s) 0, 2 was seen" in text


def test_a_mkdir_that_two_win_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that tells each client that its mkdir has succeeded."""
    monkeypatch.setattr(others, "refuses", lambda path: False)
    found = together(make, others.nodes, 2)
    assert [verdict for verdict, _ in found] == ["failed"] * 2
    assert "of 50 folders that all nodes tried to make, 100 were won: mkdir is not exclusive" in found[0][1]


def test_a_file_system_that_shows_files_late_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "_SLOW_S", 0.0)
    found = together(make, others.nodes, 2)
    assert {verdict for verdict, _ in found} == {"warning"} and "attribute caching" in found[0][1]


@pytest.mark.parametrize(("ahead", "verdict"), [(0.0, "ok"), (90.0, "warning"), (-90.0, "warning")])
def test_clocks_are_compared_with_the_submitters(make: Make, ahead: float, verdict: str) -> None:
    here = make()
    asked = here.meeting / "clock-0.json"

    def submitter() -> None:
        while not asked.exists():
            time.sleep(0.01)
        answer = here.meeting / "answer.tmp"
        answer.write_text(json.dumps({"time": time.time() - ahead}))
        answer.rename(here.meeting / "clock-0-answer.json")

    thread = threading.Thread(target=submitter)
    thread.start()
    found, text = others.clock(here)
    thread.join()
    assert found == verdict, text
    assert ("ahead of login" in text) == (ahead > 0) or ahead == 0


def test_a_submitter_that_has_gone_is_no_failure(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "_ANSWER_S", 0.1)
    assert others.clock(make())[0] == "warning"


@pytest.mark.parametrize("world", [1, 2])
def test_processes_of_all_nodes_sum_a_tensor(make: Make, world: int) -> None:
    if world == 2:
        meeting = make(nodes=2).meeting
        meeting.mkdir()
        (meeting / "meet.json").write_text(json.dumps({"address": "127.0.0.1", "port": devices._free_port()}))
    found = together(make, devices.collective, world)
    assert [verdict for verdict, _ in found] == ["ok"] * world, found
    if world == 2:
        assert "2 processes summed a tensor with gloo, met at 127.0.0.1" in found[0][1]


def test_a_rank_that_can_not_be_reached_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_WAIT_S", 0.2)
    verdict, text = devices.collective(make(1, nodes=2))
    assert verdict == "failed" and "rank 0 has not said" in text


def test_a_check_that_hangs_or_dies_hides_no_other(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A torch that never comes back from its import, and a transformers that takes the process along."""
    broken = tmp_path / "broken"
    for name, body in (("torch", "import time; time.sleep(600)"), ("vllm", "import os; os.kill(os.getpid(), 11)")):
        (broken / name).mkdir(parents=True)
        (broken / name / "__init__.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(broken))
    checks = {name: driver.CHECKS[name] for name in ("interpreter", "torch", "vllm", "home")}
    checks["torch"] = ("devices", 6.0, "the driver hangs")
    monkeypatch.setattr(driver, "CHECKS", checks)
    here = make(engine="vllm")
    driver.look(here.folder, 0, 0)
    report = read_report(here.folder, 0)
    assert report is not None and report.pending == ()
    found = {each.check: each for each in report.findings}
    assert found["torch"] == Finding("torch", "failed", "no result within 6 s: the driver hangs")
    assert found["vllm"] == Finding("vllm", "failed", "the check died of SIGSEGV")
    assert (found["interpreter"].verdict, found["home"].verdict) == ("ok", "ok")


def test_what_was_found_is_printed_where_the_folder_can_not_be_written(
    make: Make, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlsweep.store.probes import from_lines

    monkeypatch.setattr(driver, "CHECKS", {"home": driver.CHECKS["home"]})
    folder = make().folder
    folder.node(0).mkdir()  # a rename onto it fails
    driver.look(folder, 0, 0)
    printed = capfd.readouterr().out
    assert "what was found can't be written" in printed
    assert [each.check for each in from_lines(printed.splitlines())] == ["home"]


def test_as_a_job_starts_it(make: Make) -> None:
    """The whole of it, as a process, without Slurm: only what needs Slurm fails."""
    here = make()
    shutil.rmtree(here.folder.root.path / "models", ignore_errors=True)
    command = [sys.executable, "-m", "rlsweep.train.probe", str(here.folder.path)]
    waiting = threading.Thread(target=_answer, args=(here,))
    waiting.start()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "SLURMD_NODENAME": "n7"})
    waiting.join()
    assert done.returncode == 0, done.stderr
    report = read_report(here.folder, 0)
    assert report is not None and (report.node, report.pending) == ("n7", ())
    assert [each.check for each in report.findings] == list(driver.CHECKS)
    assert {each.check for each in report.findings if each.verdict == "failed"} <= {"scontrol"}


def _answer(here: Here) -> None:
    deadline = time.monotonic() + 60
    while not (here.meeting / "clock-0.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    (here.meeting / "clock-0-answer.json").write_text(json.dumps({"time": time.time()}))
