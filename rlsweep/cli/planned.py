"""The plan as people and as programs read it."""

from collections.abc import Sequence
from typing import Any

from rlsweep.cli.output import note, print_json, print_rows
from rlsweep.launch.plan import ACTIONS, TO_START, Planned, no_longer_asked_for
from rlsweep.recipe.compute import planned as whole_budget
from rlsweep.store.layout import Root
from rlsweep.sweep.expand import Sweep

_UNITS = {"device_hours": "device-hours", "flops": "FLOP", "rollouts": "rollouts", "response_tokens": "response tokens"}


def to_go(planned: Planned) -> int:
    """Steps that a run still has to make; none where it would not be started."""
    return max(0, planned.run.recipe.budget.steps - planned.step) if planned.action in TO_START else 0


def compute(planned: Planned) -> dict[str, float]:
    """At most so much compute for the steps to go, by unit."""
    share = to_go(planned) / planned.run.recipe.budget.steps
    return {name: share * amount for name, amount in whole_budget(planned.run.recipe).items()}


def print_as_json(sweep: Sweep, root: Root, decisions: Sequence[Planned], lacks: str | None) -> None:
    """One object: the sweep, its runs, what all of them need, what is no longer asked for, what is missing here."""
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
                }
                for each in decisions
            ],
            "compute": _total(decisions),
            "notes": list(sweep.notes),
            "no_longer_asked_for": [
                {"run_key": intent.run_key, "variant": intent.variant, "seed": intent.seed}
                for intent in no_longer_asked_for(sweep, root)
            ],
            "missing": lacks,
        }
    )


def print_as_text(sweep: Sweep, root: Root, decisions: Sequence[Planned]) -> None:
    """A row a run, with what is meant above and the sums below."""
    scale = f" at scale {sweep.scale}" if sweep.scale else ""
    note(f"sweep {sweep.name}: {sweep.recipe_name}{scale}, {_runs(len(decisions))}, in {root.path}")
    for text in sweep.notes:
        note(f"note: {text}")
    head = ("run", "variant", "seed", "action", "steps", "at most", "reason")
    print_rows(head, [_row(each) for each in decisions])
    number = {action: sum(each.action == action for each in decisions) for action in ACTIONS}
    note(", ".join(f"{count} to {action}" for action, count in number.items() if count))
    total = _total(decisions)
    if any(total.values()):
        note("compute at most: " + ", ".join(_amount(unit, amount) for unit, amount in total.items()))
    left = no_longer_asked_for(sweep, root)
    if left:
        names = ", ".join(f"{intent.run_key} ({intent.variant}, seed {intent.seed})" for intent in left[:10])
        more = f" and {len(left) - 10} more" if len(left) > 10 else ""
        note(f"no longer asked for, left as they are: {names}{more}")


def _row(each: Planned) -> tuple[str, ...]:
    needs = compute(each)
    unit = next(unit for unit in _UNITS if unit in needs)
    cost = _amount(unit, needs[unit]) if to_go(each) else "-"
    return (each.run.key, each.run.variant, str(each.run.seed), each.action, str(to_go(each)), cost, each.reason)


def _amount(unit: str, amount: float) -> str:
    return f"{amount:.3g} {_UNITS[unit]}" if amount >= 1e6 or amount < 100 else f"{amount:,.0f} {_UNITS[unit]}"


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _total(decisions: Sequence[Planned]) -> dict[str, Any]:
    """Sums over the runs, for the units that all runs to start know."""
    starting = [compute(each) for each in decisions if to_go(each)]
    return {
        unit: sum(needs[unit] for needs in starting)
        for unit in _UNITS
        if starting and all(unit in needs for needs in starting)
    }
