"""How the numbers were made: what it takes to judge them and to make them again ((Mis)Fitting, arXiv 2502.18969)."""

import shlex
from collections.abc import Sequence
from importlib import metadata

from rlsweep.errors import RecipeError
from rlsweep.law.fit import WEAK_WIDTH
from rlsweep.law.plan import TARGET_WIDTH
from rlsweep.law.posterior import PRIORS
from rlsweep.report import recipes
from rlsweep.report.numbers import UNITS, listed, one_line, plural, rate
from rlsweep.report.pool import PRIOR_SEEDS
from rlsweep.report.rows import RunRow
from rlsweep.store.layout import SweepFolder
from rlsweep.store.metrics import METRICS
from rlsweep.store.provenance import Provenance

_LAW = (
    "R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B), 0 <= R0 <= A <= 1 (ScaleRL, arXiv 2510.13786, Eq. 1). A: pass rate "
    "with unlimited compute; C_mid: compute at which half of the gain is made; B: steepness; R0: pass rate before "
    "training"
)
_WINDOW = (
    "every evaluation of every run from step 0 on, but for one off the schedule that ended a budget which was raised "
    "later; none was smoothed"
)
_VERDICT = (
    f"identified: the 90% interval of A is at most {rate(TARGET_WIDTH)} wide; weak: at most {rate(WEAK_WIDTH)}; "
    "else not identified"
)
_NOISE = (
    "sampling noise from the counts of every prompt, training wander that is correlated between evaluations, and "
    "seeds' own offsets in A and C_mid; summed over, not fixed"
)
_SEEDS = (
    "pooled in one fit a variant. Final pass rate: mean over seeds at the last step they share; its 90% interval holds "
    "sampling noise and the spread between seeds, the latter averaged with an assumed sd of .01 that counts as "
    f"{PRIOR_SEEDS} seeds (with one seed: assumed alone). The prompts are taken as given: intervals don't cover "
    "another choice of prompts"
)


def checklist(
    folder: SweepFolder, runs: Sequence[RunRow], provenances: Sequence[Provenance], unit: str
) -> tuple[tuple[str, str], ...]:
    """(what, how) pairs in reading order; `provenances` are those of every attempt."""
    report = shlex.join(["rlsweep", "report", folder.name, "--axis", unit])
    try:
        made = " && ".join(command for command in (recipes.command(folder), report) if command)
    except RecipeError as error:  # the numbers don't rest on it
        made = f"{report}; the sweep's own description can't be read: {one_line(str(error))}"
    return (
        ("Law", _LAW),
        ("Window", _WINDOW),
        ("Compute axis", f"{UNITS[unit]}: {_axis(unit)}"),
        ("Noise model", _NOISE),
        ("Priors", PRIORS),
        ("Estimates", "posterior medians; intervals hold 90% of the posterior"),
        ("Verdict", _VERDICT),
        ("Seeds", f"{_seeds(runs)}; {_SEEDS}"),
        ("Evaluation", _evaluations(runs)),
        ("Machines", _machines(provenances)),
        ("Software of the runs", _software(provenances)),
        ("Software of the report", ", ".join(f"{name} {_version(name)}" for name in ("rlsweep", "numpy", "scipy"))),
        ("Make it again", made),
    )


def _axis(unit: str) -> str:
    return "optimizer steps" if unit == "steps" else METRICS[f"clock/{unit}"].meaning


def _seeds(runs: Sequence[RunRow]) -> str:
    seeds = sorted({run.seed for run in runs})
    return f"seed{'s' * (len(seeds) > 1)} {listed([str(seed) for seed in seeds])}"


def _evaluations(runs: Sequence[RunRow]) -> str:
    sizes = {size for run in runs for size in run.sizes}
    texts = [f"{plural(prompts, 'prompt')} x {plural(samples, 'response')}" for prompts, samples in sorted(sizes)]
    return f"{listed(texts)}, of one frozen policy version each" if texts else "none yet"


def _machines(provenances: Sequence[Provenance]) -> str:
    found = set()
    for provenance in provenances:
        devices = provenance.get("devices")
        if devices:
            found.add(f"{devices.get('count')} x {devices.get('name') or devices.get('kind')}")
    return "; ".join(sorted(found)) or "not recorded"


def _software(provenances: Sequence[Provenance]) -> str:
    packages: dict[str, set[str]] = {}
    commits = set()
    for provenance in provenances:
        for name, version in (provenance.get("packages") or {}).items():
            packages.setdefault(str(name), set()).add(str(version))
        git = provenance.get("git") or {}
        if git.get("commit"):
            commits.add(f"commit {git['commit']}{' with uncommitted changes' if git.get('dirty') else ''}")
    texts = [f"{name} {' and '.join(sorted(versions))}" for name, versions in sorted(packages.items())]
    return ", ".join([*texts, *sorted(commits)]) or "not recorded"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "(not installed as a package)"
