"""Knobs of the optimizer, against AdamW written out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlsweep.recipe.budget import Budget
from rlsweep.recipe.optimizer import Optimizer


def adamw(options: Optimizer, start: Tensor, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Weights after each step, in double precision."""
    weights, first, second, found = start.double(), 0.0, 0.0, []
    for step, gradient in enumerate((g.double() for g in gradients), 1):
        rate = options.lr * min(1.0, step / max(options.warmup_steps, 1))
        first = options.beta1 * first + (1 - options.beta1) * gradient
        second = options.beta2 * second + (1 - options.beta2) * gradient**2
        ahead = first / (1 - options.beta1**step)
        spread = (second / (1 - options.beta2**step)) ** 0.5
        weights = weights - rate * options.weight_decay * weights - rate * ahead / (spread + options.eps)
        found.append(weights)
    return found


OPTIMIZERS = {
    "lr": (1e-3, 2e-3),
    "warmup_steps": (0, 4),
    "weight_decay": (0.0, 0.5),
    "beta1": (0.9, 0.5),
    "beta2": (0.95, 0.5),
    "eps": (1e-8, 1e-3),
    "grad_clip": (1e9, 0.05),
}


@pytest.mark.drives(*(f"optimizer.{name}" for name in OPTIMIZERS))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer(lab: Any, learned: Any, name: str) -> None:
    """Three updates are AdamW's, written out, from gradients after clipping; and each knob moves them its own way."""
    recipe = replace(lab.base, optimizer=replace(lab.base.optimizer, lr=1e-3, grad_clip=1e9), budget=Budget(steps=3))
    runs = [
        lab.run(replace(recipe, optimizer=replace(recipe.optimizer, **{name: value}))) for value in OPTIMIZERS[name]
    ]
    for run in runs:
        options = run.recipe.optimizer
        expected = adamw(options, run.flat(0), [run.gradients[v] for v in range(3)])
        for version, weights in enumerate(expected):
            moved = weights - run.flat(0)
            assert lab.apart(moved, run.flat(version + 1).double() - run.flat(0)) < 1e-3
            rate = options.lr * min(1.0, (version + 1) / max(options.warmup_steps, 1))
            assert run.steps[version]["train/lr"] == pytest.approx(rate)
            assert float(run.gradients[version].norm()) <= options.grad_clip * 1.0001
    one, two = runs
    start, (first, second) = one.flat(0), ([run.flat(1) for run in runs])
    assert torch.equal(start, two.flat(0))
    if name == "lr":
        assert lab.apart((first - start) * 2, second - start) < 1e-3
    elif name == "warmup_steps":
        assert lab.apart((first - start) / 4, second - start) < 1e-3
    elif name == "weight_decay":
        assert lab.apart(1e-3 * 0.5 * start, first - second) < 1e-3
    elif name == "eps":
        gradient = one.gradients[0].double()
        assert lab.apart(-1e-3 * gradient / (gradient.abs() + 1e-3) - 1e-5 * start, second - start) < 1e-3
        assert lab.apart(first - start, second - start) > 0.1
    elif name == "grad_clip":
        learned(two, 0)
        assert float(two.gradients[0].norm()) == pytest.approx(0.05, rel=1e-3)
        assert lab.apart(one.gradients[0] * 0.05 / one.gradients[0].norm(), two.gradients[0]) < 1e-3
        # The journal tells the norm before clipping.
        assert two.steps[0]["train/grad_norm"] == pytest.approx(float(one.gradients[0].norm()), rel=1e-4)
    else:
        # The first update doesn't know the moments' decay, up to the bias correction's rounding.
        assert lab.apart(first - start, second - start) < 1e-3
        assert lab.apart(one.flat(2) - start, two.flat(2) - start) > 1e-2
