"""`rlsweep report`: fit the law to a sweep's curves and say what it shows."""

import sys

import click

from rlsweep.cli.output import ROOT_HELP, note
from rlsweep.errors import RlsweepError
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
    leave no evaluation at all.
    """
    from rlsweep.cli.runs import find_sweep
    from rlsweep.report import terminal
    from rlsweep.report.build import build
    from rlsweep.report.data import to_data
    from rlsweep.report.write import write
    from rlsweep.store.files import encode
    from rlsweep.store.layout import find_root

    place = find_root(root)
    folder = find_sweep(place, sweep)
    found = build(place, folder.name, unit=axis)
    try:
        where = f"report: {write(found, folder)}"
    except OSError as error:  # somebody else's root, or a full disk: what was found is shown all the same
        where = f"the report's files could not be written to {folder.reports}: {error.strerror}"
    if as_json:
        click.echo(encode(to_data(found), indent=2))
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
