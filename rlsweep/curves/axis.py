"""What compute is counted in where nobody says."""

from collections.abc import Iterable


def default_axis(kinds: Iterable[str | None]) -> str:
    """`device_hours` where every run of a set had accelerators, else `flops`: a mixed set has nothing else in common.

    `kinds` are the kinds of device the runs had, None for a run that has not begun: it decides nothing.
    """
    known = {kind for kind in kinds if kind is not None}
    return "device_hours" if known and "cpu" not in known else "flops"
