"""The plan as people and as programs read it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from rlsweep.cli.output import note, on_terminal, print_json, print_rows, size_text
from rlsweep.cli.plan import Plan
from rlsweep.errors import UsageError
from rlsweep.launch.plan import ACTIONS, TO_START, Planned
from rlsweep.recipe.compute import Disk, at_most, disk, expected_device_hours

_UNITS = {"flops": "FLOP", "rollouts": "rollouts", "response_tokens": "response tokens"}


def to_go(planned: Planned) -> int:
    """Steps that a run still has to make; none where it would not be started."""
    return max(0, planned.run.recipe.budget.steps - planned.step) if planned.action in TO_START else 0


def compute(planned: Planned) -> dict[str, int]:
    """At most so much compute for the steps to go, by unit."""
    recipe = planned.run.recipe
    return at_most(recipe, recipe.budget.steps - to_go(planned))


def device_hours(planned: Planned) -> float | None:
    """About so many device-hours for the steps to go; None where nobody has measured what they take."""
    recipe = planned.run.recipe
    return expected_device_hours(recipe, recipe.budget.steps - to_go(planned))


def print_as_json(plan: Plan) -> None:
    """One object: the sweep, its runs, what all of them need, what goes on without being asked for, what is missing.

    `compute` is a bound, `device_hours` an expectation or null, `disk` bounds in bytes or null. For Slurm `gpu_hours`
    holds what was used, what is expected (or null) and the worst case, and `scripts` each job as it would be submitted,
    unless `refused` says why it would not; one that `follows` starts after others that have to be over first.
    """
    sweep, root, decisions = plan.sweep, plan.root, plan.decisions
    print_json(
        {
            "sweep": sweep.name,
            "recipe": sweep.recipe_name,
            "scale": sweep.scale,
            "root": str(root.path),
            "runs": [
                {
                    "run_key": each.run.key,
                    "variant": each.run.variant,
                    "variant_key": each.run.variant_key,
                    "seed": each.run.seed,
                    "difference": dict(each.run.difference),
                    "action": each.action,
                    "reason": each.reason,
                    "step": each.step,
                    "steps": each.run.recipe.budget.steps,
                    "compute": compute(each),
                    "device_hours": device_hours(each),
                    "disk": _disk_data(disk(each.run.recipe)),
                }
                for each in decisions
            ],
            "compute": _total(decisions),
            "device_hours": _total_hours(decisions),
            "disk": _disk_data(_total_disk(decisions)),
            "notes": list(sweep.notes),
            "no_longer_asked_for": [
                {
                    "run_key": each.intent.run_key,
                    "variant": each.intent.variant,
                    "seed": each.intent.seed,
                    "job": each.job,
                }
                for each in plan.dropped
            ],
            "missing": plan.lacks,
            "cluster": plan.cluster.name,
            "gpu_hours": None if plan.hours is None else {**asdict(plan.hours), "most": plan.cap},
            "problems": plan.problems,
            "refused": plan.refusal,
            "scripts": [
                {
                    "name": each.name,
                    "token": each.folder.name,
                    "runs": each.count,
                    "follows": each.follows,
                    "text": each.text,
                }
                for each in plan.scripts
            ],
        }
    )


def print_as_text(plan: Plan, pruned: bool = False) -> None:
    """A row a run, with what is meant above and the sums below."""
    sweep, root, decisions = plan.sweep, plan.root, plan.decisions
    scale = f" at scale {sweep.scale}" if sweep.scale else ""
    note(f"sweep {sweep.name}: {sweep.recipe_name}{scale}, {_runs(len(decisions))}, in {root.path}")
    for text in sweep.notes:
        note(f"note: {text}")
    hours = _total_hours(decisions)
    cost = "at most" if hours is None else "compute"
    head = ("run", "variant", "seed", "action", "steps", cost, "disk", "reason")
    print_rows(head, [_row(each, in_hours=hours is not None) for each in decisions])
    number = {action: sum(each.action == action for each in decisions) for action in ACTIONS}
    note(", ".join(f"{count} to {action}" for action, count in number.items() if count))
    total = _total(decisions)
    if total:
        about = f"{_hours(hours)}; " if hours is not None else ""
        bounds = ", ".join(f"{_number(amount)} {_UNITS[unit]}" for unit, amount in total.items())
        note(f"compute: {about}at most {bounds}")
    space = _total_disk(decisions)
    if space is not None:
        note(
            f"disk: at most {size_text(space.running)} while all runs go on, {size_text(space.finished)} once "
            f"all have finished, {size_text(space.collected)} after rlsweep gc"
        )
    else:
        note("disk: not known, nobody says how large the model is (execution.parameters)")
    if plan.dropped:
        left = plan.dropped
        names = ", ".join(
            f"{each.intent.run_key} ({each.intent.variant}, seed {each.intent.seed})" for each in left[:10]
        )
        more = f" and {len(left) - 10} more" if len(left) > 10 else ""
        fate = "jobs that no other sweep needs are cancelled" if pruned else "left as they are"
        note(f"no longer asked for, {fate}: {names}{more}")


def print_cost(plan: Plan) -> None:
    """GPU-hours, for Slurm: what was used, what is expected and the worst that can come."""
    hours, cluster = plan.hours, plan.cluster
    if hours is None:
        return
    if hours.worst:
        tries = 1 + cluster.limits.retries
        about = "nobody knows how many are expected" if hours.expected is None else f"about {_rounded(hours.expected)}"
        note(
            f"GPU-hours: {about}, at worst {_rounded(hours.worst)} (each run takes all of {cluster.time} in each of "
            f"{tries} attempts); {_rounded(hours.used)} used so far"
        )
    if hours.expected is not None and hours.expected > hours.worst:
        note("that is more than the attempts of a run may take: raise the profile's time or limits.retries")
    if plan.cap is not None:
        earlier = "" if plan.max_gpu_hours else " (asked for earlier)"
        note(
            f"cap: no attempt starts once {plan.cap:g} GPU-hours are used{earlier}; those at work then end at their "
            f"time limit, at most {_rounded(hours.overshoot)} later"
        )


def print_script(plan: Plan) -> None:
    """What doesn't fit the site or is in the way otherwise, and on a terminal the first script in full."""
    for text in plan.problems:
        note(text)
    if plan.refusal is not None:
        note(f"would be refused: {plan.refusal}")
    if not plan.scripts:
        return
    total = f"the first of {len(plan.scripts)} scripts" if len(plan.scripts) > 1 else "the script"
    if on_terminal():
        click.echo(f"\n{total}:\n\n{plan.scripts[0].text}")
    elif plan.refusal is None:
        jobs = f"{len(plan.scripts)} job{'s' if len(plan.scripts) > 1 else ''}"
        number = sum(each.follows for each in plan.scripts)
        order = f" ({number} to start after others, for limits.parallel)" if number else ""
        note(f"{jobs} would be submitted{order}; --emit DIR writes their scripts, --json holds them")


def refuse_full(folder: Path) -> None:
    """UsageError where a folder for scripts holds files, or is none."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists():
        what = "has files in it" if folder.is_dir() else "is not a folder"
        raise UsageError(f"--emit {folder}: it {what}; name a new or an empty folder")


def emit(plan: Plan, folder: Path, quiet: bool) -> None:
    """Write each script into a folder, in the order of submission."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, script in enumerate(plan.scripts, 1):
        (folder / f"{number:03d}-{script.folder.name}.sh").write_text(script.text, encoding="utf-8")
    if not quiet:
        scripts = f"{len(plan.scripts)} script{'' if len(plan.scripts) == 1 else 's'}"
        note(f"{scripts} written to {folder}")


def _row(each: Planned, in_hours: bool) -> tuple[str, ...]:
    cost = "-"
    if to_go(each):
        needs, hours = compute(each), device_hours(each)
        unit = next(unit for unit in _UNITS if unit in needs)
        cost = _hours(hours) if in_hours and hours is not None else f"{_number(needs[unit])} {_UNITS[unit]}"
    space = disk(each.run.recipe)
    size = "-" if space is None else size_text(space.running)
    return (each.run.key, each.run.variant, str(each.run.seed), each.action, str(to_go(each)), cost, size, each.reason)


def _hours(hours: float) -> str:
    return f"about {_rounded(hours)} device-hours"


def _rounded(hours: float) -> str:
    return _number(float(f"{hours:.3g}"))


def _number(amount: float) -> str:
    return f"{amount:.3g}" if amount >= 1e6 or amount < 100 else f"{amount:,.0f}"


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _total(decisions: Sequence[Planned]) -> dict[str, int]:
    """Sums over the runs, for the units that all runs to start know."""
    starting = [compute(each) for each in decisions if to_go(each)]
    return {
        unit: sum(needs[unit] for needs in starting)
        for unit in _UNITS
        if starting and all(unit in needs for needs in starting)
    }


def _total_disk(decisions: Sequence[Planned]) -> Disk | None:
    """The sums over all runs, where the size of each is known."""
    found = [disk(each.run.recipe) for each in decisions]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    columns = zip(*((each.running, each.finished, each.collected) for each in known), strict=True)
    return Disk(*map(sum, columns))


def _disk_data(space: Disk | None) -> dict[str, int] | None:
    return None if space is None else asdict(space)


def _total_hours(decisions: Sequence[Planned]) -> float | None:
    """The sum over the runs to start, where it is known of each of them."""
    starting = [device_hours(each) for each in decisions if to_go(each)]
    known = [hours for hours in starting if hours is not None]
    return sum(known) if starting and len(known) == len(starting) else None
