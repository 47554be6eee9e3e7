"""Which leaves change nothing in a recipe, and why: it would train the same run with others in their place.

Every rule follows from a formula of `rlsweep/train`, never from data: that a cap is rarely reached is for an experiment
to find, that it can't be reached is said here. Runs are the same up to the rounding of sums.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from rlsweep.recipe.compute import batches_sampled
from rlsweep.recipe.fields import types_of
from rlsweep.recipe.key import as_local, leaves
from rlsweep.recipe.length import Penalty
from rlsweep.recipe.loss import Cispo, Dapo, DrGrpo, Grpo, Gspo
from rlsweep.recipe.model import Pretrained
from rlsweep.recipe.nodes import Scalar
from rlsweep.recipe.off_policy import OffPolicy, Pipeline, Ppo
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Math, Registers
from rlsweep.recipe.text import scalar_text

MISMATCH = 1e-3
"""Importance ratios of what the local engine samples in float32 and trains at once are nearer to 1 than this, by far:
the largest |log pi - log mu| measured on the embedded model is 1.6e-5."""
LEAST_SPREAD = 0.1
"""Rewards that lie so far apart are large beside the 1e-6 that is added to a standard deviation."""
_OUTCOMES = ("correct", "wrong", "truncated", "unparseable")
_SYNCHRONOUS = ("off_policy.type", "off_policy.k", "execution.engine", "model.dtype", "model.head_dtype")


@dataclass(frozen=True)
class Idle:
    """`leaves` of a recipe that might as well be `instead`, for `reason`, one sentence.

    `causes` are the leaves that make it so. `any_value` says that no other value of theirs would change anything
    either, so that a line that states one is in vain. `budget` is the fewest steps with which they would count, None
    where it is not a matter of the budget.
    """

    leaves: tuple[str, ...]
    instead: Mapping[str, Scalar]
    reason: str
    causes: tuple[str, ...] = ()
    any_value: bool = False
    budget: int | None = None


def idle(recipe: Recipe) -> list[Idle]:
    """All that changes nothing in `recipe`. No leaf comes twice."""
    return [*_loss(recipe), *_averages(recipe), *_rewards(recipe), *_within_budget(recipe), *_others(recipe)]


def effective_form(recipe: Recipe) -> Mapping[str, Scalar]:
    """The leaves with one value for all that would train the same run; name and execution are left out.

    Recipes of equal form train the same run.
    """
    form = {
        path: value for path, value in leaves(recipe).items() if path != "name" and not path.startswith("execution.")
    }
    for each in idle(recipe):
        for path in each.leaves:
            del form[path]
        form |= each.instead
    return form


def why_the_same(one: Recipe, other: Recipe) -> str:
    """For two recipes of equal form: the leaves in which they differ, both values of each, and the reasons."""
    before, after = leaves(one), leaves(other)
    paths = [
        path
        for path in (before | after)
        if path != "name"
        and not path.startswith("execution.")
        and (path not in before or path not in after or before[path] != after[path])
    ]
    found = [each for each in (*idle(one), *idle(other)) if not set(paths).isdisjoint(each.leaves)]
    texts = [f"{path} ({_text(before, path)} and {_text(after, path)})" for path in paths]
    reasons = "; ".join(dict.fromkeys(each.reason for each in found))
    steps = [each.budget for each in found if each.budget is not None]
    more = f"; budget.steps={min(steps)} or more would do" if steps else ""
    return f"{', '.join(texts)} {'changes' if len(paths) == 1 else 'change'} nothing here: {reasons}{more}"


def _text(found: Mapping[str, Scalar], path: str) -> str:
    return scalar_text(found[path]) if path in found else "-"


def _loss(recipe: Recipe) -> Iterator[Idle]:
    loss = recipe.loss
    if isinstance(loss, Cispo):
        holds_one = loss.eps_max >= 1
    elif isinstance(loss, Dapo | Gspo):
        holds_one = min(loss.eps_low, loss.eps_high) >= MISMATCH
    else:
        holds_one = loss.eps >= MISMATCH
    if holds_one and _ratio_is_one(recipe):
        reason = (
            f"{recipe.off_policy.type}-{recipe.off_policy.k} with the local engine in float32 trains on what the same "
            "policy has just sampled, so importance ratios are 1, no cap or clip is reached and all losses are one"
        )
        limits = tuple(f"loss.{field}" for field in types_of(loss) if field != "type")
        yield Idle(limits, {}, reason, _SYNCHRONOUS, any_value=True)
        yield Idle(("loss.type",), {"loss.type": "any"}, reason, _SYNCHRONOUS)
    elif isinstance(loss, Grpo | DrGrpo):
        yield Idle(
            ("loss.type", "loss.eps"),
            {"loss.type": "dapo", "loss.eps_low": loss.eps, "loss.eps_high": loss.eps},
            "grpo and dr_grpo are dapo with eps_low and eps_high alike",
        )


def _ratio_is_one(recipe: Recipe) -> bool:
    """Whether trainer and sampler compute a token's log-probability from the same weights and to float32's rounding."""
    return (
        recipe.off_policy in (Pipeline(k=0), Ppo(k=1))
        and recipe.execution.engine == "local"
        and recipe.model.dtype == recipe.model.head_dtype == "float32"
    )


def _averages(recipe: Recipe) -> Iterator[Idle]:
    """Aggregation and normalization that are another's formula here."""
    # A forced phrase starts at the second token at the earliest, so every rollout has a counted token.
    if isinstance(recipe.loss, Gspo) and recipe.aggregation == "prompt":
        reason = "with loss gspo, prompts alike are sequences alike, because all groups are of one size"
        yield Idle(("aggregation",), {"aggregation": "sample"}, reason, ("loss.type",))
    alone = "with 1 prompt a step, a group is the batch"
    if recipe.batch.prompts == 1 and recipe.aggregation == "token":
        yield Idle(("aggregation",), {"aggregation": "prompt"}, alone, ("batch.prompts",))
    if recipe.normalization == "prompt":
        if recipe.batch.prompts == 1:
            yield Idle(("normalization",), {"normalization": "batch"}, alone, ("batch.prompts",))
        elif recipe.batch.rollouts <= 3 and _two_rewards(recipe) and recipe.curriculum.zero_variance == "drop":
            reason = f"groups of {recipe.batch.rollouts} that are neither all right nor all wrong have one deviation"
            yield Idle(("normalization",), {"normalization": "batch"}, reason, ("batch.rollouts",))


def _two_rewards(recipe: Recipe) -> bool:
    """Whether a response earns one of two rewards, for right or not."""
    reward = recipe.reward
    return reward.wrong == reward.truncated == reward.unparseable and not isinstance(recipe.length, Penalty)


def _rewards(recipe: Recipe) -> Iterator[Idle]:
    paths = tuple(f"reward.{outcome}" for outcome in _OUTCOMES)
    earned = [float(getattr(recipe.reward, outcome)) for outcome in _OUTCOMES]
    lowest, unit = min(earned), 1.0
    reason = "rewards are centred within their group, so that a number added to all of them drops out"
    # The length penalty is in units of reward.
    if recipe.normalization != "none" and not isinstance(recipe.length, Penalty):
        spread = max(earned) - lowest
        if spread >= LEAST_SPREAD:
            unit = spread
            reason += f", and normalization {recipe.normalization} divides by their own deviation"
    distances = [float(f"{(each - lowest) / unit:.9g}") for each in earned]
    yield Idle(paths, dict(zip(paths, distances, strict=True)), reason, ("normalization", "length.type"))


def _within_budget(recipe: Recipe) -> Iterator[Idle]:
    """What comes into play only after the budget."""
    steps, prompts, task = recipe.budget.steps, recipe.batch.prompts, recipe.task
    if recipe.curriculum.no_positive_resampling is not None and isinstance(task, Registers):
        asked = batches_sampled(recipe.off_policy, steps) * prompts
        if asked <= task.prompts:
            yield Idle(
                ("curriculum.no_positive_resampling",),
                {"curriculum.no_positive_resampling": None},
                f"no prompt comes up twice, {steps:,} steps ask {asked:,} of the pool's {task.prompts:,}",
                ("budget.steps", "batch.prompts", "task.prompts", "off_policy.type", "off_policy.k"),
                any_value=True,
                budget=_steps_to_sample(recipe.off_policy, task.prompts // prompts + 1),
            )
    if recipe.evaluation.every > steps:
        yield Idle(
            ("evaluation.every",),
            {},
            f"within {steps:,} steps only the start and the end are measured",
            ("budget.steps",),
            any_value=True,
            budget=recipe.evaluation.every,
        )


def _steps_to_sample(options: OffPolicy, batches: int) -> int:
    """The fewest steps in which so many batches are sampled: the inverse of `batches_sampled`."""
    if isinstance(options, Pipeline):
        return max(1, batches - options.k)
    return (ceil(batches / options.k) - 1) * options.k + 1


def _others(recipe: Recipe) -> Iterator[Idle]:
    if recipe.off_policy == Ppo(k=1):
        same: dict[str, Scalar] = {"off_policy.type": "pipeline", "off_policy.k": 0}
        yield Idle(tuple(same), same, "ppo-1 samples each batch with the newest policy, as pipeline-0 does")
    if recipe.optimizer.warmup_steps == 0:
        path = "optimizer.warmup_steps"
        yield Idle((path,), {path: 1}, "a warm-up of 1 step begins at the whole rate, as none does")
    if isinstance(recipe.model, Pretrained) and as_local(recipe.model.path):
        reason = "a local folder enters as it is, without a revision"
        yield Idle(("model.revision",), {}, reason, ("model.path",), any_value=True)
    if isinstance(recipe.task, Math) and as_local(recipe.task.dataset):
        reason = "a local file enters as it is, without a revision"
        yield Idle(("task.revision",), {}, reason, ("task.dataset",), any_value=True)
