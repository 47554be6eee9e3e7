"""What a report says in words: a verdict line a variant, and the answer of the whole sweep in one paragraph."""

from collections import Counter

from rlsweep.law.compare import Comparison
from rlsweep.law.fit import Fit, Quantity
from rlsweep.report.cells import NOT_IDENTIFIED, interval
from rlsweep.report.numbers import listed, one_line, plural, rate, times
from rlsweep.report.rows import Report, VariantRow

_NAMED = 4
"""Up to so many variants the opening paragraph names each one with its ceiling."""


def sentence(row: VariantRow, report: Report) -> str:
    """The verdict line of a variant: what is known of its ceiling, then how it stands against the base."""
    parts = [_ceiling(row)]
    if row.name == report.base:
        if len(report.variants) > 1:
            parts.append("the base of all comparisons")
    elif row.incomparable:
        parts.append(f"not comparable with {one_line(report.base)}")
    elif row.comparison is not None:
        parts += against(row.comparison)
    return f"{one_line(row.name)}: {'; '.join(parts)}"


def against(comparison: Comparison) -> list[str]:
    """What sets a variant apart from the base: ceilings if both are identified, compute to a pass rate both reach."""
    base, difference = one_line(comparison.base), comparison.difference
    parts = []
    if comparison.identified:
        estimate, low, high = map(_signed, (difference.estimate, difference.low, difference.high))
        which = _side(difference, 0.0)
        words = {1: "a higher ceiling than", -1: "a lower ceiling than", 0: "no clear difference in ceiling from"}
        parts.append(f"{words[which]} {base} ({estimate} [{low}, {high}])")
    if comparison.target is None:
        return parts
    if comparison.ratio is None:
        return [*parts, f"does not reach {rate(comparison.target)}, as {base} did"]
    unclear = "" if _side(comparison.ratio, 1.0) else ", no clear difference"
    ratio = f"x{times(comparison.ratio.estimate or 0.0)} {interval(comparison.ratio, times)}"
    return [*parts, f"reaches {rate(comparison.target)} with {ratio} of {base}'s compute{unclear}"]


def answer(report: Report) -> str:
    """One paragraph: how far the sweep has come, whose ceiling it has shown and whose not."""
    measured = [row for row in report.variants if row.fit is not None]
    sentences = [f"{plural(len(report.variants), 'variant')}, {_states(report)}."]
    if measured:
        sentences += _identified([row for row in measured if not row.incomparable])
    else:
        sentences.append(
            "No run has an evaluation after its start yet, so there is nothing to fit and nothing to compare."
        )
    return " ".join(sentences)


def standings(report: Report) -> list[str]:
    """How the variants stand against the base, those of one standing together; empty where nothing can be compared."""
    groups: dict[str, list[str]] = {}
    for row in report.variants:
        if row.incomparable:
            groups.setdefault("measured differently, not compared", []).append(one_line(row.name))
        elif row.comparison is not None:
            groups.setdefault(_standing(row.comparison), []).append(one_line(row.name))
    return [f"{words}: {', '.join(names)}" for words, names in groups.items()]


def _ceiling(row: VariantRow) -> str:
    if row.fit is None:
        return f"A {NOT_IDENTIFIED}"
    A = row.fit.A
    if row.verdict == NOT_IDENTIFIED or A.estimate is None:
        return f"A {NOT_IDENTIFIED} (interval {rate(A.low)} to {rate(A.high)}){_more(row.fit)}"
    return f"A = {rate(A.estimate)} {interval(A, rate)}, {row.verdict}{_more(row.fit)}"


def _more(fit: Fit) -> str:
    if fit.more_compute is None or fit.more_compute <= 1:
        return ""
    return f", about {times(fit.more_compute)}x today's compute would settle it"


def _states(report: Report) -> str:
    states = Counter(run.state for row in report.variants for run in row.runs)
    total = plural(sum(states.values()), "run")
    if len(states) == 1:
        return f"{total}, {'all ' if sum(states.values()) > 1 else ''}{next(iter(states))}"
    return f"{total}: {listed([f'{count} {state}' for state, count in sorted(states.items())])}"


def _identified(measured: list[VariantRow]) -> list[str]:
    """Whose ceiling is known, whose hardly, whose not; and how much more compute it takes where that can be said."""
    sentences = []
    for verdict, words in (
        ("identified", "Ceiling A identified"),
        ("weak", "Only weakly"),
        (NOT_IDENTIFIED, "Not identified"),
    ):
        rows = [row for row in measured if row.verdict == verdict]
        if len(rows) > _NAMED and verdict != NOT_IDENTIFIED:
            low, *_, high = sorted(rows, key=_estimate)
            sentences.append(
                f"{words}: {len(rows)} of {len(measured)}, from {_with_ceiling(low)} to {_with_ceiling(high)}."
            )
        elif rows:
            sentences.append(f"{words}: {listed([_with_ceiling(row) for row in rows])}.")
    unknown = sum(row.verdict != "identified" for row in measured)
    hints = [row.fit.more_compute for row in measured if row.fit and row.fit.more_compute and row.fit.more_compute > 1]
    if hints:
        which = "some of them" if len(hints) < unknown else "it" if unknown == 1 else "them"
        sentences.append(f"About {times(max(hints))}x today's compute would settle {which}.")
    return sentences


def _estimate(row: VariantRow) -> float:
    return row.fit.A.estimate or 0.0 if row.fit else 0.0


def _with_ceiling(row: VariantRow) -> str:
    name = one_line(row.name)
    if row.verdict == NOT_IDENTIFIED or row.fit is None or row.fit.A.estimate is None:
        return name
    return f"{name} ({rate(row.fit.A.estimate)} {interval(row.fit.A, rate)})"


def _standing(comparison: Comparison) -> str:
    found = []
    if comparison.identified:
        side = _side(comparison.difference, 0.0)
        found.append({1: "a higher ceiling", -1: "a lower ceiling", 0: "no clear difference in ceiling"}[side])
    if comparison.ratio is not None:
        side = _side(comparison.ratio, 1.0)
        found.append(
            {1: "more compute", -1: "less compute", 0: "no clear difference in compute"}[side]
            + " to the same pass rate"
        )
    elif comparison.target is not None:
        found.append(f"pass rate {rate(comparison.target)} not reached")
    return ", ".join(found) or "no verdict yet"


def _side(quantity: Quantity, neutral: float) -> int:
    """1 where the whole interval lies above `neutral`, -1 below, 0 where it holds it."""
    return int(quantity.low > neutral) - int(quantity.high < neutral)


def _signed(value: float | None) -> str:
    text = rate(value or 0.0)
    return text if text.startswith("-") else f"+{text}"
