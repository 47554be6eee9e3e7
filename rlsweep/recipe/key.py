"""What a run is, as twelve digits: the key over everything that decides it, and the leaves of a recipe."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from rlsweep.errors import RecipeError
from rlsweep.recipe.fields import field_defaults, sections, tag_of, types_of
from rlsweep.recipe.nodes import Scalar
from rlsweep.recipe.schema import SEMANTICS, Recipe

DIGITS = 12
NOT_IDENTITY = ("name", "budget", "execution")
"""What a recipe says that doesn't decide what a run learns."""

_CONTENT = {("model", "path"): ("revision",), ("task", "dataset"): ("revision",)}
"""Fields that may name a local file or folder, with those that say nothing about it then."""


def run_key(recipe: Recipe) -> str:
    """First 12 hex digits of SHA-256 over canonical JSON of SEMANTICS and every leaf that differs from its default.

    Name, budget and execution are left out. A local model or data file enters by its content, a hub's by name and
    revision. Raises RecipeError where a local one is not there.
    """
    return _digest(_identity(recipe))


def variant_key(recipe: Recipe) -> str:
    """The same without the seed."""
    return _digest({path: value for path, value in _identity(recipe).items() if path != "seed"})


def leaves(recipe: Recipe) -> dict[str, Scalar]:
    """Every leaf by its dotted path, in the schema's order."""
    found: dict[str, Scalar] = {}
    for field in fields(Recipe):
        value = getattr(recipe, field.name)
        found |= section_leaves(field.name, value) if field.name in sections() else {field.name: value}
    return found


def difference(recipe: Recipe, base: Recipe) -> dict[str, Scalar]:
    """Leaves of `recipe` that `base` lacks or has otherwise; the name is not compared."""
    before = leaves(base)
    return {
        path: value
        for path, value in leaves(recipe).items()
        if path != "name" and (path not in before or before[path] != value)
    }


def embedded_identity(recipe: Recipe) -> tuple[tuple[str, Scalar], ...]:
    """The leaves that decide the weights of the embedded model that `recipe` starts from."""
    others = ("model.dtype", "model.head_dtype", "task.prompts")
    return tuple(
        (path, value)
        for path, value in leaves(recipe).items()
        if path.startswith(("model.", "task.")) and path not in others
    )


@lru_cache(maxsize=65_536)
def section_leaves(name: str, section: Any) -> Mapping[str, Scalar]:
    """Leaves of one section; a whole number in a field of numbers is the number it stands for."""
    return {
        f"{name}.{field}": float(value) + 0.0 if hint is float and isinstance(value, int | float) else value
        for field, hint in types_of(section).items()
        for value in (getattr(section, field),)
    }


def as_local(text: str) -> Path | None:
    """The path that a text certainly means (absolute, or starting with a dot or ~), else None: a hub's name."""
    path = Path(text).expanduser()
    return path if path.is_absolute() or text.startswith(".") else None


@cache
def fingerprint(path: Path) -> str:
    """SHA-256 over relative names and contents of a file or folder, looked at once in a process.

    Names that start with a dot are left out: caches and notes of version control and downloads.
    """
    digest = hashlib.sha256()
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    named = {file.relative_to(path).as_posix() if file != path else "": file for file in files}
    for name, file in sorted(named.items()):
        if any(part.startswith(".") for part in name.split("/")):
            continue
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(json.dumps([name, content]).encode())
    return digest.hexdigest()


def _identity(recipe: Recipe) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for field in fields(Recipe):
        if field.name in NOT_IDENTITY:
            continue
        value = getattr(recipe, field.name)
        if field.name in sections():
            found |= _section_identity(field.name, value)
        elif value != field.default:
            found[field.name] = value
    return found


@lru_cache(maxsize=65_536)
def _section_identity(name: str, section: Any) -> Mapping[str, Scalar]:
    section_type: type = type(section)
    defaults = {f"{name}.{field}": value for field, value in field_defaults(section_type).items()}
    values = section_leaves(name, section)
    found = {path: value for path, value in values.items() if value != defaults[path]}
    if tag_of(section_type) != sections()[name].default:
        found[f"{name}.type"] = tag_of(section_type)
    for (owner, field), silent in _CONTENT.items():
        given = values.get(f"{name}.{field}") if owner == name else None
        local = as_local(given) if isinstance(given, str) else None
        if local is not None:
            if not local.exists():
                raise RecipeError(f"{name}.{field}: {local}: no such file or folder, so the run has no key")
            found[f"{name}.content"] = fingerprint(local)
            for each in (field, *silent):
                found.pop(f"{name}.{each}", None)
    return found


def _digest(identity: Mapping[str, Scalar]) -> str:
    content = json.dumps(
        {"semantics": SEMANTICS, "leaves": identity}, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return hashlib.sha256(content.encode()).hexdigest()[:DIGITS]
