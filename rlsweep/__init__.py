"""rlsweep: a recipe goes in, a prediction comes out. The public surface: eight names, loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlsweep.curves.read import read_curves
    from rlsweep.errors import RlsweepError
    from rlsweep.law.compare import compare
    from rlsweep.law.curve import Curve
    from rlsweep.law.fit import Fit, fit
    from rlsweep.recipe.load import load_recipe
    from rlsweep.sweep.expand import expand

__all__ = ["Curve", "Fit", "RlsweepError", "compare", "expand", "fit", "load_recipe", "read_curves"]

_HOME = {
    "Curve": "rlsweep.law.curve",
    "Fit": "rlsweep.law.fit",
    "RlsweepError": "rlsweep.errors",
    "compare": "rlsweep.law.compare",
    "expand": "rlsweep.sweep.expand",
    "fit": "rlsweep.law.fit",
    "load_recipe": "rlsweep.recipe.load",
    "read_curves": "rlsweep.curves.read",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rlsweep' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
