"""`rlsweep logs`: what a trainer printed."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsweep.cli.output import ROOT_HELP, note, print_json

if TYPE_CHECKING:
    from rlsweep.store.layout import RunFolder

_POLL_S = 0.5
_NEXT_ATTEMPT_S = 3.0
"""So long after an attempt's end, its launcher may still be about to start the next."""


@click.command()
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on printing, over later attempts too, until the run ends.")
@click.option("--attempt", type=click.IntRange(min=1), help="Number of the attempt [default: the newest].")
@click.option("--sweep", help="Sweep in which RUN is a variant [default: the newest].")
@click.option("--root", help=ROOT_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all lines of one attempt, nothing else.")
def logs(run: str, follow: bool, attempt: int | None, sweep: str | None, root: str | None, as_json: bool) -> None:
    """Print what the trainer of RUN printed.

    RUN is a key, its first four digits or more, or a variant:seed of the sweep.
    """
    from rlsweep.cli.runs import find_run
    from rlsweep.errors import UsageError
    from rlsweep.store import attempts
    from rlsweep.store.layout import find_root
    from rlsweep.store.rows import read_bytes

    if follow and as_json:
        raise click.UsageError("--json and --follow exclude each other: a log that grows is not one document")
    folder = find_run(find_root(root), run, sweep)
    numbers = [each.number for each in attempts.every(folder)]
    if attempt is not None and attempt not in numbers:
        there = ", ".join(map(str, numbers)) or "none yet"
        raise UsageError(f"run {folder.key} has no attempt {attempt}; it has: {there}")
    if follow:
        _follow(folder, attempt or max(numbers, default=1))
        return
    if not numbers:
        raise UsageError(f"run {folder.key} has not been started yet")
    shown = attempts.Attempt(folder, attempt or numbers[-1])
    if as_json:
        lines = [line.decode(errors="replace") for line in read_bytes(shown.log).splitlines()]
        print_json({"run_key": folder.key, "attempt": shown.number, "path": str(shown.log), "lines": lines})
    else:
        note(f"run {folder.key}, attempt {shown.number} of {numbers[-1]}: {shown.log}")
        _print_from(shown.log, 0)


def _follow(run: "RunFolder", number: int) -> None:
    """Print attempts from `number` on as they grow, until the run rests and no later attempt has come for a while."""
    from rlsweep.store import attempts
    from rlsweep.store.state import look

    attempt, offset, at_work = attempts.Attempt(run, number), 0, time.monotonic()
    note(f"run {run.key}, attempt {number}: {attempt.log}")
    while True:
        newest = attempts.newest(run)
        if look(run).state in ("running", "waiting"):
            at_work = time.monotonic()
        before, offset = offset, _print_from(attempt.log, offset)
        if offset > before:
            continue
        if newest is not None and newest.number > attempt.number:
            attempt, offset = attempts.Attempt(run, attempt.number + 1), 0
            note(f"run {run.key}, attempt {attempt.number}: {attempt.log}")
        elif time.monotonic() - at_work > _NEXT_ATTEMPT_S:
            return
        else:
            time.sleep(_POLL_S)


def _print_from(log: Path, offset: int) -> int:
    """Print what a log holds beyond `offset`; where it ends now."""
    try:
        with open(log, "rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return offset
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return offset + len(data)
