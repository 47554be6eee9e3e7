"""`rlsweep ablate` and `rlsweep plan`: from a recipe and its axes to trained runs, or to what would be done."""

import sys
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from rlsweep.cli.output import ROOT_HELP, note
from rlsweep.errors import EXIT_INTERRUPTED, EXIT_RUNS_FAILED, RlsweepError

if TYPE_CHECKING:
    from rlsweep.launch.plan import Planned
    from rlsweep.launch.status import RunStatus
    from rlsweep.store.layout import Root
    from rlsweep.sweep.expand import Sweep

_OPTIONS = (
    click.argument("recipe", required=False),
    click.option("--scale", help="Base under the recipe: a shipped name (tiny, 8b) or a file [default: the recipe's]."),
    click.option(
        "--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change the recipe itself; repeatable."
    ),
    click.option(
        "--vary", multiple=True, metavar="PATH=V1,V2", help="An axis; several make their product; repeatable."
    ),
    click.option("--zip", "zip_", multiple=True, metavar="PATH=V1,V2", help="Axes that advance together; repeatable."),
    click.option("--leave-one-out", is_flag=True, help="The recipe, and each of its components put back in turn."),
    click.option(
        "--seeds", metavar="N|LIST", help="How many seeds a variant has (2: seeds 0 and 1), or which (3,5,8)."
    ),
    click.option("--sweep", metavar="NAME|FILE", help="A sweep in a file, under the options given here."),
    click.option("--name", help="Name of the sweep [default: recipe, scale and axes]."),
    click.option("--cluster", default="local", show_default=True, help="Profile of where runs go: a name or a file."),
    click.option("--root", help=ROOT_HELP),
)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that plan and ablate share."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), command)


@click.command()
@_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object of all runs, nothing else.")
def plan(as_json: bool, cluster: str, root: str | None, **request: Any) -> None:
    """Print each run of a sweep and what would be done about it; write nothing.

    RECIPE is a file or a shipped name. Elsewhere than on a terminal: a line a run with key, variant, seed, action,
    steps to go, compute (at most, or "about" so many device-hours), disk (at most, while it goes on) and reason,
    separated by tabs.
    """
    _plan(request, cluster, root, dry_run=True, as_json=as_json)


@click.command()
@_options
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing, as `rlsweep plan`.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: one JSON object, nothing else.")
def ablate(dry_run: bool, as_json: bool, cluster: str, root: str | None, **request: Any) -> None:
    """Train what a recipe and its axes ask for and is not trained yet.

    RECIPE is a file or a shipped name. Run it again at any time: finished runs are skipped, broken ones resumed, and
    a raised budget (--set budget.steps=N) continues them. One ablate works on a sweep at a time; different sweeps may
    share runs.
    """
    if as_json and not dry_run:
        raise click.UsageError("--json needs --dry-run: training prints progress, not one document")
    from rlsweep.launch.cluster import load_cluster

    sweep, place, decisions, lacks = _plan(request, cluster, root, dry_run=dry_run, as_json=as_json)
    if dry_run:
        return
    if lacks:
        raise RlsweepError(lacks)
    _train(sweep, place, decisions, load_cluster(cluster).parallel)


def _plan(
    request: dict[str, Any], cluster: str, root: str | None, *, dry_run: bool, as_json: bool
) -> "tuple[Sweep, Root, list[Planned], str | None]":
    """Decide and print. Returns what was decided, and what the first run to start lacks here."""
    from rlsweep.cli import planned
    from rlsweep.launch.cluster import load_cluster
    from rlsweep.launch.machine import missing
    from rlsweep.launch.plan import TO_START, decide
    from rlsweep.store.layout import find_root
    from rlsweep.sweep.expand import expand

    place = find_root(root)
    load_cluster(cluster)
    sweep = expand(request.pop("recipe"), **request)
    decisions = decide(sweep, place)
    starting = (each.run.recipe for each in decisions if each.action in TO_START)
    lacks = next((text for recipe in starting if (text := missing(recipe))), None)
    if as_json:
        planned.print_as_json(sweep, place, decisions, lacks)
    else:
        planned.print_as_text(sweep, place, decisions)
        if dry_run and lacks:
            note(lacks)
    return sweep, place, decisions, lacks


def _train(sweep: "Sweep", root: "Root", decisions: "list[Planned]", parallel: int | None) -> None:
    from rlsweep.launch.display import display
    from rlsweep.launch.local import run_all
    from rlsweep.launch.status import counts, status
    from rlsweep.launch.submit import submit, submitting

    try:
        with submitting(root, sweep.name) as claim:
            folder = submit(sweep, root, decisions)
            show = display()
            try:
                result = run_all(folder, root, decisions, parallel, show, claim)
            finally:
                show.close()
    except KeyboardInterrupt:  # before the first run or after the last: in between run_all hears of it
        note("interrupted: run the same command again to go on")
        sys.exit(EXIT_INTERRUPTED)
    for failure in result.failures:
        note(f"\nrun {failure.run.key} ({failure.run.variant}, seed {failure.run.seed}) failed: {failure.reason}")
        for line in failure.log:
            note(f"    {line}")
        note(f"  see: rlsweep logs {failure.run.key}{root.option}")
    runs = [run for run in status(folder, root) if run.run_key in {each.run.key for each in decisions}]
    states = ", ".join(f"{number} {state}" for state, number in counts(runs).items())
    note(f"sweep {sweep.name}: {states}")
    if result.interrupted:
        note(_how_to_go_on(runs))
        sys.exit(EXIT_INTERRUPTED)
    _sync(root, sweep.name)
    note(f"next: rlsweep report {sweep.name}{root.option}")
    # A run that diverged has its result; one that failed or was cancelled has not.
    if any(run.state not in ("finished", "diverged") for run in runs):
        sys.exit(EXIT_RUNS_FAILED)


def _how_to_go_on(runs: "list[RunStatus]") -> str:
    theirs = sum(run.state == "running" for run in runs)  # ours have ended
    ours = any(run.state not in ("running", "finished", "diverged") for run in runs)
    left = f"{theirs} of the runs belong to another command and go on; " if theirs else ""
    why = "wait for them" if theirs and not ours else "go on from where each run saved"
    return f"interrupted: {left}run the same command again to {why}"


def _sync(root: "Root", name: str) -> None:
    """MLflow is an index that can be made again: whatever goes wrong there, the runs stand."""
    again = f"The runs are whole; to try again: rlsweep sync {name}{root.option}"
    try:
        from rlsweep.track import sync

        sync(root, name, say=lambda text: click.echo(text, err=True))
    except KeyboardInterrupt:
        note(f"interrupted while MLflow was updated. {again}")
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:  # MLflow's errors have no common base, and none may cost a run its result
        click.echo(f"warning: MLflow was not updated: {error}\n{again}", err=True)
