"""Which leaves change nothing in a recipe, and why: it would train the same run with others in their place.

Every rule follows from a formula of `rlsweep/train`, never from data: that a cap is rarely reached is for an experiment
to find, that it can't be reached is said here. Runs are the same up to the rounding of sums.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, isclose, sqrt

from rlsweep.recipe.compute import batches_sampled
from rlsweep.recipe.fields import types_of
from rlsweep.recipe.key import as_local, leaves
from rlsweep.recipe.length import Penalty
from rlsweep.recipe.loss import Cispo, Dapo, DrGrpo, Grpo, Gspo
from rlsweep.recipe.model import Pretrained
from rlsweep.recipe.nodes import Scalar
from rlsweep.recipe.off_policy import Pipeline, Ppo
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
    rules = (_loss, _aggregation, _normalization, _rewards, _off_policy, _within_budget, _others)
    return [each for rule in rules for each in rule(recipe)]


def effective_form(recipe: Recipe, *, within_budget: bool = True) -> Mapping[str, Scalar]:
    """The leaves with one value for all that would train the same run; name and execution are left out.

    Recipes of equal form train the same run: within their budget, or else however far it is raised.
    """
    form = {
        path: value for path, value in leaves(recipe).items() if path != "name" and not path.startswith("execution.")
    }
    for each in idle(recipe):
        if each.budget is not None and not within_budget:
            continue
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
    # They may part sooner than either counts by itself, or not at all.
    numbers = {one.budget.steps + 1, *(each.budget for each in found if each.budget is not None)}
    steps = [number for number in sorted(numbers) if _part(one, other, number)]
    more = f"; budget.steps={steps[0]} or more would do" if steps else ""
    return f"{', '.join(texts)} {'changes' if len(paths) == 1 else 'change'} nothing here: {reasons}{more}"


def _part(one: Recipe, other: Recipe, steps: int) -> bool:
    first, second = (effective_form(replace(each, budget=replace(each.budget, steps=steps))) for each in (one, other))
    return first != second


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
    synchronous = recipe.off_policy in (Pipeline(k=0), Ppo(k=1))
    if holds_one and _same_numbers(recipe) and (synchronous or recipe.budget.steps == 1):
        who = f"{recipe.off_policy.type}-{recipe.off_policy.k}" if synchronous else "a single step"
        reason = (
            f"{who} with the local engine in float32 trains on what the same "
            "policy has just sampled, so importance ratios are 1, no cap or clip is reached and all losses are one"
        )
        limits = tuple(f"loss.{field}" for field in types_of(loss) if field != "type")
        budget = None if synchronous else 2
        yield Idle(limits, {}, reason, _SYNCHRONOUS, any_value=True, budget=budget)
        yield Idle(("loss.type",), {"loss.type": "any"}, reason, _SYNCHRONOUS, budget=budget)
    elif isinstance(loss, Grpo | DrGrpo):
        yield Idle(
            ("loss.type", "loss.eps"),
            {"loss.type": "dapo", "loss.eps_low": loss.eps, "loss.eps_high": loss.eps},
            "grpo and dr_grpo are dapo with eps_low and eps_high alike",
        )


def _same_numbers(recipe: Recipe) -> bool:
    """Whether trainer and sampler, from the same weights, compute the same log-probabilities to float32's rounding."""
    return recipe.execution.engine == "local" and recipe.model.dtype == recipe.model.head_dtype == "float32"


_ALONE = "with 1 prompt a step, a group is the batch"


def _aggregation(recipe: Recipe) -> Iterator[Idle]:
    # A forced phrase starts at the second token at the earliest, so every rollout has a counted token.
    if isinstance(recipe.loss, Gspo) and recipe.aggregation == "prompt":
        reason = "with loss gspo, prompts alike are sequences alike, because all groups are of one size"
        yield Idle(("aggregation",), {"aggregation": "sample"}, reason, ("loss.type",))
    if recipe.batch.prompts == 1 and recipe.aggregation == "token":
        yield Idle(("aggregation",), {"aggregation": "prompt"}, _ALONE, ("batch.prompts",))


def _normalization(recipe: Recipe) -> Iterator[Idle]:
    """A normalization that is `batch` here."""
    reason, cause = "", "batch.rollouts"
    if recipe.normalization == "prompt" and recipe.batch.prompts == 1:
        reason, cause = _ALONE, "batch.prompts"
    elif recipe.batch.rollouts <= 3 and _two_rewards(recipe) and recipe.curriculum.zero_variance == "drop":
        reason = f"groups of {recipe.batch.rollouts} that are neither all right nor all wrong have one deviation"
        if recipe.normalization == "none":
            # Of n rewards, one is apart from the others by `spread`, so their variance is (n - 1) / n^2 spread^2.
            spread = abs(recipe.reward.correct - recipe.reward.wrong)
            deviation = spread * sqrt(recipe.batch.rollouts - 1) / recipe.batch.rollouts
            reason = f"{reason}, and it is 1" if isclose(deviation, 1, rel_tol=1e-6) else ""
    if reason and recipe.normalization != "batch":
        yield Idle(("normalization",), {"normalization": "batch"}, reason, (cause,))


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
    divided = recipe.normalization != "none" or any(_normalization(recipe))
    if divided and not isinstance(recipe.length, Penalty):
        spread = max(earned) - lowest
        if spread >= LEAST_SPREAD:
            unit = spread
        if spread >= LEAST_SPREAD and recipe.normalization != "none":
            reason += f", and normalization {recipe.normalization} divides by their own deviation"
    distances = [float(f"{(each - lowest) / unit:.9g}") for each in earned]
    yield Idle(paths, dict(zip(paths, distances, strict=True)), reason, ("normalization", "length.type"))


def _off_policy(recipe: Recipe) -> Iterator[Idle]:
    options, steps = recipe.off_policy, recipe.budget.steps
    paths = ("off_policy.type", "off_policy.k")
    if options == Ppo(k=1):
        reason = "ppo-1 samples each batch with the newest policy, as pipeline-0 does"
        yield Idle(paths, dict(zip(paths, ("pipeline", 0), strict=True)), reason)
    # Elsewhere a response may go on under newer weights.
    elif recipe.execution.engine == "local" and steps <= (first := batches_sampled(options, 1)):
        reason = f"all batches of {steps:,} step{'s' * (steps > 1)} are sampled by the first policy"
        yield Idle(
            paths,
            dict(zip(paths, ("pipeline", steps - 1), strict=True)),
            reason,
            ("budget.steps", "execution.engine"),
            budget=first + 1,
        )


def _within_budget(recipe: Recipe) -> Iterator[Idle]:
    """What comes into play only after the budget."""
    steps, prompts, task = recipe.budget.steps, recipe.batch.prompts, recipe.task
    if recipe.curriculum.no_positive_resampling is not None and isinstance(task, Registers):
        # Nothing is excluded from an epoch that begins before anything was seen, with a batch of the first policy.
        epoch = max(1, ceil(batches_sampled(recipe.off_policy, 1) * prompts / task.prompts))
        unaffected = epoch * task.prompts // prompts  # batches before the one in which that epoch begins
        if steps <= unaffected:
            asked = f"{steps * prompts:,} of the pool's {task.prompts:,}"
            reason = f"no prompt comes up twice, {steps:,} steps train on {asked}"
            if steps * prompts > task.prompts:
                reason = f"no pass rate is known yet where an epoch of {steps:,} steps begins"
            yield Idle(
                ("curriculum.no_positive_resampling",),
                {"curriculum.no_positive_resampling": None},
                reason,
                ("budget.steps", "batch.prompts", "task.prompts", "off_policy.type", "off_policy.k"),
                any_value=True,
                budget=unaffected + 1,
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


def _others(recipe: Recipe) -> Iterator[Idle]:
    if recipe.optimizer.warmup_steps == 0:
        path = "optimizer.warmup_steps"
        yield Idle((path,), {path: 1}, "a warm-up of 1 step begins at the whole rate, as none does")
    if isinstance(recipe.model, Pretrained) and as_local(recipe.model.path):
        reason = "a local folder enters as it is, without a revision"
        yield Idle(("model.revision",), {}, reason, ("model.path",), any_value=True)
    if isinstance(recipe.task, Math) and as_local(recipe.task.dataset):
        reason = "a local file enters as it is, without a revision"
        yield Idle(("task.revision",), {}, reason, ("task.dataset",), any_value=True)
