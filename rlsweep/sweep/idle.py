"""What a sweep would train twice, and what it states in vain: refused before anything is written."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rlsweep.errors import RecipeError
from rlsweep.recipe.draft import Draft
from rlsweep.recipe.effect import effective_form, idle, why_the_same
from rlsweep.recipe.key import NOT_IDENTITY
from rlsweep.recipe.text import scalar_text
from rlsweep.sweep.axes import Choice

if TYPE_CHECKING:
    from rlsweep.sweep.expand import Run


def refuse_twins(runs: Sequence["Run"]) -> None:
    """Raise RecipeError where two variants are one run, or two that would learn the same."""
    keys: dict[str, Run] = {}
    forms: dict[object, Run] = {}
    for run in runs:
        other = keys.setdefault(run.key, run)
        if other is not run:
            hint = ""
            if {path.partition(".")[0] for path in (*run.difference, *other.difference)} & set(NOT_IDENTITY):
                hint = "; budget and execution are not part of what a run is"
            raise RecipeError(f"variants {other.variant} and {run.variant} are the same run ({run.key}){hint}")
        if run.seed == runs[0].seed:
            other = forms.setdefault(frozenset(effective_form(run.recipe).items()), run)
            if other is not run:
                why = why_the_same(other.recipe, run.recipe)
                raise RecipeError(f"variants {other.variant} and {run.variant} would train the same run: {why}")


def same_runs(these: Iterable["Run"], those: Sequence["Run"]) -> str:
    """Why the variants of two sweeps would train the same runs under other keys; "" where one differs, or no key."""
    why = ""
    for one, other in zip(these, those, strict=True):
        # A knob that counts once the budget is raised is no mistake.
        forms = [effective_form(run.recipe, within_budget=False) for run in (one, other)]
        if forms[0] != forms[1]:
            return ""
        if not why and one.key != other.key:
            why = why_the_same(one.recipe, other.recipe)
    return why


def refuse_lines_in_vain(variants: Sequence["Run"], points: Sequence[tuple[Choice, ...]], draft: Draft) -> list[str]:
    """Notes on stated leaves that change nothing in a variant.

    Raises RecipeError where whoever stated one could know: what makes it idle was stated no later and isn't varied.
    Whoever lays `off_policy: pipeline-0` over a recipe with a cap of the ratio need not take the cap away.
    """
    varied = {choice.head for point in points for choice in point}
    laid: dict[tuple[str, ...], Draft] = {}
    noted: dict[tuple[str, str], list[str]] = {}
    for point, run in zip(points, variants, strict=True):
        for each in idle(run.recipe):
            for path in each.leaves if each.any_value else ():
                head, _, field = path.partition(".")
                changed = [choice for choice in point if choice.head == head]
                over = laid.setdefault(tuple(choice.label for choice in changed), _over(draft, changed))
                place = over.stated(path)
                if place is None:
                    continue
                could_know = not varied.intersection(cause.partition(".")[0] for cause in each.causes)
                if each.budget is None and could_know and over.layer(path) >= max(map(over.layer, each.causes)):
                    value = scalar_text(getattr(getattr(run.recipe, head), field))
                    raise place.error(path, f"{value} changes nothing here: {each.reason}; leave it out")
                more = "" if each.budget is None else f"; budget.steps={each.budget} or more would do"
                noted.setdefault((path, f"{each.reason}{more}"), []).append(run.variant)
    return [
        f"{path} changes nothing {_where(names, len(variants))}: {reason}" for (path, reason), names in noted.items()
    ]


def _over(draft: Draft, changed: Iterable[Choice]) -> Draft:
    for choice in changed:
        draft = draft.lay(choice.key, choice.node)
    return draft


def _where(names: Sequence[str], variants: int) -> str:
    if len(names) == variants:
        return "here"
    return f"in variant {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
