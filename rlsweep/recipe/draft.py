"""A recipe in the making: layers laid over one another, each statement with its place, before they are a Recipe."""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlsweep.errors import RecipeError
from rlsweep.recipe.check import FieldError
from rlsweep.recipe.fields import (
    Section,
    check,
    field_defaults,
    field_types,
    nearest,
    nearest_path,
    sections,
    top_leaves,
)
from rlsweep.recipe.key import as_local
from rlsweep.recipe.model import TOKENIZER_FILES
from rlsweep.recipe.nodes import Node, Place
from rlsweep.recipe.schema import Recipe

FIXED = {
    "name": "it belongs to the recipe's file (a sweep is named with --name)",
    "extends": "it belongs to the recipe's file",
    "scale": "use --scale",
}
LOCATIONS = ("model.path", "task.dataset")
"""Texts that may name a file or folder: made absolute, so that the run finds it from another directory."""

_STALENESS = re.compile(r"(?P<type>[a-z]+)-(?P<k>[0-9]+)")


@dataclass(frozen=True)
class State:
    """A section so far: its type, and what the layers have stated since that type was chosen."""

    tag: str
    stated: Mapping[str, Node]


@dataclass(frozen=True)
class Draft:
    """Layers merged so far. `sources` are in the order of layers, the strongest last; `types` are the scale's defaults
    of a type by section, type and field; `scale_source` is the scale's file, "" without one."""

    name: str
    scale: str
    scale_source: str
    origin: Place
    sources: tuple[str, ...]
    types: Mapping[str, Mapping[str, Mapping[str, Node]]]
    states: Mapping[str, State]
    leaves: Mapping[str, Node]

    def lay(self, path: str, node: Node) -> "Draft":
        """The draft with one more statement on top. Raises RecipeError where path or value is not valid."""
        head, dot, field = path.partition(".")
        if dot and not field:
            raise unknown_path(path, node.place)
        sources = (*(each for each in self.sources if each != node.place.source), node.place.source)
        if head in top_leaves() and head != "name" and not field:
            leaf = replace(node, value=check(node, path, top_leaves()[head]))
            return replace(self, sources=sources, leaves={**self.leaves, head: leaf})
        if head not in sections():
            raise unknown_path(path, node.place)
        section = sections()[head]
        stated = {field: node} if field else statement(section, node)
        return replace(self, sources=sources, states={**self.states, head: _laid(section, self.states[head], stated)})

    def section(self, name: str) -> Any:
        """The section as its dataclass, merged and checked by OmegaConf. Raises RecipeError."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        state = self.states[name]
        section_type = sections()[name].types[state.tag]
        layers = (self.types.get(name, {}).get(state.tag, {}), state.stated)
        try:
            values = [{field: node.value for field, node in layer.items()} for layer in layers]
            return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(section_type), *values))
        except FieldError as error:
            raise self.located(error, name) from None
        except OmegaConfBaseException as error:
            place = max(self._places(name), key=self._rank, default=self.origin)
            raise place.error(name, str(error).partition("\n")[0]) from None

    def parts(self, heads: Container[str] | None = None) -> dict[str, Any]:
        """Sections and leaves, all of them but the name or those asked for. What holds between them is not checked."""
        wanted = [name for name in (*sections(), *top_leaves()) if name != "name" and (heads is None or name in heads)]
        stated = {name: node.value for name, node in self.leaves.items()}
        leaves = field_defaults(Recipe) | stated
        return {name: self.section(name) if name in sections() else leaves[name] for name in wanted}

    def recipe(self) -> Recipe:
        """The recipe. Raises RecipeError, with the place of the field that is to be changed."""
        try:
            return Recipe(name=self.name, **self.parts())
        except FieldError as error:
            raise self.located(error) from None

    def located(self, error: FieldError, section: str = "") -> RecipeError:
        """A section's refusal with the place where the field, or one that it clashes with, was stated last."""
        paths = [f"{section}.{field}" if section else field for field in (error.field, *error.others)]
        places = [place for path in paths for place in self._places(path)]
        places = places or [place for path in paths for place in self._places(path.partition(".")[0])]
        return max(places, key=self._rank, default=self.origin).error(paths[0], error.message)

    def stated(self, path: str) -> Place | None:
        """Where a layer above the scale states this leaf last; None where schema or scale decide it."""
        head, _, field = path.partition(".")
        node = self.states[head].stated.get(field) if field else self.leaves.get(head)
        return node.place if node and node.place.source != self.scale_source else None

    def layer(self, path: str) -> int:
        """The strongest layer that states this leaf, a later one being the larger number; -1 for the schema."""
        return max(map(self._rank, self._places(path)), default=-1)

    def _places(self, path: str) -> list[Place]:
        head, _, field = path.partition(".")
        if head in self.leaves:
            return [self.leaves[head].place]
        if head not in self.states:
            return []
        state = self.states[head]
        stated = {**self.types.get(head, {}).get(state.tag, {}), **state.stated}
        return [node.place for name, node in stated.items() if field in ("", name)]

    def _rank(self, place: Place) -> int:
        return self.sources.index(place.source) if place.source in self.sources else -1


def blank(name: str, origin: Place) -> Draft:
    """The schema's defaults alone."""
    states = {each.name: State(each.default, {}) for each in sections().values()}
    return Draft(name=name, scale="", scale_source="", origin=origin, sources=(), types={}, states=states, leaves={})


def unknown_path(path: str, place: Place) -> RecipeError:
    """The error for a path that leads nowhere, with the nearest that leads somewhere."""
    head = path.partition(".")[0]
    if head in FIXED:
        return place.error(path, f"can't be set here: {FIXED[head]}")
    if head in top_leaves():
        return place.error(path, f"{head} has no fields; it is a value of its own")
    valid = [*sections(), *(name for name in top_leaves() if name != "name")]
    return place.error(path, f"unknown key{nearest_path(path)}; valid: {', '.join(valid)}")


def lay_types(draft: Draft, types: Node) -> Draft:
    """The draft with a scale's `types`: defaults of a type at that scale."""
    tagged = [name for name, section in sections().items() if section.tagged]
    laid: dict[str, dict[str, Mapping[str, Node]]] = {}
    for name, by_tag in _entries(types, "types").items():
        if name not in tagged:
            raise by_tag.place.error(f"types.{name}", f"unknown key{nearest(name, tagged)}; valid: {', '.join(tagged)}")
        section = sections()[name]
        laid[name] = {}
        for tag, defaults in _entries(by_tag, f"types.{name}").items():
            if tag not in section.types:
                raise _unknown_type(section, tag, defaults.place)
            stated = _entries(defaults, f"types.{name}.{tag}")
            laid[name][tag] = _laid(section, State(tag, {}), stated).stated
    return replace(draft, types=laid)


def _entries(node: Node, path: str) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        raise node.place.error(path, f"{node} is not valid; it must be a map")
    return node.value


def statement(section: Section, node: Node) -> dict[str, Node]:
    """Fields that a section's statement gives, unchecked; short forms are written out."""
    if isinstance(node.value, dict):
        return node.value
    if not section.tagged:
        fields = ", ".join(field_types(section.types[""]))
        raise node.place.error(section.name, f"{node} is not valid; it must be a map of {fields}")
    if not isinstance(node.value, str):
        raise node.place.error(section.name, f"{node} is not valid; it must be a map or {_types_text(section)}")
    if section.name == "off_policy" and (match := _STALENESS.fullmatch(node.value)):
        k = replace(node, value=int(match["k"]), plain=match["k"])
        return {"type": replace(node, value=match["type"]), "k": k}
    return {"type": node}


def _laid(section: Section, state: State, stated: Mapping[str, Node]) -> State:
    """The section with one more layer: another type starts afresh with that type's defaults."""
    tag, before = state.tag, dict(state.stated)
    if section.tagged and "type" in stated:
        given = stated["type"]
        if not isinstance(given.value, str) or given.value not in section.types:
            raise _unknown_type(section, given.value if isinstance(given.value, str) else str(given), given.place)
        if given.value != tag:
            tag, before = given.value, {}
    hints = field_types(section.types[tag])
    for field, node in stated.items():
        path = f"{section.name}.{field}"
        if field not in hints:
            raise node.place.error(path, _unknown_field(section, tag, field))
        before[field] = replace(node, value=_value(node, path, hints[field]))
    return State(tag, before)


def _value(node: Node, path: str, hint: Any) -> Any:
    value = check(node, path, hint)
    if not isinstance(value, str):
        return value
    # OmegaConf would look the first up and take the second for a value still to come.
    if "${" in value or value == "???":
        raise node.place.error(path, f"{value!r} is not valid; a text must not be ??? or hold ${{")
    if path in LOCATIONS:
        return _anchored(node, path, value)
    return value


def _anchored(node: Node, path: str, value: str) -> str:
    """A path as an absolute one, relative to the file that states it; a name that is no path here is a hub's."""
    base = Path() if node.place.line is None else Path(node.place.source).parent
    local = base / Path(value).expanduser()
    if value and local.exists():
        if path == "model.path" and not (local / "config.json").is_file():
            raise node.place.error(path, f"{value!r} is no model's folder: it holds no config.json")
        if path == "model.path" and not any((local / name).is_file() for name in TOKENIZER_FILES):
            raise node.place.error(path, f"{value!r} holds no tokenizer; one of {', '.join(TOKENIZER_FILES)} is needed")
        return str(local.resolve())
    if as_local(value) is not None:
        raise node.place.error(path, f"{value!r}: no such file or folder")
    return value


def _types_text(section: Section) -> str:
    extra = " (or with its k, such as pipeline-8)" if section.name == "off_policy" else ""
    return f"one of {', '.join(section.types)}{extra}"


def _unknown_type(section: Section, given: str, place: Place) -> RecipeError:
    near = nearest(given, section.types)
    return place.error(section.name, f"{given!r} is not valid; it must be {_types_text(section)}{near}")


def _unknown_field(section: Section, tag: str, field: str) -> str:
    valid = field_types(section.types[tag])
    owners = [other for other, section_type in section.types.items() if field in field_types(section_type)]
    near = nearest(field, valid)
    if owners:
        near = f"; {field} belongs to {' and '.join(owners)}"
    elif not near and not nearest_path(field).endswith(f".{field}"):
        near = ""
    elif not near:
        near = nearest_path(field)
    who = f"{section.name} {tag}" if tag else section.name
    return f"unknown key{near}; {who} has: {', '.join(valid)}"
