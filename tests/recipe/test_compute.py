from rlsweep.recipe.compute import embedded_parameters, planned
from rlsweep.recipe.load import load_recipe
from rlsweep.recipe.model import Embedded


def test_parameters_by_hand() -> None:
    # Embedding 53 x 64; a layer: queries and output 2 x 64 x 128, keys and values 2 x 64 x 64, feed-forward
    # 3 x 64 x 128, norms 2 x 64 and 2 x 32; a last norm of 64.
    layer = 16_384 + 8_192 + 24_576 + 128 + 64
    assert embedded_parameters(Embedded(), 53) == 3_392 + 2 * layer + 64 == 102_144
    assert embedded_parameters(Embedded(), 54) - embedded_parameters(Embedded(), 53) == 64


def test_bounds_of_the_embedded_default() -> None:
    recipe = load_recipe("scalerl", scale="tiny")
    assert isinstance(recipe.model, Embedded)
    found = planned(recipe)
    assert found["rollouts"] == 200 * 64 * 8
    assert found["response_tokens"] == 200 * 64 * 8 * 20
    assert found["flops"] == 8 * embedded_parameters(recipe.model) * 200 * 64 * 8 * 28
    assert "device_hours" not in found


def test_bounds_of_a_scale_whose_cost_is_measured() -> None:
    found = planned(load_recipe("scalerl", scale="8b"))
    assert found["device_hours"] == 6000 * 2.6
    assert "flops" not in found
