"""What each leaf of a recipe means: its docstring in the schema, with type, valid values and default."""

import ast
import inspect
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlsweep.errors import RecipeError
from rlsweep.recipe.fields import field_defaults, field_types, nearest_path, sections, top_leaves, type_text
from rlsweep.recipe.nodes import Scalar
from rlsweep.recipe.schema import Recipe


@dataclass(frozen=True)
class Explanation:
    """One leaf. `of` is the section's type that has it ("" where the section has only one); `default` is None where
    the recipe must state it (`required`) or where null is the default."""

    path: str
    of: str
    valid: str
    default: Scalar
    required: bool
    text: str


def explain(path: str = "") -> tuple[Explanation, ...]:
    """The leaves under a path: all of them, a section's, or one (several where types share the name).

    `loss.gspo` means the leaves of one type, `loss.gspo.eps_low` one of those. Raises RecipeError for an unknown path.
    """
    found = tuple(each for each in _all() if path in ("", *_names(each)))
    if not found:
        raise RecipeError(f"{path}: no such leaf or section{nearest_path(path)}")
    return found


def _names(each: Explanation) -> tuple[str, ...]:
    """Every path by which a leaf is meant."""
    section, _, field = each.path.partition(".")
    types = (each.of,) if each.of else sections()[section].types if field == "type" else ()
    return (section, each.path, *(name for tag in types for name in (f"{section}.{tag}", f"{section}.{tag}.{field}")))


@cache
def _all() -> tuple[Explanation, ...]:
    found = []
    for name, text in docstrings(Recipe).items():
        if name in top_leaves():
            found.append(_explanation(name, "", type_text(top_leaves()[name]), field_defaults(Recipe)[name], text))
            continue
        section = sections()[name]
        if section.tagged:
            valid = "one of " + ", ".join(section.types)
            kinds = [f"{tag}: {inspect.getdoc(each) or ''}".partition("\n")[0] for tag, each in section.types.items()]
            found.append(_explanation(f"{name}.type", "", valid, section.default, "\n".join([text, *kinds])))
        for tag, section_type in section.types.items():
            texts, defaults = docstrings(section_type), field_defaults(section_type)
            for field, hint in field_types(section_type).items():
                if field != "type":
                    found.append(_explanation(f"{name}.{field}", tag, type_text(hint), defaults[field], texts[field]))
    return tuple(found)


def _explanation(path: str, of: str, valid: str, default: Any, text: str) -> Explanation:
    required = not isinstance(default, str | int | float | None) or default == ""
    return Explanation(path, of, valid, None if required else default, required, text)


@cache
def docstrings(section_type: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, in order; a field without one has an empty text."""
    source = Path(inspect.getfile(section_type)).read_text(encoding="utf-8")
    body = next(
        each.body
        for each in ast.parse(source).body
        if isinstance(each, ast.ClassDef) and each.name == section_type.__name__
    )
    found: dict[str, str] = {}
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        texts = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        found[statement.target.id] = " ".join(str(texts).split())
    return found
