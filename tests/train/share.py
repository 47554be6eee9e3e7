"""`share.py MODEL OUT`: what one rank, or the only process, makes of updates on hand-made batches: their gradients."""

import copy
import os
import sys
from typing import Any

import torch
from accelerate import Accelerator
from transformers.utils import logging

from rlsweep.model.load import load_model
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.execution import Execution
from rlsweep.recipe.loss import Cispo, Dapo, Gspo
from rlsweep.recipe.optimizer import Optimizer
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import Rollout
from rlsweep.train.asked import Stop
from rlsweep.train.intake import Graded
from rlsweep.train.ranks import ranks_of
from rlsweep.train.update import micro_batches, select, share, update


def rollout(*tokens: int, forced: tuple[int, ...] = (), behaviour: float = -3.5) -> Rollout:
    mask = tuple(place in forced for place in range(len(tokens)))
    logprobs = tuple(0.0 if is_forced else behaviour - 0.1 * place for place, is_forced in enumerate(mask))
    return Rollout(tokens, logprobs, mask, ((0, 0, len(tokens)),), "stop")


# Ragged prompts and responses, equal texts, forced tokens, a group that is filtered.
LONG, SHORT, EASY = (6, 29, 24, 39, 3, 3), (8, 9), (7, 7, 7)
RAGGED = [
    Graded(
        0,
        LONG,
        (rollout(10, 11, 1), rollout(12, 13, 14, 15, 16, 17, 1), rollout(10, 11, 1), rollout(10, 9, 1, forced=(1,))),
        ("correct", "wrong", "correct", "wrong"),
    ),
    Graded(1, SHORT, (rollout(10, 1), rollout(7, 5, 5, 1), rollout(1)), ("wrong", "correct", "wrong")),
    Graded(2, EASY, (rollout(3, 1), rollout(4, 1)), ("correct", "correct")),
    Graded(3, LONG, (rollout(12, 13, 14, 1), rollout(5)), ("wrong", "correct")),
]
# One text, computed by one rank: the other has nothing.
PAIR = [Graded(0, SHORT, (rollout(10, 1), rollout(10, 1, behaviour=-3.0)), ("wrong", "correct"))]
BATCHES = {"ragged": RAGGED, "filtered": RAGGED[2:], "pair": PAIR, "none": RAGGED[2:3]}
SIZES = (1, 24, 10_000)
LOSSES = (Cispo(eps_max=1.2), Dapo(), Gspo(eps_low=0.9, eps_high=50.0))


def main(model: str, out: str) -> None:
    ranks = ranks_of(os.environ, Stop())
    ranks.meet(cuda=False)
    accelerator = Accelerator(cpu=True)
    found: dict[str, Any] = {}
    loaded, _ = load_model(model)
    for loss in LOSSES:
        for name, groups in BATCHES.items():
            for size in SIZES:
                recipe = Recipe(
                    name="share",
                    loss=loss,
                    aggregation="sample" if isinstance(loss, Gspo) else "prompt",
                    curriculum=Curriculum(no_positive_resampling=None),
                    optimizer=Optimizer(grad_clip=1e9),
                    execution=Execution(engine="local", device="cpu", microbatch_tokens=size),
                )
                policy = copy.deepcopy(loaded)
                unused = torch.nn.Parameter(torch.ones(3))  # no rank has a gradient of it
                policy.register_parameter("unused", unused)
                caught: list[Any] = []

                class Catch(torch.optim.SGD):
                    def step(self, closure: Any = None) -> None:
                        grads = [None if p.grad is None else p.grad.clone() for p in policy.parameters()]  # noqa: B023
                        caught.append(grads)  # noqa: B023

                prepared = accelerator.prepare_model(policy, evaluation_mode=True)
                optimizer = accelerator.prepare_optimizer(Catch(policy.parameters(), lr=0.0))
                batch, _ = select(recipe, groups)
                parts = share(micro_batches(batch, size), ranks) if batch.rollouts else []
                measured = update(recipe, prepared, optimizer, accelerator, batch, 0, ranks)
                key = f"{loss.type if hasattr(loss, 'type') else type(loss).__name__} {name} {size}"
                found[key] = (caught[0] if caught else None, measured, parts)
    torch.save(found, out)
    ranks.part()


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    main(*sys.argv[1:])
