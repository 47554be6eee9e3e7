import pytest

from rlsweep.launch import machine
from rlsweep.recipe.load import load_recipe


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_has_gpu", lambda: False)
    monkeypatch.setattr(machine, "_has_slurm", lambda: False)


def test_the_tiny_scale_needs_nothing() -> None:
    assert machine.missing(load_recipe("scalerl", scale="tiny")) is None
    assert machine.cores() >= 1


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    full = load_recipe("scalerl")
    expected = "recipe 'scalerl' can't run on this machine: there is neither a GPU nor Slurm here, and "
    expected += "this version has no vLLM engine and no task 'math'; try --scale tiny"
    assert machine.missing(full) == expected
    local = load_recipe("scalerl", scale="tiny", overrides=["execution.device=cuda"])
    assert "there is neither a GPU nor Slurm here; try" in str(machine.missing(local))
    monkeypatch.setattr(machine, "_has_slurm", lambda: True)
    assert "there is a Slurm here but no GPU; try" in str(machine.missing(local))
    monkeypatch.setattr(machine, "_has_gpu", lambda: True)
    assert machine.missing(local) is None
    assert "machine: this version has no vLLM engine and no task 'math'; try" in str(machine.missing(full))


def test_a_task_that_comes_later_is_missing_whatever_the_engine() -> None:
    recipe = load_recipe("scalerl", overrides=["execution.engine=local", "execution.device=cpu"])
    expected = "recipe 'scalerl' can't run on this machine: this version has no task 'math'; try --scale tiny"
    assert machine.missing(recipe) == expected
