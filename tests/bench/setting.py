"""What is measured: one recipe for rlsweep and TRL alike, at the embedded scale."""

from rlsweep import load_recipe
from rlsweep.recipe.schema import Recipe


def step_recipe(loss: str = "dapo", zero_variance: str = "keep") -> Recipe:
    """The tiny scale, synchronous, in what both sides know: every step samples 64 x 8 responses and trains on them."""
    return load_recipe(
        "scalerl",
        scale="tiny",
        overrides=[
            f"loss={loss}",
            f"curriculum.zero_variance={zero_variance}",
            "curriculum.no_positive_resampling=null",
            "off_policy=pipeline-0",
            "aggregation=token",
            "length=none",
            # So small that both sides go on sampling from the same policy: responses stay alike in length.
            "optimizer.lr=1e-9",
            # One evaluation of one response before the first step, and nothing is saved before the last.
            "evaluation={every: 100000, prompts: 1, samples: 1}",
            "budget.steps=10000",
            "execution.checkpoint_every=100000",
        ],
    )
