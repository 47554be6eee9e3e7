"""How stale what is trained on may be, and what the seed decides."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rlsweep.recipe.budget import Budget
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.off_policy import Pipeline, Ppo


@pytest.mark.drives("off_policy[pipeline]", "off_policy[pipeline].k", "off_policy[ppo]", "off_policy[ppo].k")
@pytest.mark.parametrize(
    ("scheme", "lags", "sampled_by_then"),
    [
        (Pipeline(k=0), [0, 0, 0, 0, 0], [1, 2, 3, 4, 5]),
        (Pipeline(k=2), [0, 1, 2, 2, 2], [3, 4, 5, 6, 7]),
        (Ppo(k=1), [0, 0, 0, 0, 0], [1, 2, 3, 4, 5]),
        (Ppo(k=3), [0, 1, 2, 0, 1], [3, 3, 3, 6, 6]),
    ],
    ids=str,
)
def test_the_lag_of_every_token(
    lab: Any, written_out: Any, scheme: Any, lags: list[int], sampled_by_then: list[int]
) -> None:
    """The weights of the version that a token names give the log-probability recorded for it, and no others do; so
    many batches are sampled before each step."""
    run = lab.run(
        replace(lab.base, off_policy=scheme, curriculum=Curriculum(zero_variance="keep"), budget=Budget(steps=5))
    )
    assert [row["clock/samples"] / (6 * 12) for row in run.steps] == sampled_by_then
    for number, lag in enumerate(lags):
        assert run.steps[number]["train/lag_mean"] == run.steps[number]["train/lag_max"] == lag
        sampled = number - lag
        model, newer = run.model(sampled), run.model(sampled + 1)
        for group in run.batch(number):
            assert all(r.versions == ((sampled, 0, len(r.tokens)),) for r in group.rollouts)
            rollout = group.rollouts[0]
            with torch.no_grad():
                mine, others = (
                    written_out.distributions(run.recipe, each, group.prompt, rollout.tokens) for each in (model, newer)
                )
            recorded, rows = torch.tensor(rollout.logprobs), range(len(rollout.tokens))
            assert (mine[rows, rollout.tokens] - recorded).abs().max() < 1e-4
            assert (others[rows, rollout.tokens] - recorded).abs().max() > 1e-3


@pytest.mark.drives("seed")
def test_the_seed(lab: Any) -> None:
    """Order and tokens are the seed's; the pool, the initial model and what is evaluated are not."""
    one, two = (lab.run(replace(lab.base, seed=seed, budget=Budget(steps=3))) for seed in (0, 1))
    again = lab.start(replace(lab.base, seed=1, budget=Budget(steps=3)))
    assert torch.equal(again.flat(3), two.flat(3)) and again.engine.groups == two.engine.groups
    assert torch.equal(one.flat(0), two.flat(0)) and not torch.equal(one.flat(3), two.flat(3))
    orders = [[lab.text(run.engine.requests[i].prompt) for i in range(24)] for run in (one, two)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    asked = [[r.prompt for r in run.engine.evaluations[0][1].values()] for run in (one, two)]
    assert asked[0] == asked[1]
    assert one.engine.evaluations[0][2] != two.engine.evaluations[0][2]
    # Every group has tokens of its own, whatever its number.
    tokens = [tuple(r.tokens for r in g.rollouts) for run in (one, two) for g in run.engine.groups.values()]
    assert len(set(tokens)) == len(tokens)
