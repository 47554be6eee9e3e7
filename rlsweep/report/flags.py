"""What a reader must know before using a variant's numbers, in plain sentences."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlsweep.report.numbers import compute, listed, one_line, plural
from rlsweep.report.rows import RunRow

TRUNCATION_WARNING = 0.10
"""Share of responses cut at the token limit from which runs tend to become unstable (ScaleRL A.15)."""

_WINDOW = 1.25
"""Ratio of the compute at the end of two variants from which their windows count as different."""


def of_runs(runs: Sequence[RunRow], step: int | None) -> list[str]:
    """Flags that the runs of one variant raise by themselves; `step` is the last one they share."""
    flags = []
    measured = [run for run in runs if run.measured]
    if measured and len(measured) < len(runs):
        flags.append(f"Only {len(measured)} of {plural(len(runs), 'seed')} {_has(len(measured))} an evaluation.")
    ended: dict[str, list[RunRow]] = {}
    for run in runs:
        if run.state in ("diverged", "failed", "lost"):
            reason = one_line(run.reason).rstrip(".") or "no reason given"
            ended.setdefault(f"{run.state} at step {run.step}: {reason}.", []).append(run)
    flags += [f"{_seeds(those)} {how}" for how, those in ended.items()]
    going = [run for run in measured if run.step < run.wanted_steps and run.state not in ("diverged", "failed", "lost")]
    if going:
        flags.append(f"{_seeds(going)} not at the wanted number of steps yet: all numbers are of what is there.")
    if step is not None and any(int(run.curve.steps[-1]) > step for run in measured if run.curve.steps is not None):
        flags.append(f"Seeds end at different steps: the final pass rate is of step {step}, the last they share.")
    cut = max((run.truncated for run in runs if run.truncated is not None), default=0.0)
    if cut > TRUNCATION_WARNING:
        flags.append(f"{cut:.0%} of responses hit the token limit; above 10% runs tend to become unstable.")
    return flags


def against_base(
    ours: Sequence[RunRow], step: int | None, base: Sequence[RunRow], base_step: int | None, unit: str
) -> list[str]:
    """Flags that only show next to the base variant: other steps, another window of compute."""
    flags = []
    if step is not None and base_step is not None and step != base_step:
        flags.append(f"Measured at step {step}, the base at step {base_step}: final pass rates are not like for like.")
    end, base_end = (
        max((float(run.curve.compute[-1]) for run in runs if run.measured), default=0.0) for runs in (ours, base)
    )
    if min(end, base_end) > 0 and max(end, base_end) > _WINDOW * min(end, base_end):
        flags.append(f"Fitted up to {compute(end, unit)}, the base up to {compute(base_end, unit)}.")
    return flags


def of_recipes(measured: Sequence[str], unnamed: Sequence[str]) -> list[str]:
    """Flags for paths that make a variant's pass rate another quantity, and for those its name doesn't tell."""
    flags = []
    if measured:
        flags.append(f"Measured differently ({listed(list(measured))}): not comparable with the base.")
    if unnamed:
        flags.append(f"Its recipe differs from the base's in more than its name says: {listed(list(unnamed))}.")
    return flags


def of_machines(ours: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    """Flags from provenance: device-hours of unlike devices, runs made by different versions of the code."""
    flags = []
    devices = {_device(provenance) for provenance in (*ours, *base) if provenance}
    if unit == "device_hours" and len(devices) > 1:
        flags.append(f"Ran on unlike devices ({listed(sorted(devices))}): device-hours are not one quantity.")
    commits = {str(commit) for each in (*ours, *base) if (commit := (each.get("git") or {}).get("commit"))}
    if len(commits) > 1:
        flags.append(f"Made by different commits ({listed(sorted(commits))}).")
    return flags


def _seeds(runs: Sequence[RunRow]) -> str:
    return f"Seed{'s' * (len(runs) > 1)} {listed([str(run.seed) for run in runs])}"


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _device(provenance: Mapping[str, Any]) -> str:
    devices = provenance.get("devices") or {}
    return str(devices.get("name") or devices.get("kind") or "unknown")
