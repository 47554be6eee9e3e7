"""`rlsweep report`: fit the law to a sweep's curves and say what it shows."""

import sys

import click

from rlsweep.cli.output import ROOT_HELP, note
from rlsweep.errors import RlsweepError, UsageError
from rlsweep.report.numbers import UNITS


@click.command()
@click.argument("sweep", required=False)
@click.option("--root", help=ROOT_HELP)
@click.option("--json", "as_json", is_flag=True, help="The content of report.json, nothing else.")
@click.option(
    "--axis",
    type=click.Choice(list(UNITS)),
    help="What compute is counted in [default: device_hours where every run had accelerators, else flops].",
)
def report(sweep: str | None, root: str | None, as_json: bool, axis: str | None) -> None:
    """Write and show the report of SWEEP, by default of the one worked on last.

    It lies in the sweep's folder as report.html, report.md and report.json. Elsewhere than on a terminal: a header and
    a line a variant, separated by tabs. Damaged files of runs are told on stderr and flagged; it is an error where they
    leave no evaluation at all. Of another user's root the report is shown and not written.
    """
    from rlsweep.cli.runs import find_sweep
    from rlsweep.launch.submit import require_own
    from rlsweep.report import terminal
    from rlsweep.report.build import build
    from rlsweep.report.data import to_data
    from rlsweep.report.write import write
    from rlsweep.store.files import encode
    from rlsweep.store.layout import find_root

    place = find_root(root)
    folder = find_sweep(place, sweep)
    found = build(place, folder.name, unit=axis)
    written = None
    try:  # what was found is shown all the same
        require_own(place)
        written = write(found, folder)
        where = f"report: {written}"
    except UsageError as error:
        where = f"nothing was written: {error}"
    except OSError as error:  # a full disk, or one that is read-only
        where = f"nothing was written: {folder.reports}: {(error.strerror or str(error)).lower()}"
    if as_json:
        click.echo(encode(to_data(found), indent=2))
        if written is None:
            click.echo(where, err=True)
    elif sys.stdout.isatty():
        terminal.show(found, where)
    else:
        for line in terminal.rows(found):
            click.echo(line)
        for line in terminal.verdicts(found, where):
            note(line)
    runs = [run for row in found.variants for run in row.runs]
    damage = list(dict.fromkeys(each for run in runs for each in run.damage))
    for each in damage:
        click.echo(f"rlsweep: warning: {each}", err=True)
    if damage and not any(run.measured for run in runs):
        raise RlsweepError("none of the sweep's evaluations can be read; mend or remove the files named above")
