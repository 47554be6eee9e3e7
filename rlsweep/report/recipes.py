"""What the runs' recipes say, as far as a report needs it: in what variants differ, and how the sweep is made again."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlsweep.errors import RecipeError
from rlsweep.recipe.nodes import Node, Scalar, read_file
from rlsweep.store.layout import SweepFolder

_MEASURE = ("task.", "evaluation.", "model.")
# How often is not how. Precisions are part of how a policy is trained: the paper compares them (ScaleRL 3.2).
_NOT_MEASURE = ("evaluation.every", "model.dtype", "model.head_dtype")
_NOT_LEARNT = ("name", "seed", "budget.", "execution.")


def leaves(path: Path) -> dict[str, Scalar]:
    """Dotted path -> value of a recipe.yaml, whatever schema it was written with; empty where there is no file."""
    found: dict[str, Scalar] = {}
    for key, value in _entries(path).items():
        found |= {f"{key}.{name}": leaf for name, leaf in value.items()} if isinstance(value, dict) else {key: value}
    return found


def of_first(paths: Sequence[Path]) -> dict[str, Scalar]:
    """The leaves of the first of the files that there is and that can be read; empty where there is none."""
    for path in paths:
        with suppress(RecipeError):
            if found := leaves(path):
                return found
    return {}


def differing(ours: Mapping[str, Scalar], base: Mapping[str, Scalar]) -> list[str]:
    """Paths in which two recipes decide something else about what is learnt or measured, sorted."""
    return [
        path
        for path in sorted({*ours, *base})
        if not path.startswith(_NOT_LEARNT) and (path in ours, ours.get(path)) != (path in base, base.get(path))
    ]


def measured_differently(paths: Sequence[str]) -> tuple[str, ...]:
    """Those of task, evaluation and model among differing paths: with any, two pass rates are not one quantity."""
    return tuple(path for path in paths if path.startswith(_MEASURE) and path not in _NOT_MEASURE)


def command(folder: SweepFolder) -> str:
    """The command that makes the sweep again; empty where its description was not written."""
    spec = _entries(folder.spec)
    if not spec:
        return ""
    words = ["rlsweep", "ablate", str(spec.get("recipe"))]
    if spec.get("scale"):
        words += ["--scale", str(spec["scale"])]
    for option, key in (("--set", "overrides"), ("--vary", "vary"), ("--zip", "zip_")):
        for value in spec.get(key) or ():
            words += [option, str(value)]
    if spec.get("leave_one_out"):
        words.append("--leave-one-out")
    if spec.get("seeds"):
        words += ["--seeds", "".join(f"{seed}," for seed in spec["seeds"])]
    if spec.get("name"):
        words += ["--name", str(spec["name"])]
    return shlex.join(words)


def _entries(path: Path) -> dict[str, Any]:
    """Content of a YAML file whose top is a map, as plain values; empty where there is no file. Raises RecipeError."""
    if not path.exists():
        return {}
    root = read_file(path)
    if not isinstance(root.value, dict):
        raise root.place.error("", f"{root} stands at the top; it must be a map")
    return {key: _plain(node) for key, node in root.value.items()}


def _plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: _plain(each) for key, each in node.value.items()}
    return [_plain(each) for each in node.value] if isinstance(node.value, list) else node.value
