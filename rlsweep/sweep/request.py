"""What a sweep is asked to be: from the command line, from a file, or from both, the command line winning."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlsweep.recipe import shipped
from rlsweep.recipe.fields import nearest
from rlsweep.recipe.load import find_stated
from rlsweep.recipe.nodes import Node, Place, read_file
from rlsweep.sweep.axes import Axis, axis

KEYS = ("recipe", "scale", "name", "vary", "zip", "leave_one_out", "seeds")


@dataclass(frozen=True)
class Request:
    """A recipe and its axes. `seeds` None means the recipe's own."""

    recipe: str | Path | None = None
    scale: str | None = None
    name: str | None = None
    vary: tuple[Axis, ...] = ()
    zip: tuple[Axis, ...] = ()
    leave_one_out: bool = False
    seeds: tuple[int, ...] | None = None

    def under(self, other: "Request") -> "Request":
        """This request with `other` on top: what it states wins, its axes replace those of the same path."""
        return Request(
            recipe=other.recipe if other.recipe is not None else self.recipe,
            scale=other.scale if other.scale is not None else self.scale,
            name=other.name if other.name is not None else self.name,
            vary=_over(self.vary, other, other.vary),
            zip=_over(self.zip, other, other.zip),
            leave_one_out=self.leave_one_out or other.leave_one_out,
            seeds=other.seeds if other.seeds is not None else self.seeds,
        )


def _over(below: Sequence[Axis], other: Request, above: Sequence[Axis]) -> tuple[Axis, ...]:
    replaced = {each.key for each in (*other.vary, *other.zip)}
    return (*(each for each in below if each.key not in replaced), *above)


def read_request(source: str | Path) -> Request:
    """The sweep in a file, by its shipped name or its path. Raises RecipeError, naming file, line and key."""
    path = shipped.find("sweep", source)
    root = read_file(path)
    if not isinstance(root.value, dict):
        raise root.place.error("", f"{root} stands at the top; it must be a map with {', '.join(KEYS)}")
    values: dict[str, Any] = {}
    for key, node in root.value.items():
        if key not in KEYS:
            raise node.place.error(key, f"unknown key{nearest(key, KEYS)}; valid: {', '.join(KEYS)}")
        values[key] = _READERS[key](node, key)
    kinds: tuple[shipped.Kind, ...] = ("recipe", "scale")
    for kind in kinds:
        if kind in values:
            file = find_stated(kind, root.value[kind], kind, path.parent)
            values[kind] = values[kind] if file.parent == shipped.folder(kind) else str(file)
    return Request(**values)


def parse_seeds(given: int | str | Sequence[int] | None) -> tuple[int, ...] | None:
    """`3` means seeds 0, 1, 2; `0,3,7` and `3,` are lists. Raises RecipeError."""
    place = Place("--seeds")
    if given is None:
        return None
    if isinstance(given, str):
        words = given.split(",")
        if len(words) > 1 and not words[-1].strip():
            words.pop()
        if not all(word.strip().isdecimal() for word in words):
            raise place.error("", f"{given!r} is not valid; it must be how many (3) or a list (0,3,7 or 3,)")
        numbers = [int(word) for word in words]
        return _seeds(place, numbers[0] if "," not in given else numbers)
    return _seeds(place, given)


MOST_SEEDS = 1000


def _seeds(place: Place, given: int | Sequence[int]) -> tuple[int, ...]:
    if (given if isinstance(given, int) else len(given)) > MOST_SEEDS:
        raise place.error("", f"more than {MOST_SEEDS} seeds")
    seeds = tuple(range(given)) if isinstance(given, int) else tuple(given)
    if not seeds:
        raise place.error("", f"{given!r} is not valid; there must be 1 or more")
    if any(seed < 0 for seed in seeds):
        raise place.error("", f"{min(seeds)} is not valid; a seed is 0 or more")
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise place.error("", f"seed {seed} twice")
    return seeds


def _text(node: Node, key: str) -> str:
    if not isinstance(node.value, str):
        raise node.place.error(key, f"{node} is not valid; it must be a text")
    return node.value


def _flag(node: Node, key: str) -> bool:
    if not isinstance(node.value, bool):
        raise node.place.error(key, f"{node} is not valid; it must be true or false")
    return node.value


def _seeds_of(node: Node, key: str) -> tuple[int, ...]:
    items = node.value if isinstance(node.value, list) else [node]
    for item in items:
        if not isinstance(item.value, int) or isinstance(item.value, bool):
            raise item.place.error(key, f"{item} is not valid; it must be how many (3) or a list ([0, 3, 7])")
    numbers = [int(str(item.value)) for item in items]
    return _seeds(node.place, numbers if isinstance(node.value, list) else numbers[0])


def _axes(node: Node, key: str) -> tuple[Axis, ...]:
    if not isinstance(node.value, dict):
        raise node.place.error(key, f"{node} is not valid; it must be a map from path to a list of values")
    axes = []
    for path, values in node.value.items():
        if not isinstance(values.value, list):
            raise values.place.error(f"{key}.{path}", f"{values} is not valid; it must be a list of values")
        axes.append(axis(path, values.value, values.place))
    return tuple(axes)


_READERS = {
    "recipe": _text,
    "scale": _text,
    "name": _text,
    "vary": _axes,
    "zip": _axes,
    "leave_one_out": _flag,
    "seeds": _seeds_of,
}
