"""All that a run is at one moment, built from the recipe, and from its newest checkpoint where it has one."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator, DistributedType
from accelerate.optimizer import AcceleratedOptimizer
from transformers import PreTrainedModel

from rlsweep.errors import RecipeError, RlsweepError
from rlsweep.model.load import load_model, parameter_count
from rlsweep.recipe.length import Interrupt
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.local import LocalEngine
from rlsweep.rollout.protocol import Interruption, RolloutEngine
from rlsweep.store.attempts import Attempt
from rlsweep.store.layout import RunFolder
from rlsweep.tasks.make import make_task
from rlsweep.tasks.protocol import Task
from rlsweep.train.clock import Clock
from rlsweep.train.curriculum import PromptStream
from rlsweep.train.intake import Intake, Tokens
from rlsweep.train.ranks import ALONE, Ranks, forget_alone
from rlsweep.train.saving import Kept, keep, newest, restore

Say = Callable[[str], None]


@dataclass
class State:
    """One run in one process, on each of its ranks the same. `step` counts optimizer steps: the policy's version."""

    recipe: Recipe
    run: RunFolder
    attempt: Attempt
    step: int
    ranks: Ranks
    accelerator: Accelerator
    model: PreTrainedModel
    optimizer: AcceleratedOptimizer
    task: Task
    tokens: Tokens
    stream: PromptStream
    intake: Intake
    engine: RolloutEngine
    clock: Clock
    saved: float
    """When the newest checkpoint was written or read, on the monotonic clock."""
    kept: Kept = field(init=False)
    """The end of the last finished step, which is saved if the run is asked to stop now."""


def build(
    recipe: Recipe,
    run: RunFolder,
    attempt: Attempt,
    source: Callable[[], tuple[str, str | None]],
    started: float,
    say: Say = print,
    ranks: Ranks = ALONE,
) -> State:
    """State of a run from its newest checkpoint, or at step 0.

    A damaged checkpoint is set aside, and the one before it taken. `source` tells where the initial model lies, and
    makes it on rank 0; `started` is the process's start on the monotonic clock. RecipeError for what this version can
    plan but not train, Asked where `ranks` are asked to stop.
    """
    # What can't be trained is refused before anything large is loaded.
    task = make_task(recipe.task)
    if recipe.execution.engine != "local":
        raise RecipeError(f"execution.engine: '{recipe.execution.engine}' is not part of this version; valid: local")
    if recipe.execution.devices != ranks.world:
        raise RecipeError(
            f"execution.devices: {recipe.execution.devices}, and the run was started as {ranks.world} process(es). "
            "With the local engine each process computes on one device, so that both must be the same number"
        )
    accelerator = _accelerator(recipe, ranks)
    checkpoint = newest(run, attempt, ranks, say)
    model, tokenizer = load_model(checkpoint.model) if checkpoint else load_model(*_initial(source, ranks))
    ranks.check()
    tokens = Tokens(tokenizer, task)
    engine = _engine(recipe, model.to(accelerator.device), tokens, ranks)
    options = recipe.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=options.lr,
        betas=(options.beta1, options.beta2),
        eps=options.eps,
        weight_decay=options.weight_decay,
        fused=True,
    )
    clock = Clock(recipe.execution.devices, parameter_count(model), started)
    # No wrapper of the framework's: ranks.py sums gradients, once a step.
    prepared_model = accelerator.prepare_model(model.eval(), evaluation_mode=True)
    prepared_optimizer = accelerator.prepare_optimizer(optimizer)
    stream = PromptStream(recipe.curriculum, task.size, recipe.seed)
    state = State(
        recipe=recipe,
        run=run,
        attempt=attempt,
        step=0,
        ranks=ranks,
        accelerator=accelerator,
        model=prepared_model,
        optimizer=prepared_optimizer,
        task=task,
        tokens=tokens,
        stream=stream,
        intake=Intake(recipe, task, stream, tokens, clock.generated, ranks),
        engine=engine,
        clock=clock,
        saved=time.monotonic(),
    )
    state.kept = restore(state, checkpoint, say) if checkpoint else keep(state, 0, evaluated=False)
    return state


def _accelerator(recipe: Recipe, ranks: Ranks) -> Accelerator:
    """Connect the ranks. RlsweepError where accelerate makes something else of it: it falls back without a word."""
    cpu = recipe.execution.device == "cpu"
    if ranks.world == 1:
        forget_alone()
    else:
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # or accelerate sets its own number
        ranks.meet(cuda=not cpu)
        ranks.check()
    accelerator = Accelerator(cpu=cpu)
    kind = DistributedType.NO if ranks.world == 1 else DistributedType.MULTI_CPU if cpu else DistributedType.MULTI_GPU
    found = (accelerator.num_processes, accelerator.process_index, accelerator.distributed_type)
    if found != (ranks.world, ranks.rank, kind):
        raise RlsweepError(
            f"accelerate takes this process for rank {found[1]} of {found[0]} ({found[2]}); it was started as rank "
            f"{ranks.rank} of {ranks.world} ({kind})"
        )
    return accelerator


def _initial(source: Callable[[], tuple[str, str | None]], ranks: Ranks) -> tuple[str, str | None]:
    """Where the initial model is. Rank 0 makes it if need be; the others come when it is there."""
    made = source() if ranks.leads else None
    ranks.check()
    return made or source()


def _engine(recipe: Recipe, model: PreTrainedModel, tokens: Tokens, ranks: Ranks) -> RolloutEngine:
    interruption = None
    if isinstance(recipe.length, Interrupt):
        interruption = Interruption(tokens.encode(recipe.length.phrase), tokens.encode(recipe.length.end))
        last = recipe.length.latest + len(interruption.phrase)
        if last >= recipe.sampling.max_tokens:
            raise RecipeError(
                f"length.latest: {recipe.length.latest} and the {len(interruption.phrase)} tokens of the phrase leave "
                f"no room for an answer below sampling.max_tokens ({recipe.sampling.max_tokens})"
            )
    return LocalEngine(
        model,
        eos=tokens.eos,
        dtype=recipe.model.dtype,
        head_dtype=recipe.model.head_dtype,
        interruption=interruption,
        check=ranks.check_sparingly,
    )
