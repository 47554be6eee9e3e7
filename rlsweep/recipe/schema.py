"""The recipe as a whole: its sections, and what must hold between them."""

from dataclasses import dataclass, field, fields
from typing import Literal

from rlsweep.recipe.batch import Batch
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.check import FieldError
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.evaluation import Evaluation
from rlsweep.recipe.execution import Execution
from rlsweep.recipe.length import Interrupt, Length, Penalty
from rlsweep.recipe.loss import Cispo, DrGrpo, Gspo, Loss
from rlsweep.recipe.model import Embedded, Model
from rlsweep.recipe.off_policy import OffPolicy, Pipeline
from rlsweep.recipe.optimizer import Optimizer
from rlsweep.recipe.reward import Reward
from rlsweep.recipe.sampling import Sampling
from rlsweep.recipe.task import Registers, Task

SEMANTICS = 1
"""Raised whenever a default or a formula changes meaning: it is part of every run's key."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides what a run learns and how it is measured, plus how long (`budget`) and on what (`execution`)."""

    name: str
    """What people call it; not part of the run's key."""
    model: Model = field(default_factory=Embedded)
    """The language model."""
    task: Task = field(default_factory=Registers)
    """Prompts and their verifier."""
    reward: Reward = field(default_factory=Reward)
    """What an answer earns."""
    sampling: Sampling = field(default_factory=Sampling)
    """How rollouts are sampled."""
    batch: Batch = field(default_factory=Batch)
    """Size of a step."""
    loss: Loss = field(default_factory=Cispo)
    """Loss of a token or a sequence."""
    aggregation: Literal["sample", "prompt", "token", "constant"] = "prompt"
    """What is averaged over: `sample` every rollout alike, `prompt` every prompt alike with its tokens alike, `token`
    every token alike, `constant` a fixed divisor of rollouts x token limit (ScaleRL 3.2: prompt)."""
    normalization: Literal["prompt", "batch", "none"] = "batch"
    """What centred rewards are divided by: the standard deviation within their group, over the kept rollouts of the
    batch, or nothing (ScaleRL 3.2: batch)."""
    curriculum: Curriculum = field(default_factory=Curriculum)
    """Which prompts are asked and which groups trained on."""
    off_policy: OffPolicy = field(default_factory=Pipeline)
    """How stale a rollout may be."""
    length: Length = field(default_factory=Interrupt)
    """Length control."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    """AdamW."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    """How the policy is measured."""
    seed: int = 0
    """Seed of the run: order of prompts and every sampled token. The seeds of a variant are pooled in the report."""
    budget: Budget = field(default_factory=Budget)
    """How long."""
    execution: Execution = field(default_factory=Execution)
    """On what."""

    def __post_init__(self) -> None:
        """What must hold between sections; each refusal names the field to change."""
        if self.seed < 0:
            raise FieldError("seed", f"{self.seed} is not valid; it must be 0 or more")
        if isinstance(self.loss, Gspo) and self.aggregation in ("token", "constant"):
            raise FieldError(
                "aggregation",
                f"'{self.aggregation}' weighs tokens, but loss gspo has one ratio a sequence; valid: sample, prompt",
                "loss",
            )
        if isinstance(self.loss, DrGrpo) and (self.aggregation != "constant" or self.normalization != "none"):
            raise FieldError(
                "loss",
                "dr_grpo is GRPO's clip with aggregation 'constant' and normalization 'none'; "
                f"here they are '{self.aggregation}' and '{self.normalization}': set both, or use loss grpo",
                "aggregation",
                "normalization",
            )
        outcomes = {field.name: getattr(self.reward, field.name) for field in fields(self.reward)}
        if len(set(outcomes.values())) == 1 and not isinstance(self.length, Penalty):
            message = f"every outcome earns {self.reward.correct}, so there is nothing to learn; one must earn another"
            raise FieldError("reward.correct", message, *(f"reward.{name}" for name in outcomes))
        if isinstance(self.length, Interrupt) and self.length.latest >= self.sampling.max_tokens:
            raise FieldError(
                "length.latest",
                f"{self.length.latest} leaves no room for an answer; "
                f"it must be below sampling.max_tokens ({self.sampling.max_tokens})",
                "sampling.max_tokens",
            )
        if isinstance(self.length, Penalty) and self.length.limit - self.length.ramp >= self.sampling.max_tokens:
            raise FieldError(
                "length.limit",
                f"no response reaches the penalty: it starts at {self.length.limit - self.length.ramp} tokens and "
                f"sampling.max_tokens is {self.sampling.max_tokens}",
                "length.ramp",
                "sampling.max_tokens",
            )
        if isinstance(self.model, Embedded) and not isinstance(self.task, Registers):
            message = f"the embedded model only knows the task registers, not {self.task.type}"
            raise FieldError("model", message, "task")
