"""`rlsweep cluster`: what a profile says, whether it fits the site, and whether its nodes do what a run needs."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rlsweep.cli.output import ROOT_HELP, note, print_json, print_rows
from rlsweep.errors import EXIT_ERROR, EXIT_USAGE, UsageError

if TYPE_CHECKING:
    from rlsweep.launch.cluster import Cluster
    from rlsweep.launch.site import Kind, Partition, Site

_JSON_HELP = "One JSON document, nothing else."


def cluster_set(command: Callable[..., None]) -> Callable[..., None]:
    """The option by which keys of a profile are overridden, wherever one is used."""
    return click.option(
        "--cluster-set",
        "cluster_set",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change the profile itself, as in partition=gpu; repeatable. It wins over RLSWEEP_<KEY>.",
    )(command)


@click.group()
def cluster() -> None:
    """Look at profiles of where runs go, and try them.

    NAME is a shipped name or a file. A key's value is that of --cluster-set, else of the environment variable
    RLSWEEP_<KEY> (RLSWEEP_PARTITION, RLSWEEP_GPUS_TYPE), else of the profile, else its default.
    """


@cluster.command(short_help="Print each key of a profile, its value and where that comes from.")
@click.argument("name", required=False)
@cluster_set
@click.option("--json", "as_json", is_flag=True, help=_JSON_HELP)
def show(name: str | None, cluster_set: tuple[str, ...], as_json: bool) -> None:
    """Print each key of profile NAME, its value and where that comes from; without NAME, list the shipped profiles.

    Elsewhere than on a terminal: a line a key with key, value and origin, separated by tabs.
    """
    from rlsweep.launch.cluster import settings

    if name is None:
        _list_shipped(cluster_set, as_json)
        return
    found = settings(name, cluster_set)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_rows(("key", "value", "origin"), [(each.key, _text(each.value), each.origin) for each in found])


def _list_shipped(cluster_set: tuple[str, ...], as_json: bool) -> None:
    from rlsweep.launch.cluster import load_cluster
    from rlsweep.recipe import shipped

    if cluster_set:
        raise UsageError("--cluster-set changes one profile; name it")
    profiles = [(load_cluster(name, (), {}), str(shipped.find("profile", name))) for name in shipped.names("profile")]
    if as_json:
        print_json([{"name": each.name, "executor": each.executor, "path": path} for each, path in profiles])
        return
    print_rows(("profile", "executor", "file"), [(each.name, each.executor, path) for each, path in profiles])


@cluster.command(short_help="Ask the scheduler what it allows, and whether a profile fits.")
@click.argument("name", required=False)
@cluster_set
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes that a run takes.")
@click.option("--json", "as_json", is_flag=True, help=_JSON_HELP)
def check(name: str | None, cluster_set: tuple[str, ...], nodes: int, as_json: bool) -> None:
    """Ask the scheduler what it allows, and say where profile NAME asks for something else; submit nothing.

    sbatch itself is asked (--test-only), too, whether it would take the script that a run on so many nodes gets.

    Exit code 2 where jobs of the profile would be refused or never start, 4 where the scheduler can't be reached.
    """
    from rlsweep.launch.cluster import load_cluster
    from rlsweep.launch.site import ask, problems
    from rlsweep.launch.trial import refusals

    if name is None and cluster_set:
        raise UsageError("--cluster-set changes a profile; name it")
    profile = None if name is None else _of_slurm(load_cluster(name, cluster_set))
    site = ask()
    found = [] if profile is None else problems(profile, site, nodes)
    if profile is not None and all(each.severity == "warning" for each in found):  # else it says the same, less clearly
        found = [*refusals(profile, nodes), *found]
    if as_json:
        told = {"profile": profile and profile.name, "site": asdict(site), "problems": [asdict(each) for each in found]}
        print_json(told)
    else:
        facts = [*_facts(site), *(_partition(each) for each in site.partitions)]
        print_rows(("site", ""), [*facts, *((each.severity, f"{each.key}: {each.message}") for each in found)])
        if profile and not found:
            note(f"profile {profile.name} fits")
    if any(each.severity == "error" for each in found):
        sys.exit(EXIT_USAGE)


@cluster.command(short_help="Submit one short job of a profile, and check on its nodes what would break runs.")
@click.argument("name")
@cluster_set
@click.option("--nodes", type=click.IntRange(1), help="Nodes to look at [default: what a run of RECIPE takes, else 1].")
@click.option("--recipe", help="Load the model and the data of this recipe there, offline.")
@click.option("--scale", help="Base under the recipe: a shipped name (tiny, 8b) or a file [default: the recipe's].")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change the recipe itself; repeatable.")
@click.option("--root", help=ROOT_HELP)
@click.option("--json", "as_json", is_flag=True, help=_JSON_HELP)
def probe(
    name: str,
    cluster_set: tuple[str, ...],
    nodes: int | None,
    recipe: str | None,
    scale: str | None,
    overrides: tuple[str, ...],
    root: str | None,
    as_json: bool,
) -> None:
    """Submit one short job with profile NAME, and check on each of its nodes what would break runs.

    Elsewhere than on a terminal: a line a check with node, check, verdict (ok, warning, failed) and what was found,
    separated by tabs. Exit code 1 where a check failed, 4 where the scheduler can't be reached. Ctrl-C cancels the job.
    """
    from rlsweep.launch.cluster import load_cluster
    from rlsweep.launch.probe import probe as look
    from rlsweep.recipe.load import load_recipe
    from rlsweep.store.layout import find_root

    if recipe is None and (scale or overrides):
        raise UsageError("--scale and --set belong to a recipe; name one with --recipe")
    profile, place = _of_slurm(load_cluster(name, cluster_set)), find_root(root)
    loaded = load_recipe(recipe, scale=scale, overrides=overrides) if recipe is not None else None
    result = look(profile, place, nodes, loaded, lambda text: click.echo(text, err=True))
    if as_json:
        print_json({"profile": profile.name, **asdict(result), "folder": str(result.folder), "failed": result.failed})
    else:
        found = [(node, each) for node in result.nodes for each in node.findings]
        print_rows(
            ("node", "check", "verdict", "found"),
            [(node.node, each.check, each.verdict, each.text) for node, each in found],
        )
        for line in result.log:
            note(f"    {line}")
        note(f"job {result.job} ended {result.state}; what it wrote is in {result.folder}")
    if result.failed:
        sys.exit(EXIT_ERROR)


def _of_slurm(profile: "Cluster") -> "Cluster":
    if profile.executor == "local":
        raise UsageError(
            f"profile {profile.name} has executor: local: runs stay on this machine, with no scheduler to ask"
        )
    return profile


def _facts(site: "Site") -> list[tuple[str, str]]:
    kept = {
        "slurmdbd": "a database (sacct)",
        "jobcomp": "a file of jobs that are over (sacct -c), no database",
        "none": "nothing is kept of jobs that are over",
    }
    return [
        ("cluster", site.cluster),
        ("Slurm", site.version),
        ("MaxArraySize", str(site.max_array_size)),
        ("KillWait", f"{site.kill_wait_s} s"),
        ("accounting", kept[site.accounting]),
        ("preempted jobs get", "the user signal, then SIGTERM" if site.preempt_signal else "SIGTERM alone"),
    ]


def _partition(partition: "Partition") -> tuple[str, str]:
    from rlsweep.launch.profile import clock

    limit = "no time limit" if partition.minutes is None else f"at most {clock(partition.minutes)}"
    marks = [*(["default"] if partition.default else []), *([partition.state] if partition.state != "UP" else [])]
    nodes = "; ".join(map(_kind, partition.kinds))
    return f"partition {partition.name}", ", ".join([*marks, limit, nodes or f"{partition.nodes} nodes"])


def _kind(kind: "Kind") -> str:
    gpus = " ".join(kind.gpus) or "no GPUs"
    number = f"{kind.nodes} node{'s' * (kind.nodes != 1)}"
    return f"{number} with {kind.cpus} CPUs, {kind.memory_mb / 1024:.4g} GB, {gpus}"


def _text(value: object) -> str:
    """A value as --cluster-set takes it."""
    from rlsweep.errors import RecipeError
    from rlsweep.recipe.nodes import Place, parse_value
    from rlsweep.recipe.text import scalar_text

    if value == {}:
        return "{}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(scalar_text, value))}]"
    assert value is None or isinstance(value, str | int | float | bool)
    with suppress(RecipeError):
        if isinstance(value, str) and parse_value(value, Place("")).value == value:
            return value
    return scalar_text(int(value) if isinstance(value, float) and value.is_integer() else value)
