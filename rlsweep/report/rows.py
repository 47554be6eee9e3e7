"""What a report holds: one row a run, one row a variant, and the facts that say how the numbers were made."""

from collections.abc import Mapping
from dataclasses import dataclass

from rlsweep.law.compare import Comparison
from rlsweep.law.curve import Curve
from rlsweep.law.fit import Fit, Quantity
from rlsweep.recipe.nodes import Scalar
from rlsweep.report.samples import Excerpt


@dataclass(frozen=True)
class RunRow:
    """One wanted run. `compute` and `lost` are in the report's unit."""

    key: str
    variant: str
    seed: int
    state: str
    """As `rlsweep status` gives it: waiting, running, finished, interrupted, failed, diverged or lost."""
    reason: str
    step: int
    """Newest step in the journal; where that is damaged, the step that the run is known to have reached."""
    wanted_steps: int
    attempts: int
    curve: Curve
    """Its evaluations; no point before the first."""
    compute: float | None
    lost: float
    """Compute of the rows that were discarded when the run was resumed."""
    sizes: tuple[tuple[int, int], ...]
    """(prompts, responses a prompt) of its evaluations."""
    truncated: float | None
    """Share of responses cut at the token limit: the last evaluation, or training since the one before if larger."""
    interrupted: float | None
    """Share of responses whose reasoning was interrupted, in the last evaluation."""
    most_truncated: float | None
    """The largest share cut at the token limit: in an evaluation, or in training between two of them."""
    verifier_errors: int
    """Responses that count as unparseable because the verifier failed on them."""
    marks: Mapping[int, int]
    """Step -> hash of the evaluation made there, down to each prompt's successes; not of those where all answers were
    right or all wrong, which look alike for other reasons."""
    damage: tuple[str, ...]
    """What is wrong with its files, one sentence each without a full stop; what they hold is then left out."""

    @property
    def measured(self) -> bool:
        """Whether there is an evaluation."""
        return len(self.curve.compute) > 0

    @property
    def pass_rate(self) -> float | None:
        """Pass rate of the last evaluation."""
        return float(self.curve.pass_rate[-1]) if self.measured else None


@dataclass(frozen=True)
class VariantRow:
    """One variant: its runs, pooled over seeds. `fit` is None when no seed has an evaluation after the start."""

    name: str
    difference: Mapping[str, Scalar]
    """Dotted path -> value, for every leaf that differs from the sweep's recipe."""
    runs: tuple[RunRow, ...]
    fit: Fit | None
    comparison: Comparison | None
    """Against the base variant; None for the base itself and where a comparison would not be sound."""
    incomparable: tuple[str, ...]
    """Paths of task, evaluation and model that differ from the base: with any, there is no comparison."""
    pass_rate: Quantity | None
    """Mean over seeds of the evaluation at the last step they share, with a 90% interval."""
    flags: tuple[str, ...]
    """Plain sentences."""
    samples: Excerpt | None
    """What the model of its first seed with samples wrote; None where there are none."""

    @property
    def curves(self) -> tuple[Curve, ...]:
        """Curves of the seeds that have an evaluation: those behind the numbers."""
        return tuple(run.curve for run in self.runs if run.measured)

    @property
    def seeds(self) -> int:
        """Seeds behind the numbers."""
        return len(self.curves)

    @property
    def points(self) -> int:
        """Evaluations behind the numbers."""
        return sum(len(curve.compute) for curve in self.curves)

    @property
    def verdict(self) -> str:
        """identified, weak or not identified."""
        return self.fit.verdict if self.fit else "not identified"


@dataclass(frozen=True)
class Report:
    """All that the writers need; building it twice from the same root gives equal texts."""

    sweep: str
    unit: str
    base: str
    """Name of the variant the others are compared with."""
    base_values: Mapping[str, Scalar]
    """What the base has at the paths in which some variant differs from it; empty before its recipe is written."""
    variants: tuple[VariantRow, ...]
    checklist: tuple[tuple[str, str], ...]
    """(what, how) pairs: all that is needed to judge the numbers and to make them again."""
