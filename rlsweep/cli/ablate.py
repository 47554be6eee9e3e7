"""`rlsweep ablate` and `rlsweep plan`: from a recipe and its axes to trained runs, or to what would be done."""

import sys
from collections.abc import Callable
from functools import partial, reduce
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlsweep.cli.output import ROOT_HELP, note
from rlsweep.errors import EXIT_INTERRUPTED, EXIT_RUNS_FAILED, RlsweepError, UsageError

if TYPE_CHECKING:
    from rlsweep.cli.plan import Plan
    from rlsweep.launch.plan import Planned
    from rlsweep.launch.status import RunStatus
    from rlsweep.store.layout import Root
    from rlsweep.sweep.expand import Sweep


class _Hours(click.FloatRange):
    """A number that caps something: nan is in no range, yet compares with nothing."""

    name = "hours"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """A number above 0 that is finite, or click's refusal."""
        hours = float(super().convert(value, param, ctx))
        return hours if isfinite(hours) else self.fail(f"{value} is not a number of hours.", param, ctx)


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
    click.option(
        "--cluster-set", multiple=True, metavar="KEY=VALUE", help="Change the profile, as partition=gpu; repeatable."
    ),
    click.option(
        "--max-gpu-hours",
        type=_Hours(min=0, min_open=True),
        metavar="X",
        help="Start no attempt once the sweep's runs have used so many GPU-hours (Slurm); holds until changed.",
    ),
    click.option("--root", help=ROOT_HELP),
)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that plan and ablate share."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), command)


@click.command()
@_options
@click.option(
    "--emit",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write each script, as it would be submitted, into a new or empty folder (Slurm).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object of all runs, nothing else.")
def plan(emit: Path | None, as_json: bool, **request: Any) -> None:
    """Print each run of a sweep and what would be done about it; write nothing.

    RECIPE is a file or a shipped name. Elsewhere than on a terminal: a line a run with key, variant, seed, action,
    steps to go, compute (at most, or "about" so many device-hours), disk (at most, while it goes on) and reason,
    separated by tabs. For Slurm, GPU-hours and the first script follow; the script on a terminal only, --emit and
    --json give all of them.
    """
    from rlsweep.cli import planned

    made = _plan(request)
    if emit is not None:
        if made.cluster.executor != "slurm":
            raise UsageError(f"--emit writes scripts for Slurm, and profile {made.cluster.name} is local")
        planned.refuse_full(emit)
    if as_json:
        planned.print_as_json(made)
    else:
        planned.print_as_text(made)
        planned.print_cost(made)
        planned.print_script(made)
    if emit is not None:
        planned.emit(made, emit, quiet=as_json)


@click.command()
@_options
@click.option("--prune", is_flag=True, help="Cancel jobs of runs that the sweep no longer asks for (Slurm).")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing, as `rlsweep plan`.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: one JSON object, nothing else.")
def ablate(prune: bool, dry_run: bool, as_json: bool, **request: Any) -> None:
    """Train what a recipe and its axes ask for and is not trained yet.

    RECIPE is a file or a shipped name. Run it again at any time: finished runs are skipped, broken ones resumed, and
    a raised budget (--set budget.steps=N) continues them. One ablate works on a sweep at a time; different sweeps may
    share runs. With a profile for Slurm the runs are submitted and the command ends; runs that wait or are at work
    there are left.
    """
    if as_json and not dry_run:
        raise click.UsageError("--json needs --dry-run: training prints progress, not one document")
    from rlsweep.cli import planned

    made = _plan(request)
    slurm = made.cluster.executor == "slurm"
    if prune and not slurm:
        raise UsageError(f"--prune cancels jobs of Slurm, and profile {made.cluster.name} is local: see rlsweep cancel")
    if as_json:
        planned.print_as_json(made)
        return
    planned.print_as_text(made, pruned=prune)
    if dry_run:
        planned.print_cost(made)
        planned.print_script(made)
    elif made.lacks:
        raise RlsweepError(made.lacks)
    elif slurm:
        planned.print_cost(made)
        _submit(made, prune)
    else:
        _train(made.sweep, made.root, made.decisions, made.cluster.limits.parallel)


def _plan(request: dict[str, Any]) -> "Plan":
    """Decide."""
    from rlsweep.cli.plan import Plan
    from rlsweep.launch.cluster import load_cluster
    from rlsweep.launch.machine import missing
    from rlsweep.launch.plan import TO_START, survey
    from rlsweep.store.layout import find_root
    from rlsweep.sweep.expand import expand

    root = find_root(request.pop("root"))
    cluster = load_cluster(request.pop("cluster"), request.pop("cluster_set"))
    cap = request.pop("max_gpu_hours")
    if cap is not None and cluster.executor != "slurm":
        raise UsageError(f"--max-gpu-hours is for Slurm, and profile {cluster.name} is local")
    sweep = expand(request.pop("recipe"), **request)
    decisions, dropped = survey(sweep, root)
    starting = (each.run.recipe for each in decisions if each.action in TO_START)
    lacks = next((text for recipe in starting if (text := missing(recipe, cluster))), None)
    return Plan(sweep, root, decisions, dropped, cluster, lacks, cap)


def _submit(made: "Plan", prune: bool) -> None:
    """Hand the runs to Slurm and say how to follow them."""
    from rlsweep.launch.slurm import submit

    sweep, root = made.sweep, made.root
    done = submit(sweep, root, made.cluster, note, max_gpu_hours=made.max_gpu_hours, prune=prune)
    counts = [f"{done.submitted} submitted{_named(done.jobs)}"]
    counts += [f"{number} {_PAST[action]}" for action, number in done.rest.items() if number]
    note(f"sweep {sweep.name}: {', '.join(counts)}")
    note(f"next: rlsweep status {sweep.name}{root.option}")
    if done.interrupted:
        left = f"{done.not_submitted} not submitted; run the same command again to go on"
        note(f"interrupted: {left if done.not_submitted else 'nothing is left to submit'}")
        sys.exit(EXIT_INTERRUPTED)
    if done.why is not None:
        kind = UsageError if done.invalid else RlsweepError
        mend = "mend the profile and run" if done.invalid else "run"
        smaller = "; where arrays are larger than what may be submitted at a time: --cluster-set limits.array=N"
        raise kind(
            f"sbatch refused: {done.why}; not submitted: {done.not_submitted} of "
            f"{done.not_submitted + done.submitted} runs; {mend} the same command again to submit them"
            f"{smaller if _is_submit_limit(done.why) else ''}"
        )


def _is_submit_limit(words: str) -> bool:
    """Whether sbatch says that a user, an account or a QOS has as many jobs submitted as it may."""
    return any(part in words for part in ("MaxSubmitJob", "job submit limit"))


_PAST = {"skip": "skipped", "leave": "left as they are"}


def _named(jobs: tuple[str, ...]) -> str:
    if not jobs:
        return ""
    more = f" and {len(jobs) - 10} more" if len(jobs) > 10 else ""
    return f" as job{'s' if len(jobs) > 1 else ''} {', '.join(jobs[:10])}{more}"


def _train(sweep: "Sweep", root: "Root", decisions: "list[Planned]", parallel: int | None) -> None:
    from rlsweep.launch.display import display
    from rlsweep.launch.local import run_all
    from rlsweep.launch.status import counts, status
    from rlsweep.launch.submit import submitting, write_down

    try:
        with submitting(root, sweep.name) as claim:
            folder = write_down(sweep, root, decisions)
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
    runs = [run for run in status(folder, root).runs if run.run_key in {each.run.key for each in decisions}]
    states = ", ".join(f"{number} {state}" for state, number in counts(runs).items())
    note(f"sweep {sweep.name}: {states}")
    if result.interrupted:
        note(_how_to_go_on(runs))
        sys.exit(EXIT_INTERRUPTED)
    _sync(root, sweep.name)
    following = "status" if any(run.state in ("pending", "running") for run in runs) else "report"
    note(f"next: rlsweep {following} {sweep.name}{root.option}")
    # A run that diverged has its result; one that failed or was cancelled has not. One in Slurm is on its way.
    if any(run.state not in ("finished", "diverged", "pending", "running") for run in runs):
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
        from rlsweep.launch.seen import jobs_of, look
        from rlsweep.store import ledger
        from rlsweep.track import sync

        keys = {intent.run_key for intent in ledger.intents(root.sweep(name))}
        # Runs that wait in a queue stay open there.
        now = partial(look, jobs=jobs_of([root.run(key) for key in keys]))
        sync(root, name, say=lambda text: click.echo(text, err=True), look=now)
    except KeyboardInterrupt:
        note(f"interrupted while MLflow was updated. {again}")
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:  # MLflow's errors have no common base, and none may cost a run its result
        click.echo(f"warning: MLflow was not updated: {error}\n{again}", err=True)
