"""What ships with rlsweep and is found by name from any directory: recipes, scales, sweeps and cluster profiles."""

from pathlib import Path
from typing import Literal

from rlsweep.errors import RecipeError
from rlsweep.recipe.fields import nearest

Kind = Literal["recipe", "scale", "sweep", "profile"]

_FOLDERS: dict[Kind, str] = {"recipe": "recipes", "scale": "recipes/scales", "sweep": "sweeps", "profile": "slurm"}
_PACKAGE = Path(__file__).resolve().parent.parent


def folder(kind: Kind) -> Path:
    """Where files of a kind lie: in the installed package's `_data`, or beside the package in a checkout."""
    data = _PACKAGE / "_data"
    return (data if data.is_dir() else _PACKAGE.parent) / _FOLDERS[kind]


def names(kind: Kind) -> list[str]:
    """Names of what is shipped, sorted."""
    return sorted(path.stem for path in folder(kind).glob("*.yaml"))


def find(kind: Kind, source: str | Path, beside: Path | None = None) -> Path:
    """The file meant by a shipped name, or by a path (with a separator or ending in .yaml) relative to `beside`.

    Raises RecipeError where there is none, naming what is shipped.
    """
    text = str(source)
    if isinstance(source, Path) or "/" in text or "\\" in text or text.endswith((".yaml", ".yml")):
        path = (beside or Path()) / Path(source).expanduser()
        if path.is_file():
            return path
        raise RecipeError(f"{path}: no such file{_shipped(kind, path.stem)}")
    path = folder(kind) / f"{text}.yaml"
    if text in names(kind):
        return path
    raise RecipeError(
        f"{text!r}: no such {kind}{_shipped(kind, text)}; a file is named by its path, as in ./{text}.yaml"
    )


def _shipped(kind: Kind, name: str) -> str:
    return f"; shipped {kind}s: {', '.join(names(kind)) or 'none'}{nearest(name, names(kind))}"
