import pytest

from rlsweep.recipe.compute import at_most, batches_sampled, embedded_parameters, expected_device_hours
from rlsweep.recipe.load import load_recipe
from rlsweep.recipe.model import Embedded
from rlsweep.recipe.off_policy import OffPolicy, Pipeline, Ppo
from rlsweep.train.admission import admissible


def test_parameters_by_hand() -> None:
    # Embedding 53 x 64; a layer: queries and output 2 x 64 x 128, keys and values 2 x 64 x 64, feed-forward
    # 3 x 64 x 128, norms 2 x 64 and 2 x 32; a last norm of 64.
    layer = 16_384 + 8_192 + 24_576 + 128 + 64
    assert embedded_parameters(Embedded(), 53) == 3_392 + 2 * layer + 64 == 102_144
    assert embedded_parameters(Embedded(), 54) - embedded_parameters(Embedded(), 53) == 64


@pytest.mark.parametrize("options", [Pipeline(k=0), Pipeline(k=8), Ppo(k=1), Ppo(k=8)])
@pytest.mark.parametrize("steps", [1, 7, 8, 9, 200])
def test_as_many_batches_are_sampled_as_admission_allows_before_the_last_step(options: OffPolicy, steps: int) -> None:
    assert batches_sampled(options, steps) == admissible(options, steps - 1)


def test_bounds_of_the_embedded_default_by_hand() -> None:
    recipe = load_recipe("scalerl", scale="tiny")
    assert isinstance(recipe.model, Embedded)
    sampled, trained = 208 * 64 * 8, 200 * 64 * 8  # pipeline-8
    parameters = embedded_parameters(recipe.model)
    assert at_most(recipe) == {
        "rollouts": sampled,
        "response_tokens": sampled * 20,
        "flops": parameters * 28 * (2 * sampled + 6 * trained),
    }
    assert expected_device_hours(recipe) is None


def test_ppo_samples_whole_phases() -> None:
    recipe = load_recipe("scalerl", scale="tiny", overrides=["off_policy=ppo-8", "budget.steps=9"])
    assert at_most(recipe)["rollouts"] == 16 * 64 * 8
    assert at_most(recipe, 4)["rollouts"] == 12 * 64 * 8


def test_bounds_of_what_is_left() -> None:
    recipe = load_recipe("scalerl", scale="tiny", overrides=["budget.steps=10"])
    assert at_most(recipe, 4)["rollouts"] == (18 - 4) * 64 * 8
    for done in (10, 12):
        assert set(at_most(recipe, done).values()) == {0}


def test_a_scale_whose_cost_is_measured_expects_it_for_any_batch() -> None:
    recipe = load_recipe("scalerl", scale="8b")
    assert expected_device_hours(recipe) == pytest.approx(6000 * 2.6, rel=2e-4)
    assert expected_device_hours(recipe, 5999) == pytest.approx(2.6, rel=2e-4)
    assert expected_device_hours(recipe, 7000) == 0
    large = load_recipe("scalerl", scale="8b", overrides=["batch.prompts=96"])
    assert expected_device_hours(large) == pytest.approx(2 * 6000 * 2.6, rel=2e-4)
    assert "flops" not in at_most(recipe)
