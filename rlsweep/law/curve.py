"""A curve: the evaluations of one run as points of compute and pass rate."""

from dataclasses import dataclass

import numpy as np

LARGEST_COMPUTE = 1e300  # above it the posterior's C_mid would overflow a double


@dataclass(frozen=True, eq=False)
class Curve:
    """Evaluations of one run, in order of compute. Arrays are (points,) float64 and read-only; no point at all is
    allowed.

    name       the variant the run belongs to
    seed       the run's seed, None where unknown
    unit       unit of compute: "flops", "device_hours", ...
    compute    compute spent when the evaluated policy was frozen, >= 0, not decreasing; step 0 stands at 0
    pass_rate  mean pass rate, in [0, 1]
    variance   sampling variance of each pass rate, nan where unknown
    steps      training step of each point, or None

    Raises ValueError where the arrays aren't a curve."""

    name: str
    seed: int | None
    unit: str
    compute: np.ndarray
    pass_rate: np.ndarray
    variance: np.ndarray
    steps: np.ndarray | None = None

    def __post_init__(self) -> None:
        for field in ("compute", "pass_rate", "variance"):
            object.__setattr__(self, field, self._column(field))
        if self.steps is not None:
            object.__setattr__(self, "steps", self._column("steps"))
        if not np.isfinite(self.compute).all() or (self.compute < 0).any() or (self.compute > LARGEST_COMPUTE).any():
            raise ValueError(f"curve {self.name!r}: compute must be finite, >= 0 and at most {LARGEST_COMPUTE:g}")
        if (np.diff(self.compute) < 0).any():
            raise ValueError(f"curve {self.name!r}: points must be sorted by compute")
        if not ((self.pass_rate >= 0) & (self.pass_rate <= 1)).all():
            raise ValueError(f"curve {self.name!r}: pass rates must lie in [0, 1]")
        if (self.variance < 0).any() or np.isinf(self.variance).any():
            raise ValueError(f"curve {self.name!r}: variances must be >= 0 and finite, or nan where unknown")

    def _column(self, field: str) -> np.ndarray:
        try:
            values = np.array(getattr(self, field), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"curve {self.name!r}: {field} must be numbers") from error
        if values.ndim != 1 or (field != "compute" and values.shape != self.compute.shape):
            raise ValueError(f"curve {self.name!r}: {field} must be one number a point, got shape {values.shape}")
        values.flags.writeable = False
        return values
