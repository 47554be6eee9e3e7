"""report.html: one file, no network, no scripts; everything that comes from people is escaped by the template."""

from pathlib import Path

from rlsweep.report import plots
from rlsweep.report.cells import DIFFERENCE_HEADINGS, RUN_HEADINGS, cells, differences, headings, run_cells
from rlsweep.report.numbers import one_line, tick
from rlsweep.report.rows import Report, VariantRow
from rlsweep.report.samples import shown
from rlsweep.report.style import looks
from rlsweep.report.words import answer, sentence, standings


def to_html(report: Report) -> str:
    """The whole page."""
    import jinja2

    styles = looks([row.name for row in report.variants], report.base)
    drawn = [row for row in report.variants if row.fit is not None]
    # What is measured differently has a picture of its own and none together with the others.
    together = [row for row in drawn if not row.incomparable]
    base = next((row for row in drawn if row.name == report.base), None)
    wide = len(drawn) == 1
    facets = [
        (row, plots.facet(row, None if row.incomparable else base, styles, report.unit, wide=wide), legend(row))
        for row in drawn
    ]
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        report=report,
        title=one_line(report.sweep),
        answer=answer(report),
        standings=standings(report),
        styles=styles,
        headings=headings(report),
        variants=[(row, cells(row), sentence(row, report)) for row in report.variants],
        overview=plots.overview(together, styles, report.unit) if len(together) > 1 else None,
        drawn=drawn,
        together=together,
        apart=[row for row in drawn if row.incomparable],
        facets=facets,
        forests=[plots.forest(together, styles, name, report.unit) for name in ("A", "C_mid")] if together else [],
        beyond=tick(plots.BEYOND),
        run_headings=RUN_HEADINGS,
        runs=[(styles[row.name], run, run_cells(run, report.unit)) for row in report.variants for run in row.runs],
        written=[row for row in report.variants if row.samples is not None],
        shown=shown,
        difference_headings=DIFFERENCE_HEADINGS,
        differences=differences(report),
    )


def legend(row: VariantRow) -> str:
    """Which seed has which filling."""
    if len(row.curves) < 2:
        return ""
    words = [f"seed {curve.seed} {'hollow' if index % 2 else 'filled'}" for index, curve in enumerate(row.curves)]
    return ", ".join(words)
