"""A recipe with every leaf written out: what a run's folder holds, read without scales, layers or OmegaConf."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from rlsweep.recipe.check import FieldError
from rlsweep.recipe.fields import check, field_types, nearest, sections, top_leaves, types_of
from rlsweep.recipe.nodes import Node, read_file
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.text import scalar_text


def dump(recipe: Recipe) -> str:
    """YAML of all leaves in the schema's order; `read_resolved` gives the same recipe."""
    lines = []
    for field in fields(Recipe):
        value = getattr(recipe, field.name)
        if field.name not in sections():
            lines.append(f"{field.name}: {scalar_text(value)}")
            continue
        lines.append(f"{field.name}:")
        lines += [f"  {name}: {scalar_text(getattr(value, name))}" for name in types_of(value)]
    return "\n".join(lines) + "\n"


def read_resolved(path: Path) -> Recipe:
    """The recipe that was dumped. A leaf younger than the file has its default. Raises RecipeError."""
    root = read_file(path)
    entries = _entries(root, "")
    values: dict[str, Any] = {}
    try:
        for key, node in entries.items():
            if key in top_leaves():
                values[key] = check(node, key, top_leaves()[key])
            elif key in sections():
                values[key] = _section(key, node)
            else:
                valid = [*sections(), *top_leaves()]
                raise node.place.error(key, f"unknown key{nearest(key, valid)}; valid: {', '.join(valid)}")
        if "name" not in values:
            raise root.place.error("name", "missing")
        return Recipe(**values)
    except FieldError as error:
        head = error.field.partition(".")[0]
        raise entries.get(head, root).place.error(error.field, error.message) from None


def _section(name: str, node: Node) -> Any:
    entries = _entries(node, name)
    section = sections()[name]
    tag = str(entries["type"].value) if section.tagged and "type" in entries else section.default
    if tag not in section.types:
        raise node.place.error(f"{name}.type", f"{tag!r} is not valid; it must be one of {', '.join(section.types)}")
    hints = field_types(section.types[tag])
    values = {}
    for key, each in entries.items():
        if key not in hints:
            raise each.place.error(f"{name}.{key}", f"unknown key{nearest(key, hints)}; valid: {', '.join(hints)}")
        values[key] = check(each, f"{name}.{key}", hints[key])
    try:
        return section.types[tag](**values)
    except FieldError as error:
        raise entries.get(error.field, node).place.error(f"{name}.{error.field}", error.message) from None


def _entries(node: Node, path: str) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        raise node.place.error(path, f"{node} is not valid; it must be a map")
    return node.value
