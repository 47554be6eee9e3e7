import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlsweep.errors import SchedulerError, UsageError
from rlsweep.launch.cluster import Cluster, Gpus
from rlsweep.launch.scheduler import Refused
from rlsweep.launch.script import Resources, Script, refuse_path, resources, wrapped
from rlsweep.recipe.load import load_recipe
from rlsweep.store.layout import Root

GOLDEN = Path(__file__).parent.parent / "golden"
ROOT = Root(Path("/shared/dossier à moi"))
FULL = Cluster(
    name="full",
    executor="slurm",
    partition="gpu",
    account="lab",
    qos="normal",
    constraint="infiniband",
    exclude="n[3-4],n9",
    gpus=Gpus(style="gpus_per_node", per_node=8, type="h100"),
    cpus_per_node=96,
    memory_gb=0,
    exclusive=True,
    minutes=1440,
    notice_s=300,
    setup=("module load cuda/12.8", "ulimit -n 65536"),
    environment={"NCCL_DEBUG": "WARN", "GREETING": "it's here"},
    interpreter="/usr/bin/python3",
    srun=("--container-image=/shared/images/rlsweep.sqsh", "--container-mounts=/shared:/shared"),
)


def script(cluster: Cluster, needed: Resources, **more: Any) -> Script:
    folder = ROOT.sweep("s").jobs / "0123456789"
    given: dict[str, Any] = {"name": "rlsweep:s:0123456789", "folder": folder, **more}
    return Script(cluster=cluster, resources=needed, root=ROOT, **given)


def flags(made: Script) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in made.text.splitlines() if line.startswith("#SBATCH ")]


@pytest.mark.parametrize(("name", "count"), [("array.sh", 3), ("single.sh", 1)])
def test_the_script_is_the_golden_one(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1000)
    made = script(FULL, Resources(10, 8, 96), count=count, parallel=2)
    if os.environ.get("RLSWEEP_WRITE_GOLDEN"):
        (GOLDEN / name).write_text(made.text)
    assert made.text == (GOLDEN / name).read_text()


@pytest.mark.parametrize(
    ("style", "kind", "flag"),
    [
        ("gpus_per_node", None, "--gpus-per-node=4"),
        ("gpus_per_node", "h100", "--gpus-per-node=h100:4"),
        ("gres", None, "--gres=gpu:4"),
        ("gres", "h100", "--gres=gpu:h100:4"),
        ("gpus", None, "--gpus=8"),
        ("gpus", "h100", "--gpus=h100:8"),
    ],
)
def test_each_site_has_its_gpus_asked_for_in_its_own_way(style: Any, kind: str | None, flag: str) -> None:
    cluster = replace(FULL, gpus=Gpus(style=style, per_node=4, type=kind))
    assert [
        each
        for each in flags(script(cluster, Resources(2, 4, None)))
        if "gpu" in each.partition("=")[0] or "gres" in each
    ] == [flag]
    assert not any("gpu:" in each or "--gpus" in each for each in flags(script(cluster, Resources(2, 0, None))))


@pytest.mark.parametrize(
    ("gb", "expected"),
    [
        (None, []),
        (0, ["--mem=0"]),
        (0.0, ["--mem=0"]),
        (64, ["--mem=64G"]),
        (0.5, ["--mem=512M"]),
        (1.1, ["--mem=1126M"]),
    ],
)
def test_memory_of_a_node_in_gb_and_zero_is_all_of_it(gb: float | None, expected: list[str]) -> None:
    made = script(replace(FULL, memory_gb=gb), Resources(1, 0, 1))
    assert [each for each in flags(made) if each.startswith("--mem")] == expected


def test_what_a_profile_leaves_open_is_left_to_the_site() -> None:
    made = script(Cluster(name="bare", executor="slurm"), Resources(1, 0, None))
    named = {each.partition("=")[0] for each in flags(made)}
    assert named == {
        *("--error", "--hold", "--job-name", "--nodes", "--ntasks-per-node", "--open-mode", "--output"),
        *("--requeue", "--signal", "--time"),
    }
    assert "SRUN_CPUS_PER_TASK" not in made.text and "wckey" not in made.text
    assert "--hold" not in flags(replace(made, hold=False))


def test_the_runs_of_an_array_are_not_capped_unless_asked() -> None:
    assert "--array=0-999%1000" in flags(script(FULL, Resources(1, 8, 1), count=1000))
    assert "--array=0-999%7" in flags(script(FULL, Resources(1, 8, 1), count=1000, parallel=7))


@pytest.mark.parametrize(
    ("lines", "code", "said", "printed"),
    [
        (("export A=1", "echo $A"), 0, "", "1\nend\n"),
        (("# only a comment", ""), 0, "", "end\n"),
        (("true", "false # why", "echo never"), 1, "rlsweep: setup line 2 failed: false # why", ""),
        (("module load x",), 1, "rlsweep: setup line 1 failed: module load x", ""),
        (("echo it's",), 1, "rlsweep: setup line 1 failed: echo it's", ""),
        (("cd /nowhere && export B=%s",), 1, "rlsweep: setup line 1 failed: cd /nowhere && export B=%s", ""),
        (("export TEXT='a\nb'", 'echo "$TEXT"'), 0, "", "a\nb\nend\n"),
    ],
)
def test_a_setup_line_that_fails_ends_the_job_with_its_name(
    lines: tuple[str, ...], code: int, said: str, printed: str
) -> None:
    done = subprocess.run(["bash", "-c", "\n".join([*wrapped(lines), "echo end"])], capture_output=True, text=True)
    assert done.returncode == code and done.stdout == printed
    assert said in done.stderr and (code or not done.stderr)


def test_variables_reach_the_job_as_they_are(tmp_path: Path) -> None:
    value = "a b'c\"$HOME`x`\\ é"
    made = script(replace(FULL, environment={"TRICKY": value, "HF_HOME": "/else where"}), Resources(1, 0, 5))
    body = made.text.partition("# setup\n")[2].partition("# command")[0].partition("eval")[0]
    printed = 'printf "%s\\n" "$TRICKY" "$HF_HOME" "$SRUN_CPUS_PER_TASK" "$HF_HUB_OFFLINE" "$HF_HUB_CACHE"'
    done = subprocess.run(["bash", "-c", body + printed], capture_output=True, text=True)
    assert done.stdout.splitlines() == [value, "/else where", "5", "1", "/else where/hub"]


@pytest.mark.parametrize(
    ("devices", "per_node", "expected"),
    [(1, 8, (1, 1)), (8, 8, (1, 8)), (16, 8, (2, 8)), (12, 8, (2, 6)), (80, 8, (10, 8)), (3, 1, (3, 1))],
)
def test_devices_are_spread_evenly_over_as_few_nodes_as_can_be(
    devices: int, per_node: int, expected: tuple[int, int]
) -> None:
    recipe = load_recipe("scalerl", overrides=[f"execution.devices={devices}"])
    found = resources(recipe, replace(FULL, gpus=Gpus(per_node=per_node)))
    assert (found.nodes, found.devices, found.cpus) == (*expected, 96)


def test_devices_that_cannot_be_spread_evenly_are_refused_with_what_can() -> None:
    recipe = load_recipe("scalerl", overrides=["execution.devices=9"])
    with pytest.raises(UsageError, match=r"9 can't be spread evenly over 2 nodes of 8 GPUs .*: 10 or 8"):
        resources(recipe, FULL)
    with pytest.raises(UsageError, match=r"says of no GPUs; set gpus\.per_node"):
        resources(recipe, replace(FULL, gpus=Gpus()))


def test_a_run_on_cpus_has_a_node_for_each_rank_and_its_threads() -> None:
    recipe = load_recipe("scalerl", scale="tiny", overrides=["execution.devices=2", "execution.threads=3"])
    assert resources(recipe, replace(FULL, cpus_per_node=None)) == Resources(2, 0, 3)
    assert resources(recipe, FULL) == Resources(2, 0, 96)


@pytest.mark.parametrize("name", ["100%", "a\\b", "a\nb"])
def test_a_path_with_placeholders_of_slurm_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="for a placeholder; choose another root"):
        refuse_path(Path("/shared") / name)
    refuse_path(Path('/shared/it\'s a "dossier" à moi; #1 $HOME `x`'))


@pytest.mark.parametrize(
    ("code", "words", "error"),
    [(1, "invalid partition", Refused), (1, "Socket timed out", SchedulerError), (0, "hello", SchedulerError)],
)
def test_nothing_is_left_of_a_job_that_was_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str, error: type[Exception]
) -> None:
    fake(tmp_path, monkeypatch, f"echo '{words}' >&2; echo '{words}'; exit {code}")
    made = script(FULL, Resources(1, 0, 1), count=2, folder=tmp_path / "jobs")
    with pytest.raises(error, match=words):
        made.submit([os.getcwd, os.getcwd])
    assert list((tmp_path / "jobs").iterdir()) == []


def test_what_was_submitted_lies_under_the_job_s_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(
        tmp_path,
        monkeypatch,
        f'echo "$@" > {tmp_path}/said; cat "${{@: -1}}" > {tmp_path}/got; echo Submitted batch job 41',
    )
    made = script(FULL, Resources(1, 0, 1), count=2, folder=tmp_path / "jobs")
    assert made.submit([os.getcwd, os.getcwd], after=["7", "8"]) == "41"
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == [
        *("41_0_submitted.pkl", "41_1_submitted.pkl", "41_submission.sh")
    ]
    assert (tmp_path / "got").read_text() == made.text == (tmp_path / "jobs" / "41_submission.sh").read_text()
    assert "--dependency=afterany:7:8" in (tmp_path / "said").read_text()
    single = script(FULL, Resources(1, 0, 1), folder=tmp_path / "one")
    assert single.submit([os.getcwd]) == "41"
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["41_submission.sh", "41_submitted.pkl"]
    assert "--dependency" not in (tmp_path / "said").read_text()


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """An sbatch that does as it is told."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(f"#!/bin/bash\n{body}\n")
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
