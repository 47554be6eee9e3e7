"""report.json: the report for programs."""

from typing import Any

from rlsweep.law.fit import Quantity
from rlsweep.report.cells import NOT_IDENTIFIED
from rlsweep.report.rows import Report, VariantRow


def to_data(report: Report) -> dict[str, Any]:
    """`{"sweep", "compute_unit", "recipes": [...]}`, one entry a variant; every quantity is `{estimate, low, high}`.

    `seeds` and `points` are those behind the numbers. An estimate is null where the variant is not identified; low and
    high are then still its 90% interval. Without any evaluation all three are null.
    """
    return {
        "sweep": report.sweep,
        "compute_unit": report.unit,
        "recipes": [_variant(row) for row in report.variants],
    }


def _variant(row: VariantRow) -> dict[str, Any]:
    known = row.verdict != NOT_IDENTIFIED
    quantities = {
        name: _quantity(getattr(row.fit, name) if row.fit else None, known) for name in ("A", "B", "C_mid", "R0")
    }
    return {
        "name": row.name,
        "difference": dict(row.difference),
        "seeds": row.seeds,
        "points": row.points,
        "pass_rate": _quantity(row.pass_rate, True),
        "verdict": row.verdict,
        **quantities,
        "flags": list(row.flags),
    }


def _quantity(quantity: Quantity | None, known: bool) -> dict[str, float | None]:
    if quantity is None:
        return {"estimate": None, "low": None, "high": None}
    return {
        "estimate": quantity.estimate if known else None,
        "low": quantity.low,
        "high": quantity.high,
    }
