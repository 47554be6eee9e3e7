"""Where runs go: a profile, `slurm/*.yaml` or a file of one's own."""

from dataclasses import dataclass

from rlsweep.errors import UsageError
from rlsweep.recipe import shipped
from rlsweep.recipe.nodes import Node, read_file


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A profile. `parallel` is the most runs at a time; None: as many as there are cores for."""

    name: str
    parallel: int | None


def load_cluster(source: str) -> Cluster:
    """The profile by its shipped name or its file's path. RecipeError or UsageError where it is none, or not valid."""
    path = shipped.find("profile", source)
    root = read_file(path)
    if not isinstance(root.value, dict):
        raise root.place.error("", f"{root} stands at the top; it must be a map with the key executor")
    for key, node in root.value.items():
        if key not in ("executor", "parallel"):
            raise node.place.error(key, "unknown key; valid: executor, parallel")
    executor = root.value.get("executor")
    if executor is None:
        raise root.place.error("executor", "missing; valid: local")
    if executor.value != "local":
        raise UsageError(
            f"{executor.place}: executor: {executor}; only local works: Slurm profiles come with a later version"
        )
    return Cluster(name=path.stem, parallel=_parallel(root.value.get("parallel")))


def _parallel(node: Node | None) -> int | None:
    if node is None or node.value is None:
        return None
    if not isinstance(node.value, int) or isinstance(node.value, bool) or node.value < 1:
        raise node.place.error("parallel", f"{node} is not valid; it must be null or a whole number of 1 or more")
    return node.value
