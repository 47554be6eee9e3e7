"""The report's pictures as inline SVG, without scripts, date or random ids: the same numbers give the same bytes."""

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from rlsweep.report.numbers import UNITS, rate, tick
from rlsweep.report.rows import VariantRow
from rlsweep.report.style import MUTED, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BEYOND = 4.0
"""How far past the end of the data the law is drawn, in times today's compute."""

_GAP = 2.4
"""Step 0 stands at the first point's compute divided by this: the log axis has no place of its own for it."""

_INK = "#3a3f47"
_RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rlsweep",
    "text.parse_math": False,  # names come from people: a dollar sign is a dollar sign
    "font.family": "sans-serif",
    "font.size": 8.0,
    "text.color": _INK,
    "axes.edgecolor": "#b5bac1",
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e8eb",
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
}


def overview(rows: Sequence[VariantRow], styles: dict[str, Look], unit: str) -> str:
    """All variants on one pair of axes: median and 90% band of each law, the mean of the seeds as points."""
    with _figure("overview", (4.8, 3.1)) as (figure, svg):
        axes = figure.subplots()
        start = _start(rows)
        crowded = len(rows) > 4
        for row in rows:
            _law(axes, row, styles[row.name], start, band=not crowded, marks=crowded)
            if not crowded:
                _points(axes, row, styles[row.name], start, bars=False)
        _curve_axes(axes, rows, start, unit)
    return svg()


def facet(row: VariantRow, base: VariantRow | None, styles: dict[str, Look], unit: str, *, wide: bool = False) -> str:
    """One variant: evaluations with 90% error bars, its law, the base's law in grey; below, the residuals."""
    with _figure(f"facet-{list(styles).index(row.name)}", (4.8, 3.8) if wide else (3.5, 3.5)) as (figure, svg):
        axes, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3.0, 1.0]})
        start = _start([row])
        if base is not None and base.name != row.name and base.fit is not None:
            _law(axes, base, Look(MUTED, "o", ""), start, band=False)
        _law(axes, row, styles[row.name], start, band=True)
        _points(axes, row, styles[row.name], start, bars=True)
        _residuals(below, row, styles[row.name], start)
        _curve_axes(axes, [row], start, unit)
        axes.set_xlabel("")
        axes.tick_params(labelbottom=False)
        _compute_axis(below, [row], start, unit)
    return svg()


def forest(rows: Sequence[VariantRow], styles: dict[str, Look], name: str, unit: str) -> str:
    """90% intervals of A (or C_mid), one a variant; grey without a point where the variant is not identified."""
    labels = [textwrap.wrap(row.name, 46, break_on_hyphens=False) or [""] for row in rows]
    heights = [0.62 + 0.30 * len(lines) for lines in labels]
    with _figure(f"forest-{name}", (3.5, 0.55 + 0.36 * sum(heights))) as (figure, svg):
        axes = figure.subplots()
        top = 0.0
        for row, lines, height in zip(rows, labels, heights, strict=True):
            _interval(axes, row, styles[row.name], name, top + height - 0.34)
            axes.text(
                0.0, top + 0.1, "\n".join(lines), va="top", ha="left", fontsize=8,
                transform=axes.get_yaxis_transform(), linespacing=1.1,
            )  # fmt: skip
            top += height
        axes.set_ylim(top, 0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="y", visible=False)
        if name == "C_mid":
            _log_ticks(axes, *_forest_range(rows))
            axes.set_xlabel(f"C_mid, {UNITS[unit]} (left is faster)")
        else:
            axes.xaxis.set_major_formatter(lambda value, _: rate(value))
            axes.set_xlabel("A, the pass rate with unlimited compute")
    return svg()


def _interval(axes: "Axes", row: VariantRow, look: Look, name: str, height: float) -> None:
    if row.fit is None:
        axes.text(0.0, height, "no fit", va="center", fontsize=7.5, color=MUTED, transform=axes.get_yaxis_transform())
        return
    quantity = getattr(row.fit, name)
    known = row.verdict != "not identified"
    colour = look.colour if known else MUTED
    axes.plot([quantity.low, quantity.high], [height, height], color=colour, lw=1.8, solid_capstyle="butt")
    axes.plot([quantity.low, quantity.high], [height, height], color=colour, ls="", marker="|", ms=7, mew=1.4)
    if known and quantity.estimate is not None:
        face = look.colour if row.verdict == "identified" else "white"
        axes.plot(
            [quantity.estimate], [height], marker=look.marker, ms=6, color=colour, mfc=face, mew=1.3, ls="", zorder=3
        )


def _forest_range(rows: Sequence[VariantRow]) -> tuple[float, float]:
    fits = [row.fit for row in rows if row.fit is not None]
    low, high = min(fit.C_mid.low for fit in fits), max(fit.C_mid.high for fit in fits)
    pad = max(1.2, (5 * low / high) ** 0.5)  # a factor of 5 in all at least, so that there are ticks to read
    return low / pad, high * pad


def _start(rows: Sequence[VariantRow]) -> float:
    """Where step 0, whose compute is 0, stands on the log axis: clear of the first point after it."""
    trained = [curve.compute[curve.compute > 0] for row in rows for curve in row.curves]
    return min(float(compute[0]) for compute in trained if len(compute)) / _GAP


def _end(rows: Sequence[VariantRow]) -> float:
    return max(float(curve.compute.max()) for row in rows for curve in row.curves)


def _law(axes: "Axes", row: VariantRow, look: Look, start: float, *, band: bool, marks: bool = False) -> None:
    if row.fit is None:
        return
    end = _end([row])
    inside = np.geomspace(start * _GAP**0.5, end, 80)
    untrained = np.array([start / 1.12, start * 1.12])
    beyond = np.geomspace(end, end * BEYOND, 30)
    for place, compute, dashes in (
        (untrained, np.zeros(2), "-"),
        (inside, inside, "-"),
        (beyond, beyond, (0, (3, 2))),
    ):
        middle, low, high = row.fit.predict(compute)
        axes.plot(
            place, middle, color=look.colour, lw=1.5, ls=dashes, zorder=2.5,
            marker=look.marker if marks and len(compute) > 2 else "", ms=4, markevery=(len(compute) // 2, 15),
        )  # fmt: skip
        if band:
            axes.fill_between(place, low, high, color=look.colour, alpha=0.16, lw=0, zorder=1.5)


def _points(axes: "Axes", row: VariantRow, look: Look, start: float, *, bars: bool) -> None:
    for index, curve in enumerate(row.curves):
        place = np.where(curve.compute > 0, curve.compute, start)
        half = 1.645 * np.sqrt(np.nan_to_num(curve.variance)) if bars else None
        axes.errorbar(
            place, curve.pass_rate, yerr=half, fmt=look.marker, ms=3.4 if bars else 2.6, mfc=_face(look, index),
            mec=look.colour, mew=0.8, ecolor=look.colour, elinewidth=0.6, alpha=0.85, zorder=3,
        )  # fmt: skip


def _face(look: Look, index: int) -> str:
    """Seeds share colour and marker; every second one is hollow."""
    return "white" if index % 2 else look.colour


def _residuals(axes: "Axes", row: VariantRow, look: Look, start: float) -> None:
    """Pass rate minus the law at each evaluation, with the 90% range that sampling alone would give, shaded."""
    axes.axhline(0, color=look.colour, lw=0.8)
    largest = 0.01
    if row.fit is not None:
        for index, curve in enumerate(row.curves):
            middle, _, _ = row.fit.predict(curve.compute)
            left_over = curve.pass_rate - middle
            place = np.where(curve.compute > 0, curve.compute, start)
            noise = 1.645 * np.sqrt(np.nan_to_num(curve.variance))
            if index == 0:
                axes.fill_between(place, -noise, noise, color=MUTED, alpha=0.2, lw=0)
            axes.plot(
                place, left_over, marker=look.marker, ms=2.8, mfc=_face(look, index), mec=look.colour, mew=0.8, ls=""
            )
            largest = max(largest, float(np.abs(left_over).max()), float(noise.max()))
    axes.set_ylim(-1.25 * largest, 1.25 * largest)
    axes.yaxis.set_major_locator(_locator(2))
    axes.yaxis.set_major_formatter(lambda value, _: rate(value))
    axes.set_ylabel("residual")


def _curve_axes(axes: "Axes", rows: Sequence[VariantRow], start: float, unit: str) -> None:
    _compute_axis(axes, rows, start, unit)
    axes.yaxis.set_major_locator(_locator(6))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.2f}".removeprefix("0"))
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), min(1.0, high))
    axes.set_ylabel("pass rate")


def _compute_axis(axes: "Axes", rows: Sequence[VariantRow], start: float, unit: str) -> None:
    ends = sorted({_end([row]) for row in rows})
    for end in ends if len(ends) == 1 or ends[-1] > 1.05 * ends[0] else ends[-1:]:
        axes.axvline(end, color=_INK, lw=0.7, ls=(0, (1, 2)), zorder=1)
    _log_ticks(axes, start / 1.25, BEYOND * ends[-1], zero=start)
    axes.set_xlabel(f"compute, {UNITS[unit]}")


def _log_ticks(axes: "Axes", low: float, high: float, *, zero: float | None = None) -> None:
    """A log axis with labels that are plain text; `zero` is the place where step 0 stands."""
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    for mantissas in ((1,), (1, 3), (1, 2, 5)):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        round_numbers = [mantissa * 10.0**decade for decade in decades for mantissa in mantissas]
        inside = [place for place in round_numbers if low <= place <= high and (zero is None or place > 1.3 * zero)]
        if len(inside) >= 3:
            break
    labels = [tick(place) for place in inside]
    places = inside if zero is None else [zero, *inside]
    axes.set_xticks(places, labels if zero is None else ["0", *labels])
    axes.set_xticks([], minor=True)


def _locator(bins: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(bins)


@contextmanager
def _figure(name: str, size: tuple[float, float]) -> Iterator[tuple["Figure", Callable[[], str]]]:
    """Yield a figure and a function that gives its SVG once the block is over."""
    import matplotlib
    from matplotlib.figure import Figure

    texts: list[str] = []
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, lambda: texts[0]
        buffer = io.StringIO()
        figure.savefig(
            buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
        texts.append(_inline(buffer.getvalue(), name))


def _inline(svg: str, name: str) -> str:
    """The <svg> element alone, its ids made unique within the page, its size left to the page."""
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)

    def in_tag(match: re.Match[str]) -> str:
        tag = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', match[0])
        tag = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", tag)
        tag = re.sub(r'href="#([^"]*)"', rf'href="#{name}-\1"', tag)
        return re.sub(r' (width|height)="[^"]*pt"', "", tag) if tag.startswith("<svg") else tag

    return re.sub(r"<[^>]+>", in_tag, body)
