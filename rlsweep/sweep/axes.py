"""Axes: a path of the recipe and the values it takes, each checked once against the recipe it varies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlsweep.recipe.check import FieldError
from rlsweep.recipe.draft import Draft, statement
from rlsweep.recipe.effect import effective_form, why_the_same
from rlsweep.recipe.fields import sections
from rlsweep.recipe.nodes import Node, Place, parse_value
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.text import scalar_text
from rlsweep.sweep.split import split

COMPONENTS = {
    "normalization": "prompt",
    "length": "penalty",
    "curriculum.zero_variance": "keep",
    "off_policy": "ppo-8",
    "model.head_dtype": "bfloat16",
    "aggregation": "sample",
    "curriculum.no_positive_resampling": "null",
    "loss": "dapo",
}
"""ScaleRL's components and the alternative each is put back to in the paper's leave-one-out study (ScaleRL 4)."""


@dataclass(frozen=True)
class Axis:
    """A path and the statements it takes in turn, not yet checked."""

    key: str
    values: tuple[Node, ...]
    place: Place


@dataclass(frozen=True)
class Choice:
    """One checked value of an axis: the whole section or leaf `head`, or one `field` of the section.

    `text` is the value as it can be typed again; `differs` says whether the base has another.
    """

    key: str
    text: str
    node: Node
    value: Any
    differs: bool

    @property
    def label(self) -> str:
        """As a variant's name has it: loss=dapo."""
        return f"{self.key}={self.text}"

    @property
    def head(self) -> str:
        """The section or leaf that is changed."""
        return self.key.partition(".")[0]

    @property
    def field(self) -> str:
        """The field of the section, or "" for all of it."""
        return self.key.partition(".")[2]


def parse_axis(text: str, option: str) -> Axis:
    """`key=value,value` as typed after `option`. Raises RecipeError: a bare word, no values, a value that isn't one."""
    key, equals, values = text.partition("=")
    key = key.strip()
    place = Place(f"{option} {key}")
    if not equals:
        raise place.error("", f"no values; write {key or 'path'}=value,value")
    if not values.strip():
        raise place.error("", "an axis without values")
    return axis(key, [parse_value(value, place) for value in split(values, place, key)], place)


def axis(key: str, values: Sequence[Node], place: Place) -> Axis:
    """An axis; to vary a section's type is to vary the section."""
    head, _, field = key.partition(".")
    if field == "type" and head in sections() and sections()[head].tagged:
        key = head
    if key == "seed":
        raise place.error(key, "seeds are not an axis: the seeds of a variant are pooled; use --seeds")
    if not values:
        raise place.error(key, "an axis without values")
    return Axis(key, tuple(values), place)


def refuse_overlaps(axes: Iterable[Axis]) -> None:
    """Raise RecipeError where two axes vary the same leaf."""
    seen: dict[str, Axis] = {}
    for each in axes:
        for other in seen.values():
            if each.key == other.key:
                raise each.place.error(each.key, f"an axis twice; {other.place} varies it already")
            inner, outer = sorted((each.key, other.key), key=len, reverse=True)
            if inner.startswith(f"{outer}."):
                raise each.place.error(
                    each.key,
                    f"{inner} lies inside {outer}, which {other.place} varies too; write the cases out as whole "
                    f"sections, such as --vary '{outer}={{type: ..., {inner.partition('.')[2]}: ...}},...'",
                )
        seen[each.key] = each


def choices(each: Axis, draft: Draft, parts: Mapping[str, Any]) -> tuple[Choice, ...]:
    """The axis' values, checked one by one over the draft whose finished `parts` are the base. Raises RecipeError."""
    return tuple(_choice(each.key, node, draft, parts) for node in each.values)


def refuse_repeats(each: Axis, found: Sequence[Choice]) -> None:
    """Raise RecipeError where an axis has one value twice, even if written differently."""
    seen: dict[Any, Choice] = {}
    for choice in found:
        if choice.value in seen:
            given = sorted({choice.text, seen[choice.value].text})
            raise each.place.error(each.key, f"a value twice: {' and '.join(given)}")
        seen[choice.value] = choice


def reverted(draft: Draft, parts: Mapping[str, Any]) -> tuple[list[Choice], list[str]]:
    """Components put back one at a time, and notes on those that have nothing to put back. Raises RecipeError."""
    found, notes = [], []
    for key, text in COMPONENTS.items():
        place = Place(f"--leave-one-out {key}={text}")
        choice = _choice(key, parse_value(text, place), draft, parts)
        if not choice.differs:
            notes.append(f"leave-one-out: {key} is {text} already, nothing to revert")
        elif same := _the_same_run(choice, draft, parts):
            notes.append(f"leave-one-out: {key} stays as it is: {same}")
        else:
            found.append(choice)
    return found, notes


def _the_same_run(choice: Choice, draft: Draft, parts: Mapping[str, Any]) -> str:
    """Why a recipe trains the same run with a choice as without; "" where it doesn't, or isn't valid."""
    head, value = choice.head, choice.value
    try:
        changed = replace(parts[head], **{choice.field: value}) if choice.field else value
        base, other = (Recipe(name=draft.name, **each) for each in (parts, {**parts, head: changed}))
    except FieldError:
        return ""  # told with its place when the run is made
    return why_the_same(base, other) if effective_form(base) == effective_form(other) else ""


def _choice(key: str, node: Node, draft: Draft, parts: Mapping[str, Any]) -> Choice:
    laid = draft.lay(key, node)
    head, _, field = key.partition(".")
    if field:
        value: Any = laid.states[head].stated[field].value
        return Choice(key, scalar_text(value), node, value, getattr(parts[head], field) != value)
    if head not in sections():
        value = laid.leaves[head].value
        return Choice(key, scalar_text(value), node, value, parts[head] != value)
    value = laid.section(head)
    return Choice(key, _section_text(head, node, laid), node, value, parts[head] != value)


def _section_text(head: str, node: Node, laid: Draft) -> str:
    """What a statement of a section says, in its shortest form."""
    said: dict[str, Any] = {field: laid.states[head].stated[field].value for field in statement(sections()[head], node)}
    if said.keys() == {"type"}:
        return scalar_text(said["type"])
    if head == "off_policy" and said.keys() == {"type", "k"}:
        return f"{said['type']}-{said['k']}"
    return "{" + ", ".join(f"{field}: {scalar_text(value)}" for field, value in said.items()) + "}"
