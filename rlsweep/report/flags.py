"""What a reader must know before using a variant's numbers, in plain sentences."""

from collections.abc import Mapping, Sequence

from rlsweep.report.numbers import compute, listed, one_line, plural
from rlsweep.report.rows import RunRow
from rlsweep.store.provenance import Provenance, device_kind

TRUNCATION_WARNING = 0.10
"""Share of responses cut at the token limit from which runs tend to become unstable (ScaleRL A.15)."""

_PACKAGES = ("rlsweep", "torch", "transformers")
"""Packages whose version decides what a step does."""

_WINDOW = 1.25
"""Ratio of the compute at the end of two variants from which their windows count as different."""


def of_runs(runs: Sequence[RunRow], step: int | None) -> list[str]:
    """Flags that the runs of one variant raise by themselves; `step` is the last one they share."""
    flags = [f"Seed {run.seed} has a damaged file, {each}." for run in runs for each in run.damage]
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
    worst = max((run.most_truncated for run in runs if run.most_truncated is not None), default=0.0)
    if cut <= TRUNCATION_WARNING < worst:
        flags.append(
            f"Up to {worst:.0%} of responses hit the token limit on the way, {cut:.0%} by the end; above 10% runs tend "
            "to become unstable."
        )
    failed = [run for run in runs if run.verifier_errors]
    if failed:
        count = sum(run.verifier_errors for run in failed)
        flags.append(
            f"{_seeds(failed)}: the verifier raised, hung or returned no outcome on {plural(count, 'response')}; "
            f"{'it counts' if count == 1 else 'they count'} as unparseable."
        )
    return flags


def of_the_same(ours: Sequence[RunRow], others: Mapping[str, Sequence[RunRow]]) -> list[str]:
    """A flag for the variants whose runs of the same seeds have the very same evaluations, wherever both have one."""
    same: dict[tuple[int, ...], list[str]] = {}
    for name, theirs in others.items():
        if seeds := _the_same(ours, theirs):
            same.setdefault(seeds, []).append(one_line(name))
    return [
        f"Its evaluations are those of {listed(names)}, prompt for prompt ({_named('seed', seeds)}): the difference "
        "changed nothing in these runs."
        for seeds, names in same.items()
    ]


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


def of_attempts(runs: Sequence[RunRow], made: Sequence[Sequence[Provenance]]) -> list[str]:
    """Flags of runs that were resumed with other code or on another kind of device; `made` has a run's attempts."""
    changed: dict[str, list[RunRow]] = {}
    for run, provenances in zip(runs, made, strict=True):
        traits = [_traits(each) for each in provenances]
        ways = []
        for what in dict.fromkeys(what for each in traits for what in each):
            values = list(dict.fromkeys(each[what] for each in traits if what in each))
            if len(values) > 1:
                ways.append(f"another {what} ({one_line(', then '.join(values))})")
        if ways:
            changed.setdefault(listed(ways), []).append(run)
    return [f"{_seeds(those)} went on with {how}." for how, those in changed.items()]


def of_machines(ours: Sequence[Provenance], base: Sequence[Provenance], unit: str) -> list[str]:
    """Flags from the provenance of all attempts: device-hours of unlike devices, different versions of the code."""
    flags = []
    devices = {_device(provenance) for provenance in (*ours, *base) if provenance}
    if unit == "device_hours" and len(devices) > 1:
        flags.append(f"Ran on unlike devices ({listed(sorted(devices))}): device-hours are not one quantity.")
    commits = {str(commit) for each in (*ours, *base) if (commit := (each.get("git") or {}).get("commit"))}
    if len(commits) > 1:
        flags.append(f"Made by different commits ({listed(sorted(commits))}).")
    return flags


def _the_same(ours: Sequence[RunRow], theirs: Sequence[RunRow]) -> tuple[int, ...]:
    """The seeds that both have, none where the evaluations of one differ or where there is none after the start."""
    seeds = []
    for one, other in ((one, other) for one in ours for other in theirs if one.seed == other.seed):
        steps = one.marks.keys() & other.marks.keys()
        if max(steps, default=0) == 0 or any(one.marks[step] != other.marks[step] for step in steps):
            return ()
        seeds.append(one.seed)
    return tuple(seeds)


def _seeds(runs: Sequence[RunRow]) -> str:
    return _named("Seed", [run.seed for run in runs])


def _named(noun: str, numbers: Sequence[int]) -> str:
    return f"{noun}{'s' * (len(numbers) > 1)} {listed([str(number) for number in numbers])}"


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _traits(provenance: Provenance) -> dict[str, str]:
    """What must not change while a run is made, as far as it was recorded."""
    packages = provenance.get("packages") or {}
    found = {
        "commit": (provenance.get("git") or {}).get("commit"),
        **{name: packages.get(name) for name in _PACKAGES},
        "kind of device": device_kind(provenance),
    }
    return {what: str(value) for what, value in found.items() if value is not None}


def _device(provenance: Provenance) -> str:
    devices = provenance.get("devices") or {}
    return str(devices.get("name") or devices.get("kind") or "unknown")
