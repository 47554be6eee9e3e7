import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rlsweep.cli import main
from rlsweep.launch.cluster import Cluster
from rlsweep.launch.probe import NodeFindings
from rlsweep.launch.probe import Result as Found
from rlsweep.recipe import shipped
from rlsweep.recipe.schema import Recipe
from rlsweep.store.layout import Root
from rlsweep.store.probes import Finding


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RLSWEEP_PARTITION", "RLSWEEP_TIME"):
        monkeypatch.delenv(name, raising=False)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cluster", *arguments])


def rows(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split("\t") for line in result.stdout.splitlines()]


def test_without_a_name_the_shipped_profiles_are_listed() -> None:
    assert [row[:2] for row in rows(call("show"))] == [
        ["gres", "slurm"],
        ["h100", "slurm"],
        ["local", "local"],
        ["test", "slurm"],
    ]
    assert [each["name"] for each in json.loads(call("show", "--json").stdout)] == shipped.names("profile")


def test_show_says_where_each_value_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("executor: slurm\nqos: '1e3'\nmemory_gb: 0\nsetup: [module load x]\nenvironment:\n  A: b c\n")
    monkeypatch.setenv("RLSWEEP_PARTITION", "gpu")
    told = rows(call("show", str(path), "--cluster-set", "time=90", "--cluster-set", "gpus.per_node=8"))
    assert ["partition", "gpu", "RLSWEEP_PARTITION"] in told
    assert ["qos", '"1e3"', "mine.yaml:2"] in told
    assert ["memory_gb", "0", "mine.yaml:3"] in told
    assert ["setup", '["module load x"]', "mine.yaml:4"] in told
    assert ["environment.A", "b c", "mine.yaml:6"] in told
    assert ["time", "0-01:30:00", "flag"] in told
    assert ["gpus.per_node", "8", "flag"] in told
    assert ["exclusive", "false", "default"] in told


def test_show_as_json_is_one_list() -> None:
    found = json.loads(call("show", "local", "--json").stdout)
    assert [each["key"] for each in found] == ["executor", "limits.parallel"]
    assert found[0] == {"key": "executor", "value": "local", "origin": "local.yaml:2"}


def test_what_show_prints_can_be_given_again() -> None:
    printed = rows(call("show", "h100"))
    again = [f"{key}={value}" for key, value, _ in printed if key != "executor"]
    options = [word for each in again for word in ("--cluster-set", each)]
    assert [row[:2] for row in rows(call("show", "h100", *options))] == [row[:2] for row in printed]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nowhere"], "no such profile; shipped profiles: gres, h100, local, test"),
        (["show", "h100", "--cluster-set", "partiton=x"], "unknown key; valid: executor, partition"),
        (["show", "--cluster-set", "partition=x"], "--cluster-set changes one profile; name it"),
        (["check", "--cluster-set", "partition=x"], "--cluster-set changes a profile; name it"),
        (["probe", "local"], "profile local has executor: local: runs stay on this machine"),
        (["probe", "test", "--scale", "tiny"], "--scale and --set belong to a recipe; name one with --recipe"),
        (["probe", "test", "--recipe", "nowhere"], "no such recipe; shipped recipes: "),
        (["check", "local"], "profile local has executor: local: runs stay on this machine"),
    ],
)
def test_what_can_not_be_done_is_refused(arguments: list[str], message: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2 and message in result.stderr and result.stdout == ""


def test_check_without_a_scheduler_is_its_own_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = call("check", "h100")
    assert result.exit_code == 4 and "no Slurm on this machine" in result.stderr


def test_probe_prints_a_row_a_check_and_fails_with_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []

    def look(
        cluster: Cluster, root: Root, nodes: int | None, recipe: Recipe | None, say: Callable[[str], None]
    ) -> Found:
        asked.extend((cluster.partition, root.path, nodes, recipe and recipe.name))
        say("submitted")
        found = (Finding("torch", "ok", "2.13"), Finding("root", "failed", "can't be written"))
        return Found("7", tmp_path, "COMPLETED", (NodeFindings("n1", "host", found),), ("last line",))

    monkeypatch.setattr("rlsweep.launch.probe.probe", look)
    options = ["--nodes", "2", "--recipe", "scalerl", "--scale", "tiny", "--root", str(tmp_path)]
    result = call("probe", "test", *options, "--cluster-set", "partition=short")
    assert asked == ["short", tmp_path, 2, "scalerl"]
    assert result.exit_code == 1
    assert result.stdout == "n1\ttorch\tok\t2.13\nn1\troot\tfailed\tcan't be written\n"
    assert "submitted" in result.stderr and "    last line" in result.stderr
    told = json.loads(call("probe", "test", "--json").stdout)
    assert (told["job"], told["failed"], told["nodes"][0]["findings"][0]["check"]) == ("7", True, "torch")
