import pytest

from rlsweep.launch import machine
from rlsweep.launch.cluster import Cluster, Gpus
from rlsweep.recipe.load import load_recipe

LOCAL = Cluster(name="local", executor="local")
H100 = Cluster(name="h100", executor="slurm", gpus=Gpus(per_node=8))


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_has_gpu", lambda: False)
    monkeypatch.setattr(machine, "_has_slurm", lambda: False)


def test_the_tiny_scale_needs_nothing() -> None:
    assert machine.missing(load_recipe("scalerl", scale="tiny"), LOCAL) is None
    assert machine.cores() >= 1


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    full = load_recipe("scalerl")
    expected = "recipe 'scalerl' can't run on this machine: there is neither a GPU nor Slurm here, and "
    expected += "this version has no vLLM engine and no task 'math'; try --scale tiny"
    assert machine.missing(full, LOCAL) == expected
    local = load_recipe("scalerl", scale="tiny", overrides=["execution.device=cuda"])
    assert "there is neither a GPU nor Slurm here; try" in str(machine.missing(local, LOCAL))
    monkeypatch.setattr(machine, "_has_slurm", lambda: True)
    assert "there is a Slurm here (jobs go there with --cluster NAME) but no GPU; try" in str(
        machine.missing(local, LOCAL)
    )
    monkeypatch.setattr(machine, "_has_gpu", lambda: True)
    assert machine.missing(local, LOCAL) is None
    assert "machine: this version has no vLLM engine and no task 'math'; try" in str(machine.missing(full, LOCAL))


def test_a_task_that_comes_later_is_missing_whatever_the_engine() -> None:
    recipe = load_recipe("scalerl", overrides=["execution.engine=local", "execution.device=cpu"])
    expected = "recipe 'scalerl' can't run on this machine: this version has no task 'math'; try --scale tiny"
    assert machine.missing(recipe, LOCAL) == expected


def test_the_machine_that_submits_needs_no_gpu_but_sbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    one = load_recipe("scalerl", scale="tiny", overrides=["execution.device=cuda"])
    assert machine.missing(one, H100) == (
        "recipe 'scalerl' can't run with profile h100: there is no sbatch here; try --scale tiny"
    )
    monkeypatch.setattr(machine, "_has_slurm", lambda: True)
    assert machine.missing(one, H100) is None


def test_what_this_version_cannot_train_is_said_for_slurm_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_has_slurm", lambda: True)
    assert "this version has no vLLM engine and no task 'math'" in str(machine.missing(load_recipe("scalerl"), H100))
    many = ["execution.device=cuda", "execution.devices=8"]
    recipe = load_recipe("scalerl", scale="tiny", overrides=many)
    assert "no local engine on more than one device a node; try" in str(machine.missing(recipe, H100))
    spread = Cluster(name="small", executor="slurm", gpus=Gpus(per_node=1))
    assert machine.missing(recipe, spread) is None
    uneven = load_recipe("scalerl", scale="tiny", overrides=["execution.device=cuda", "execution.devices=9"])
    assert "execution.devices: 9 can't be spread evenly" in str(machine.missing(uneven, H100))
