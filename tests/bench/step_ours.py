"""`step_ours.py MODEL FOLDER LOSS keep|drop|each`: rlsweep's training loop, a step at a time.

`keep` and `drop` are what happens to groups without variance; `each` keeps them, and computes equal responses one by
one.
"""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import torch
from race import Turns
from setting import step_recipe

from rlsweep.model.context import SharedPrompts
from rlsweep.rollout.local import LocalEngine
from rlsweep.store import attempts
from rlsweep.store.journal import newest_row
from rlsweep.store.layout import RunFolder
from rlsweep.train import loop, update
from rlsweep.train.state import build

torch.set_num_threads(1)
model, folder, loss, arm = sys.argv[1:]
recipe = step_recipe(loss, "drop" if arm == "drop" else "keep")
turns = Turns()
turns.book(LocalEngine, "submit", "sampling")
turns.book(update, "response_logprobs", "forward")
turns.book(SharedPrompts, "__init__", "forward")
turns.book(SharedPrompts, "begin", "forward")
turns.book(torch.autograd, "backward", "backward")
turns.book(torch.optim.AdamW, "step", "optimizer")
if arm == "each":
    assert callable(update.equal_rows)
    update.equal_rows = lambda batch, rows: [[row] for row in rows]
run = RunFolder(Path(folder))
run.path.mkdir(parents=True)
state = build(recipe, run, attempts.claim(run), lambda: (model, None), time.monotonic())


def told() -> dict[str, float]:
    """The sequences of the last step and their mean length, from its row in the journal."""
    row = newest_row(run.journal, "step")
    assert row is not None
    return {
        "sampled": row["metrics"]["train/groups_generated"] * recipe.batch.rollouts,
        "trained": row["metrics"]["train/groups_trained"] * recipe.batch.rollouts,
        "response_tokens": row["metrics"]["train/response_tokens"],
        "pass_rate": row["metrics"]["train/pass_rate"],
    }


class Stop(Exception):
    """No more steps are wanted; nothing is saved."""


def in_turns(*given: Any) -> None:
    """A step of the loop, then a pause until it is this arm's turn again."""
    made(*given)
    if not turns.wait(told()):
        raise Stop


made, loop._step = loop._step, in_turns
with contextlib.suppress(Stop):
    loop.train(state, lambda text: None)
