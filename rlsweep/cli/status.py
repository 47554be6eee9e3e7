"""`rlsweep status`: where the runs of a sweep stand."""

import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import click

from rlsweep.cli.output import ROOT_HELP, note, on_terminal, print_json, print_rows
from rlsweep.errors import EXIT_ERROR, EXIT_RUNS_FAILED

if TYPE_CHECKING:
    from rlsweep.errors import SchedulerError
    from rlsweep.launch.status import RunStatus
    from rlsweep.store.layout import Root, SweepFolder

_LEAST_S = 30.0
_MOST_HELD = 20
_ROOM_FOR_REASONS = 30
"""Columns that reasons should have; where they have less, cells that people look for more rarely move into them."""


def _seconds(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Seconds between two rounds of --watch."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no number of seconds; a sweep is named before it: rlsweep status {value} --watch"
        ) from None
    if not _LEAST_S <= seconds < math.inf:
        raise click.BadParameter(
            f"{value} s is not valid: each round asks the scheduler, which all users of the cluster share; "
            f"valid: {_LEAST_S:.0f} or more"
        )
    return seconds


@dataclass(frozen=True)
class _Look:
    """What there is to see at one moment: runs with their index in the sweep (None of those no longer asked for), jobs
    of a submission that was cut short, and why the scheduler said nothing."""

    sweep: "SweepFolder"
    root: "Root"
    runs: "list[tuple[int | None, RunStatus]]"
    cut_short: Sequence[str]
    unreachable: "SchedulerError | None"

    def any_in(self, *states: str) -> bool:
        return any(run.state in states for _, run in self.runs)


@click.command()
@click.argument("sweep", required=False)
@click.option(
    "--run", "specs", metavar="RUN", multiple=True, help="Only these runs, as for `rlsweep logs`; repeatable."
)
@click.option(
    "--watch",
    callback=_seconds,
    is_flag=False,
    flag_value=f"{_LEAST_S:.0f}",
    metavar="[SECONDS]",
    help="Look again every 30 seconds, or more rarely, until nothing runs or waits in a queue.",
)
@click.option("--check", is_flag=True, help="Tell by the exit code how the runs are, for scripts.")
@click.option("--root", help=ROOT_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object of all runs, nothing else.")
def status(
    sweep: str | None, specs: tuple[str, ...], watch: float | None, check: bool, root: str | None, as_json: bool
) -> None:
    """Print the state of each run of SWEEP, by default of the newest.

    \b
    waiting      not started, and in no queue
    pending      its job waits in the scheduler's queue; the reason says for what
    running      at work, or its job is just starting or ending
    finished     trained as far as asked for
    diverged     ended by its own numbers; it would again
    interrupted  stopped and saved; `rlsweep ablate` goes on with it
    failed       ended by an error; see `rlsweep logs`
    lost         its process or job is gone and left no word

    The index in front names a run, as in `rlsweep logs 3` or `rlsweep cancel 0-3,5`. It is - for a run whose name
    another one has now, where its job still waits or is at work. ETA is the time to the last step at the pace of the
    newest ones; waits in a queue are not in it.

    Elsewhere than on a terminal: a line a run with index, key, variant, seed, state, steps, of how many, pass rate,
    attempt, seconds to go, host, job, the command that releases a held job, and reason, separated by tabs; with --watch
    a line a run and round, the time in front.

    With --check the exit code is 0 where all runs are over well (finished or diverged), 3 where one failed, was lost or
    interrupted, whatever the others do, and else 1: some still run or wait. Where the scheduler can't be reached, what
    the folders say is printed, and the exit code is 4.
    """
    from rlsweep.cli.runs import find_sweep
    from rlsweep.store.layout import find_root

    if watch is not None and as_json:
        raise click.UsageError("--json and --watch exclude each other: what goes on is not one document")
    place = find_root(root)
    folder = find_sweep(place, sweep)
    if watch is not None:
        found = _watch(folder, place, specs, watch)
    else:
        found = _look(folder, place, specs)
        _print(found, as_json)
    if found.unreachable is not None:
        raise found.unreachable
    if check and found.any_in("failed", "lost", "interrupted"):
        sys.exit(EXIT_RUNS_FAILED)
    if check and found.any_in("waiting", "pending", "running"):
        sys.exit(EXIT_ERROR)


def _look(folder: "SweepFolder", root: "Root", specs: Sequence[str]) -> _Look:
    from rlsweep.cli.runs import find_runs
    from rlsweep.errors import UsageError
    from rlsweep.launch.status import status

    found = status(folder, root)
    runs = [*enumerate(found.runs), *((None, run) for run in found.replaced)]
    if specs:
        keys = {run.key for text in specs for run in find_runs(root, text, folder.name)}
        runs = [(index, run) for index, run in runs if run.run_key in keys]
        foreign = sorted(keys - {run.run_key for _, run in runs})
        if foreign:
            raise UsageError(f"no run of sweep {folder.name}: {', '.join(foreign)}")
    return _Look(folder, root, runs, found.cut_short, found.scheduler_error)


def _watch(folder: "SweepFolder", root: "Root", specs: Sequence[str], every: float) -> _Look:
    """Print rounds until nothing goes on. A round in which the scheduler can't be reached says so."""
    redraws = on_terminal() and os.environ.get("TERM") != "dumb"
    while True:
        found = _look(folder, root, specs)
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        if redraws:
            click.clear()
        _print(found, as_json=False, now=now)
        if found.unreachable is None and not found.any_in("pending", "running") and not _is_worked_on(folder):
            return found
        if found.unreachable is not None:
            click.echo(f"rlsweep: {found.unreachable}", err=True)
        if redraws:
            note(f"again in {every:.0f} s; Ctrl-C ends")
        time.sleep(every)  # after the answer: a scheduler that is slow is asked more rarely


def _is_worked_on(folder: "SweepFolder") -> bool:
    """Whether an ablate of this host is between two runs of the sweep."""
    from rlsweep.errors import RlsweepError
    from rlsweep.store.attempts import is_process
    from rlsweep.store.claim import holder

    try:
        by = holder(folder.path / "submitter")
    except RlsweepError:  # damaged: nobody can tell
        return False
    return by is not None and is_process(by) is True


def _print(found: _Look, as_json: bool, now: str | None = None) -> None:
    from rlsweep.launch.status import counts

    if as_json:
        runs = [{"index": index, **asdict(run)} for index, run in found.runs]
        said = None if found.unreachable is None else str(found.unreachable)
        whole = {"sweep": found.sweep.name, "root": str(found.root.path), "scheduler_error": said}
        print_json({**whole, "cut_short": list(found.cut_short), "runs": runs})
        return
    note(f"sweep {found.sweep.name} in {found.root.path}" + (f", {now}" if now else ""))
    if on_terminal():
        print_rows(*_table(found, shutil.get_terminal_size().columns))
    else:
        print_rows((), [(now, *_whole(*each)) if now else _whole(*each) for each in found.runs])
    note(", ".join(f"{number} {state}" for state, number in counts([run for _, run in found.runs]).items()))
    held = [run.job for _, run in found.runs if run.release and run.job]
    if held:
        more = f" (and {len(held) - _MOST_HELD} more, see --json)" if len(held) > _MOST_HELD else ""
        note(f"held jobs start after: scontrol release {','.join(held[:_MOST_HELD])}{more}")
    _tell_leftovers(found)


def _tell_leftovers(found: _Look) -> None:
    name = f"{shlex.quote(found.sweep.name)}{found.root.option}"
    replaced = [run.run_key for index, run in found.runs if index is None]
    if replaced:
        note(
            f"no longer asked for (index -): `rlsweep cancel {replaced[0]}{found.root.option}` ends one of them, "
            "`rlsweep ablate ... --prune` all"
        )
    if found.cut_short:
        number = len(found.cut_short)
        jobs, them = ("1 job", "it") if number == 1 else (f"{number} jobs", "them")
        note(
            f"a submission was cut short, {jobs} on hold ({', '.join(found.cut_short[:_MOST_HELD])}): "
            f"`rlsweep ablate ...` goes on, `rlsweep cancel --sweep {name}` ends {them}"
        )


def _table(found: _Look, width: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows. Where reasons would be squeezed, they say attempt and ETA themselves, and the variant its seed."""
    head: tuple[str, ...] = ("#", "run", "variant", "seed", "state", "steps", "pass rate", "attempt", "ETA", "reason")
    rows: list[tuple[str, ...]] = [
        (*_named(index, run), run.variant, str(run.seed), *_reached(run), str(run.attempt or "-"), _eta(run), _why(run))
        for index, run in found.runs
    ]
    taken = sum(max(len(row[column]) + 2 for row in (head, *rows)) for column in range(len(head) - 1))
    if taken + _ROOM_FOR_REASONS <= width:
        return head, rows
    head = ("#", "run", "variant:seed", "state", "steps", "pass rate", "reason")
    return head, [
        (*_named(index, run), f"{run.variant}:{run.seed}", *_reached(run), _all_about(run)) for index, run in found.runs
    ]


def _named(index: int | None, run: "RunStatus") -> tuple[str, str]:
    return "-" if index is None else str(index), run.run_key


def _reached(run: "RunStatus") -> tuple[str, str, str]:
    return run.state, f"{run.step}/{run.total}", _rate(run)


def _why(run: "RunStatus") -> str:
    """The reason, without the command that stands below the table, and with the place of a run at work."""
    reason = run.reason.replace(f"; to release it: {run.release}", "")
    at = run.nodes or run.host
    return f"{reason}, on {at}" if run.state == "running" and at and at not in reason else reason


def _all_about(run: "RunStatus") -> str:
    if run.state == "running" and run.eta_s is not None:
        at = run.nodes or run.host
        return f"{_eta(run)} to go, attempt {run.attempt}" + (f" on {at}" if at else "")
    return _why(run) if (run.attempt or 1) == 1 else f"{_why(run)} (attempt {run.attempt})"


def _whole(index: int | None, run: "RunStatus") -> tuple[str, ...]:
    seconds = "-" if run.eta_s is None else f"{run.eta_s:.0f}"
    steps = (str(run.step), str(run.total), _rate(run), str(run.attempt or "-"))
    where = (run.host or "-", run.job or "-", run.release or "-")
    return (*_named(index, run), run.variant, str(run.seed), run.state, *steps, seconds, *where, run.reason)


def _eta(run: "RunStatus") -> str:
    from rlsweep.launch.eta import duration

    return "-" if run.eta_s is None else duration(run.eta_s)


def _rate(run: "RunStatus") -> str:
    return "-" if run.pass_rate is None else f"{run.pass_rate:.3f}"
