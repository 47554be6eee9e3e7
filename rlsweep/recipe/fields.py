"""The schema seen as data: sections, their types and fields, and the strict check of a single value."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rlsweep.recipe.nodes import Node, Scalar
from rlsweep.recipe.schema import Recipe


@dataclass(frozen=True)
class Section:
    """A section: its types by name (a single one named "" where it has no `type`), and the schema's default type."""

    name: str
    types: Mapping[str, type]
    default: str

    @property
    def tagged(self) -> bool:
        """Whether the section comes in types, chosen by its field `type`."""
        return "" not in self.types


@cache
def sections() -> dict[str, Section]:
    """Sections by name, in the schema's order."""
    found = {}
    for field in fields(Recipe):
        hint = get_type_hints(Recipe)[field.name]
        classes = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if not all(is_dataclass(each) for each in classes):
            continue
        by_tag = {tag_of(each): each for each in classes}
        assert field.default_factory is not MISSING
        found[field.name] = Section(field.name, by_tag, tag_of(type(field.default_factory())))
    return found


@cache
def top_leaves() -> dict[str, Any]:
    """Type of each leaf that stands in no section, `name` among them."""
    hints = get_type_hints(Recipe)
    return {field.name: hints[field.name] for field in fields(Recipe) if field.name not in sections()}


@cache
def field_types(section_type: type) -> dict[str, Any]:
    """Type of each field of a section's dataclass, in the schema's order."""
    hints = get_type_hints(section_type)
    return {field.name: hints[field.name] for field in fields(section_type)}


def types_of(section: object) -> dict[str, Any]:
    """The same for a section in hand."""
    section_type: type = type(section)
    return field_types(section_type)


@cache
def field_defaults(section_type: type) -> dict[str, Any]:
    """Default of each field of a section's dataclass."""
    return {field.name: field.default for field in fields(section_type)}


def tag_of(section_type: type) -> str:
    """Name of a section's type: the default of its field `type`, or "" where it has none."""
    return next((str(field.default) for field in fields(section_type) if field.name == "type"), "")


@cache
def all_paths() -> tuple[str, ...]:
    """Every path that a recipe may state, over all types: sections, leaves and fields of sections."""
    paths: dict[str, None] = dict.fromkeys(top_leaves())
    for name, section in sections().items():
        paths[name] = None
        paths |= {f"{name}.{field}": None for each in section.types.values() for field in field_types(each)}
    return tuple(paths)


def nearest(word: str, valid: Iterable[str]) -> str:
    """The end of a message, "; did you mean ...?", where something valid is near, else nothing."""
    found = get_close_matches(word, list(valid), 1)
    return f"; did you mean {found[0]}?" if found else ""


def nearest_path(path: str) -> str:
    """The same for a path of a recipe: a field's bare name is near its full path."""
    last = path.rpartition(".")[2]
    same = [each for each in all_paths() if each.rpartition(".")[2] == last and each != path]
    return f"; did you mean {same[0]}?" if same else nearest(path, all_paths())


def type_text(hint: Any) -> str:
    """What a value must be, in words: "a number", "one of a, b", "a number or null"."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(type_text(each) for each in get_args(hint))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    return {float: "a number", int: "a whole number", bool: "true or false", str: "a text", NoneType: "null"}[hint]


def check(node: Node, path: str, hint: Any) -> Scalar:
    """The node's value as the field's type, or RecipeError: no text is read as a number, no number as a text.

    Only on the command line, where a shell eats quotes, may a text field be given as a bare number or word.
    """
    value = node.value
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if option is str and node.place.line is None and node.plain and value is not None:
            return node.plain
        if get_origin(option) is Literal and isinstance(value, str) and value in get_args(option):
            return value
        if not isinstance(value, dict | list) and isinstance(option, type) and type(value) is option:
            return value
    expected = type_text(hint)
    words = [str(word) for option in options if get_origin(option) is Literal for word in get_args(option)]
    if isinstance(value, str) and words:
        raise node.place.error(path, f"{value!r} is not valid; it must be {expected}{nearest(value, words)}")
    help_ = ""
    if isinstance(value, int | float) and str in options:
        help_ = "; put it in quotes"
    elif isinstance(value, str) and node.plain is None and _is_number(value):
        help_ = "; leave the quotes out"
    raise node.place.error(path, f"{_given(node)} is not valid; it must be {expected}{help_}")


def _given(node: Node) -> str:
    return node.kind if isinstance(node.value, dict | list) or node.value is None else f"{node} ({node.kind})"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
