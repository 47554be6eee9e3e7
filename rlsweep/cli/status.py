"""`rlsweep status`: where the runs of a sweep stand."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rlsweep.cli.output import ROOT_HELP, note, on_terminal, print_json, print_rows
from rlsweep.errors import EXIT_RUNS_FAILED

if TYPE_CHECKING:
    from rlsweep.launch.status import RunStatus


@click.command()
@click.argument("sweep", required=False)
@click.option("--root", help=ROOT_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object of all runs, nothing else.")
@click.option("--check", is_flag=True, help="Exit with 3 where a run failed or was lost.")
def status(sweep: str | None, root: str | None, as_json: bool, check: bool) -> None:
    """Print the state of each run of SWEEP, by default of the newest.

    States: waiting, running, finished, interrupted, failed, diverged, lost (its process is gone and left no word).
    Elsewhere than on a terminal: a line a run with key, variant, seed, state, steps, of how many, pass rate, attempt,
    host and reason, separated by tabs.
    """
    from rlsweep.cli.runs import find_sweep
    from rlsweep.launch.status import counts
    from rlsweep.launch.status import status as look
    from rlsweep.store.layout import find_root

    place = find_root(root)
    folder = find_sweep(place, sweep)
    runs = look(folder, place)
    if as_json:
        print_json({"sweep": folder.name, "root": str(place.path), "runs": [asdict(run) for run in runs]})
    else:
        note(f"sweep {folder.name} in {place.path}")
        if on_terminal():
            print_rows(
                ("run", "variant", "seed", "state", "steps", "pass rate", "reason"), [_shown(run) for run in runs]
            )
        else:
            print_rows((), [_whole(run) for run in runs])
        note(", ".join(f"{number} {state}" for state, number in counts(runs).items()))
    if check and any(run.state in ("failed", "lost") for run in runs):
        sys.exit(EXIT_RUNS_FAILED)


def _shown(run: "RunStatus") -> tuple[str, ...]:
    """What people ask first, narrow enough for 80 columns; `--json` and a pipe tell the rest."""
    reason = run.reason if (run.attempt or 1) == 1 else f"{run.reason} (attempt {run.attempt})"
    steps = f"{run.step}/{run.total}"
    return (run.run_key, run.variant, str(run.seed), run.state, steps, _rate(run), reason)


def _whole(run: "RunStatus") -> tuple[str, ...]:
    return (
        run.run_key,
        run.variant,
        str(run.seed),
        run.state,
        str(run.step),
        str(run.total),
        _rate(run),
        str(run.attempt or "-"),
        run.host or "-",
        run.reason,
    )


def _rate(run: "RunStatus") -> str:
    return "-" if run.pass_rate is None else f"{run.pass_rate:.3f}"
