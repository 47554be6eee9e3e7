"""From a recipe and its axes to the runs that are wanted."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from rlsweep.errors import RecipeError
from rlsweep.recipe import shipped
from rlsweep.recipe.check import FieldError
from rlsweep.recipe.draft import Draft
from rlsweep.recipe.fields import sections
from rlsweep.recipe.key import NOT_IDENTITY, run_key, section_leaves, variant_key
from rlsweep.recipe.load import assignment, load_draft
from rlsweep.recipe.nodes import Place, Scalar
from rlsweep.recipe.schema import Recipe
from rlsweep.sweep.axes import Axis, Choice, choices, parse_axis, refuse_overlaps, refuse_repeats, reverted
from rlsweep.sweep.idle import refuse_lines_in_vain, refuse_twins, same_runs
from rlsweep.sweep.request import Request, parse_seeds, read_request

BASE = "base"
"""Name of the recipe itself, where no axis states a value."""

MOST_RUNS = 100_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Run:
    """One recipe with its seed. `difference` holds the leaves in which it differs from the base, the seed aside."""

    recipe: Recipe
    variant: str
    difference: Mapping[str, Scalar] = field(hash=False)

    @cached_property
    def key(self) -> str:
        """The run's key."""
        return run_key(self.recipe)

    @cached_property
    def variant_key(self) -> str:
        """The key without the seed: runs that share it are pooled."""
        return variant_key(self.recipe)

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.recipe.seed


@dataclass(frozen=True)
class Sweep:
    """What is wanted: runs in the order of their axes, the seeds of a variant together.

    `spec` holds `expand`'s arguments, from which the same sweep is made again; `notes` say what was left out and why.
    """

    name: str
    recipe_name: str
    scale: str
    runs: tuple[Run, ...]
    spec: dict[str, Any]
    notes: tuple[str, ...] = ()


def expand(
    recipe: str | Path | None = None,
    *,
    scale: str | None = None,
    overrides: Sequence[str] = (),
    vary: Sequence[str] = (),
    zip_: Sequence[str] = (),
    leave_one_out: bool = False,
    seeds: int | str | Sequence[int] | None = None,
    sweep: str | Path | None = None,
    name: str | None = None,
) -> Sweep:
    """The sweep of a recipe over its axes: the product of each `vary`, all `zip_` axes as one, and leave-one-out.

    `vary` and `zip_` are `path=value,value`, `overrides` `path=value`, `seeds` a number or a list; `sweep` is a sweep
    file whose contents stand below the other arguments. Raises RecipeError; nothing is written.
    """
    typed = Request(
        recipe=recipe,
        scale=scale,
        name=name,
        vary=tuple(parse_axis(each, "--vary") for each in vary),
        zip=tuple(parse_axis(each, "--zip") for each in zip_),
        leave_one_out=leave_one_out,
        seeds=parse_seeds(seeds),
    )
    refuse_overlaps((*typed.vary, *typed.zip))
    request = read_request(sweep).under(typed) if sweep is not None else typed
    if request.recipe is None:
        raise RecipeError("no recipe; give its file or a shipped name: " + ", ".join(shipped.names("recipe")))
    draft = load_draft(request.recipe, scale=request.scale, overrides=overrides)
    parts = draft.parts()
    seeds_ = request.seeds or (parts["seed"],)
    points, texts, notes = _points(request, draft, parts, len(seeds_))
    spec = {
        "recipe": _lasting(request.recipe),
        "scale": _lasting(request.scale),
        "overrides": list(overrides),
        "vary": [texts[each.key] for each in request.vary],
        "zip_": [texts[each.key] for each in request.zip],
        "leave_one_out": request.leave_one_out,
        "seeds": list(seeds_),
        "name": request.name,
    }
    runs = tuple(_runs(points, draft, parts, seeds_))
    refuse_twins(runs)
    notes += refuse_lines_in_vain(runs[:: len(seeds_)], points, draft)
    _refuse_idle_overrides(request, overrides, parts, runs[:: len(seeds_)])
    return Sweep(_sweep_name(request, draft), draft.name, draft.scale, runs, spec, tuple(notes))


def differences(sweep: Sweep) -> dict[str, Mapping[str, Scalar]]:
    """Each variant's leaves that differ from the base recipe, in the order of the sweep."""
    return {run.variant: run.difference for run in sweep.runs}


def _points(
    request: Request, draft: Draft, parts: Mapping[str, Any], seeds: int
) -> tuple[list[tuple[Choice, ...]], dict[str, str], list[str]]:
    """Every combination of choices, each axis as text, and notes."""
    refuse_overlaps((*request.vary, *request.zip))
    found = {each.key: choices(each, draft, parts) for each in (*request.vary, *request.zip)}
    groups: list[list[tuple[Choice, ...]]] = []
    for each in request.vary:
        refuse_repeats(each, found[each.key])
        groups.append([(choice,) for choice in found[each.key]])
    if request.zip:
        groups.append(_zipped(request.zip, found))
    notes: list[str] = []
    if request.leave_one_out:
        without, notes = reverted(draft, parts)
        refuse_overlaps((*request.vary, *request.zip, *(Axis(c.key, (c.node,), c.node.place) for c in without)))
        groups.append([(), *((choice,) for choice in without)])
    runs = seeds * prod(map(len, groups))
    if runs > MOST_RUNS:
        raise RecipeError(f"the axes make {runs:,} runs; a sweep has at most {MOST_RUNS:,}")
    points = [tuple(choice for group in point for choice in group) for point in product(*groups)]
    texts = {key: f"{key}={','.join(choice.text for choice in values)}" for key, values in found.items()}
    return points, texts, notes


def _zipped(axes: Sequence[Axis], found: Mapping[str, Sequence[Choice]]) -> list[tuple[Choice, ...]]:
    first = axes[0]
    for each in axes[1:]:
        if len(each.values) != len(first.values):
            counts = ", ".join(f"{axis.key} has {len(axis.values)}" for axis in axes)
            raise each.place.error(each.key, f"zipped axes advance together and need as many values each; {counts}")
    rows = list(zip(*(found[each.key] for each in axes), strict=True))
    seen: dict[tuple[Any, ...], None] = {}
    for row in rows:
        values = tuple(choice.value for choice in row)
        if values in seen:
            raise first.place.error(first.key, f"a combination twice: {','.join(choice.label for choice in row)}")
        seen[values] = None
    return rows


def _runs(
    points: Sequence[tuple[Choice, ...]], draft: Draft, parts: Mapping[str, Any], seeds: Sequence[int]
) -> Iterator[Run]:
    """Runs of each combination. What changes is checked once and remembered: a combination costs microseconds."""
    made: dict[tuple[Any, ...], Any] = {}
    differing: dict[tuple[str, Any], dict[str, Scalar]] = {}
    for point in points:
        variant = ",".join(choice.label for choice in point) or BASE
        try:
            changed = _changed(point, parts, made)
            recipes = [Recipe(name=draft.name, **{**parts, **changed, "seed": seed}) for seed in seeds]
        except FieldError as error:
            raise _refusal(error, point, variant, draft) from None
        difference: dict[str, Scalar] = {}
        for head, value in changed.items():
            if (head, value) not in differing:
                differing[head, value] = _difference(head, value, parts[head])
            difference |= differing[head, value]
        for recipe in recipes:
            yield Run(recipe, variant, difference)


def _changed(point: Sequence[Choice], parts: Mapping[str, Any], made: dict[tuple[Any, ...], Any]) -> dict[str, Any]:
    """Sections and leaves that a combination changes. Raises FieldError, its field named from the recipe's top."""
    changed: dict[str, Any] = {}
    fields: dict[str, dict[str, Any]] = {}
    for choice in point:
        if choice.field:
            fields.setdefault(choice.head, {})[choice.field] = choice.value
        else:
            changed[choice.head] = choice.value
    for head, values in fields.items():
        known = (head, *values.items())
        if known not in made:
            try:
                made[known] = replace(parts[head], **values)
            except FieldError as error:
                raise FieldError(f"{head}.{error.field}", error.message) from None
        changed[head] = made[known]
    return changed


def _refusal(error: FieldError, point: Sequence[Choice], variant: str, draft: Draft) -> RecipeError:
    """The error with the place of what is to be changed: the combination is made once more, the slow way."""
    try:
        for choice in point:
            draft = draft.lay(choice.key, choice.node)
        draft.recipe()
    except RecipeError as located:
        return RecipeError(f"{located} (variant {variant})")
    return RecipeError(f"{error} (variant {variant})")


def _difference(head: str, value: Any, base: Any) -> dict[str, Scalar]:
    if head not in sections():
        return {head: value} if value != base else {}
    before = section_leaves(head, base)
    return {
        path: leaf for path, leaf in section_leaves(head, value).items() if path not in before or before[path] != leaf
    }


def _refuse_idle_overrides(
    request: Request, overrides: Sequence[str], parts: Mapping[str, Any], variants: Sequence[Run]
) -> None:
    """Raise RecipeError where a `--set`, or all of them together, leaves every variant the run that it was."""
    placed = [assignment(text, Place(f"--set {text}")) for text in overrides]
    heads = [key.partition(".")[0] for key, _ in placed]
    judged = [at for at, head in enumerate(heads) if head not in (*NOT_IDENTITY, "seed")]
    if not judged:
        return
    bare = load_draft(request.recipe or "", scale=request.scale)
    for left_out in [*([at] for at in judged), *([judged] if len(judged) > 1 else [])]:
        try:
            draft = bare
            for at, (key, node) in enumerate(placed):
                draft = draft if at in left_out else draft.lay(key, node)
            without = {heads[at] for at in left_out}
            rest = {head: part for head, part in parts.items() if head not in without} | draft.parts(without)
            points, _, _ = _points(request, draft, rest, 1)
            same = ""
            if len(points) == len(variants):
                same = same_runs(_runs(points, draft, rest, (variants[0].seed,)), variants)
        except RecipeError:
            continue  # without it the recipe is not valid
        if same:
            raise RecipeError(f"{', '.join(str(placed[at][1].place) for at in left_out)}: {same}")


def _sweep_name(request: Request, draft: Draft) -> str:
    """Recipe, scale and axes, so that another value is another run of the same sweep."""
    axes = [each.key for each in (*request.vary, *request.zip)] + ["leave-one-out"] * request.leave_one_out
    name = request.name or "-".join(part for part in (draft.name, draft.scale, *axes) if part)
    if not _NAME.fullmatch(name):
        raise RecipeError(
            f"{name!r} is no name for a sweep: it must be at most 100 letters, digits, dots, dashes and underscores"
            + ("" if request.name else "; give --name")
        )
    return name


def _lasting(source: str | Path | None) -> str | None:
    """A recipe or scale by a name that holds in any directory."""
    if source is None or (isinstance(source, str) and "/" not in source and not source.endswith((".yaml", ".yml"))):
        return source
    return str(Path(source).expanduser().resolve())
