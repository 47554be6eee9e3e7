"""From files to a recipe: schema defaults < scale < extends < recipe < --set."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlsweep.errors import RecipeError
from rlsweep.recipe import shipped
from rlsweep.recipe.draft import FIXED, Draft, blank, lay_types, unknown_path
from rlsweep.recipe.fields import nearest, sections, top_leaves
from rlsweep.recipe.nodes import Node, Place, parse_value, read_file
from rlsweep.recipe.schema import Recipe

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def load_recipe(source: str | Path, *, scale: str | None = None, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by its shipped name or its file's path, over a scale (else the recipe's own), with `path=value` on top.

    Raises RecipeError: it names file, line, path, what was given, what is valid and the nearest key.
    """
    return load_draft(source, scale=scale, overrides=overrides).recipe()


def load_draft(source: str | Path, *, scale: str | None = None, overrides: Sequence[str] = ()) -> Draft:
    """The same before it is a Recipe, so that axes can be laid over it."""
    chain = _chain(shipped.find("recipe", source))
    path, top = chain[-1]
    draft = blank(_name(path, top), Place(str(path), None))
    draft = _lay_scale(draft, chain, scale)
    for _, root in chain:
        draft = _lay_file(draft, root)
    for override in overrides:
        place = Place(f"--set {override}")
        key, node = assignment(override, place)
        draft = draft.lay(key, node)
    return draft


def assignment(text: str, place: Place) -> tuple[str, Node]:
    """Key and value of `path=value`. Raises RecipeError for a bare word or an empty value."""
    key, equals, value = text.partition("=")
    if not equals:
        raise place.error("", f"no value; write {key.strip() or 'path'}=value")
    if not value.strip():
        raise place.error(key.strip(), "empty; write null for nothing or '\"\"' for an empty text")
    return key.strip(), parse_value(value, place)


def find_stated(kind: shipped.Kind, node: Node, path: str, beside: Path) -> Path:
    """The file that a recipe or a sweep names at `path`. Raises RecipeError with the place."""
    if not isinstance(node.value, str):
        raise node.place.error(path, f"{node} is not valid; it must be the name of a {kind} or the path of its file")
    try:
        return shipped.find(kind, node.value, beside)
    except RecipeError as error:
        raise node.place.error(path, str(error)) from None


def _chain(path: Path) -> list[tuple[Path, Node]]:
    """The recipe and what it extends, the recipe last. Raises RecipeError for a circle."""
    chain: list[tuple[Path, Node]] = []
    seen: list[Path] = []
    place = Place(str(path))
    while True:
        if path.resolve() in seen:
            names = [str(each) for each, _ in reversed(chain)] + [str(path)]
            raise place.error("extends", f"a circle: {' extends '.join(names)}")
        root = read_file(path)
        chain.insert(0, (path, root))
        seen.append(path.resolve())
        parent = _map(root).get("extends")
        if parent is None:
            return chain
        place = parent.place
        path = find_stated("recipe", parent, "extends", beside=path.parent)


def _lay_scale(draft: Draft, chain: Sequence[tuple[Path, Node]], scale: str | None) -> Draft:
    if scale is not None:
        path = shipped.find("scale", scale)
    else:
        stated = [(file, _map(root)["scale"]) for file, root in chain if "scale" in _map(root)]
        if not stated:
            return draft
        file, node = stated[-1]
        path = find_stated("scale", node, "scale", beside=file.parent)
    root = read_file(path)
    entries = _map(root)
    if "types" in entries:
        draft = lay_types(draft, entries["types"])
    return replace(_lay_file(draft, root, ("types",)), scale=path.stem, scale_source=str(path))


def _lay_file(draft: Draft, root: Node, reserved: Sequence[str] = tuple(FIXED)) -> Draft:
    for key, node in _map(root).items():
        if key in reserved:
            continue
        if key not in sections() and key not in top_leaves():
            near = nearest(key, reserved)
            if near:
                valid = [*reserved, *sections(), *(each for each in top_leaves() if each not in reserved)]
                raise node.place.error(key, f"unknown key{near}; valid: {', '.join(valid)}")
            raise unknown_path(key, node.place)
        draft = draft.lay(key, node)
    return draft


def _map(root: Node) -> dict[str, Node]:
    if not isinstance(root.value, dict):
        raise root.place.error("", f"{root} stands at the top; it must be a map of sections such as `loss: cispo`")
    return root.value


def _name(path: Path, root: Node) -> str:
    node = _map(root).get("name", Node(path.stem, Place(str(path))))
    if not isinstance(node.value, str) or not _NAME.fullmatch(node.value):
        raise node.place.error("name", f"{node} is not valid; it must be a text of letters, digits, '.', '-' and '_'")
    return node.value
