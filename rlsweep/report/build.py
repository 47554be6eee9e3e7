"""From a sweep's folders to its report: what was wanted, what is there, each variant's law, how it compares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlsweep.curves.axis import default_axis
from rlsweep.errors import UsageError
from rlsweep.launch.status import status
from rlsweep.law.compare import compare
from rlsweep.law.fit import Fit, fit
from rlsweep.recipe.nodes import Scalar
from rlsweep.report import flags, recipes
from rlsweep.report.checklist import checklist
from rlsweep.report.pool import common_step, final_pass_rate
from rlsweep.report.rows import Report, RunRow, VariantRow
from rlsweep.report.runs import read_run
from rlsweep.report.samples import Excerpt, excerpt
from rlsweep.store import ledger, provenance
from rlsweep.store.layout import Root
from rlsweep.store.provenance import Provenance


@dataclass(frozen=True)
class _Variant:
    """A variant as it was found, before it is compared with anything."""

    name: str
    difference: Mapping[str, Scalar]
    recipe: Mapping[str, Scalar]
    runs: tuple[RunRow, ...]
    made: tuple[tuple[Provenance, ...], ...]
    """What made each run, attempt by attempt."""
    step: int | None
    fit: Fit | None
    samples: Excerpt | None


def build(root: Root, sweep_name: str, *, unit: str | None = None) -> Report:
    """The report of a sweep as it stands now.

    `unit` is one of UNITS, by default device_hours where every run had accelerators, else flops.
    UsageError where the sweep has no ledger, RlsweepError where that is damaged. Runs that failed, diverged or never
    began keep their row, and so do those with damaged files: `RunRow.damage` names them.
    """
    folder = root.sweep(sweep_name)
    wanted = ledger.wanted(folder)
    if not wanted:
        raise UsageError(f"{sweep_name!r} is not a sweep under {root.path}: there is no run that it wants")
    folders = {intent.run_key: root.run(intent.run_key) for intent in wanted}
    made = {key: provenance.every(run)[0] for key, run in folders.items()}
    unit = unit or default_axis(provenance.device_kind(each[-1]) for each in made.values() if each)
    differences = {intent.variant: intent.difference for intent in wanted}
    runs = [read_run(root.run(each.run_key), each, unit) for each in status(folder, root).runs]
    found = [
        _variant(root, difference, [run for run in runs if run.variant == name], made)
        for name, difference in differences.items()
    ]
    base = _base(found)
    paths = {path for variant in found for path in variant.difference}
    return Report(
        sweep=sweep_name,
        unit=unit,
        base=base.name,
        base_values={path: value for path, value in base.recipe.items() if path in paths},
        variants=tuple(_row(variant, base, found, unit) for variant in found),
        checklist=checklist(folder, runs, [each for those in made.values() for each in those], unit),
    )


def _variant(
    root: Root,
    difference: Mapping[str, Scalar],
    runs: Sequence[RunRow],
    made: Mapping[str, tuple[Provenance, ...]],
) -> _Variant:
    runs = sorted(runs, key=lambda run: run.seed)
    curves = [run.curve for run in runs if run.measured]
    # An evaluation of the untrained policy alone says nothing about the law.
    trained = any(curve.compute.any() for curve in curves)
    return _Variant(
        name=runs[0].variant,
        difference=difference,
        recipe=recipes.of_first([root.run(run.key).recipe for run in runs]),
        runs=tuple(runs),
        made=tuple(made[run.key] for run in runs),
        step=common_step(curves),
        fit=fit(curves) if trained else None,
        samples=excerpt(root, [root.run(run.key) for run in runs]),
    )


def _base(found: Sequence[_Variant]) -> _Variant:
    """What the others are compared with: the variant named base, else one that differs in nothing, else the first."""
    named = [variant for variant in found if variant.name == "base"]
    same = [variant for variant in found if not variant.difference]
    return (named or same or list(found))[0]


def _row(variant: _Variant, base: _Variant, found: Sequence[_Variant], unit: str) -> VariantRow:
    notes = flags.of_runs(variant.runs, variant.step)
    comparison = None
    measured: tuple[str, ...] = ()
    if variant is not base:
        written = bool(variant.recipe and base.recipe)
        paths = (
            recipes.differing(variant.recipe, base.recipe)
            if written
            else recipes.differing(variant.difference, base.difference)
        )
        measured = recipes.measured_differently(paths)
        notes += flags.of_recipes(measured, [path for path in paths if not _named(path, variant, base)])
        if not measured and variant.fit is not None and base.fit is not None:
            comparison = compare(base.fit, variant.fit)
        notes += flags.against_base(variant.runs, variant.step, base.runs, base.step, unit)
    notes += flags.of_the_same(variant.runs, {other.name: other.runs for other in found if other is not variant})
    notes += flags.of_attempts(variant.runs, variant.made)
    notes += flags.of_machines(_all(variant), _all(base), unit)
    notes += variant.fit.flags if variant.fit else ["No evaluation after the start: there is nothing to fit."]
    return VariantRow(
        name=variant.name,
        difference=dict(variant.difference),
        runs=variant.runs,
        fit=variant.fit,
        comparison=comparison,
        incomparable=measured,
        pass_rate=final_pass_rate([run.curve for run in variant.runs if run.measured], variant.step),
        flags=tuple(dict.fromkeys(notes)),
        samples=variant.samples,
    )


def _all(variant: _Variant) -> list[Provenance]:
    return [each for those in variant.made for each in those]


def _named(path: str, variant: _Variant, base: _Variant) -> bool:
    """Whether a differing path is part of what the two variants say of themselves.

    A section of another type has other fields: those that only one side has are told by the type.
    """
    told = {*variant.difference, *base.difference}
    section = path.partition(".")[0]
    return path in told or f"{section}.type" in told
