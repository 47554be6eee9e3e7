"""`rlsweep cancel`: end runs."""

import sys

import click

from rlsweep.cli.output import ROOT_HELP
from rlsweep.errors import EXIT_ERROR

_WAIT_S = 30.0


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--sweep", help="End all runs of this sweep, or the sweep in which RUN is a variant.")
@click.option("--root", help=ROOT_HELP)
def cancel(runs: tuple[str, ...], sweep: str | None, root: str | None) -> None:
    """End runs at work on this machine; each saves first.

    RUN is a key, its first four digits or more, a variant (all its seeds) or variant:seed. A run that was ended goes
    on from where it saved when `rlsweep ablate` asks for it again.
    """
    from rlsweep.cli.runs import find_runs, find_sweep
    from rlsweep.errors import UsageError
    from rlsweep.launch.cancel import cancel as end
    from rlsweep.store import ledger
    from rlsweep.store.layout import find_root

    place = find_root(root)
    if not runs and sweep is None:
        raise UsageError("nothing to cancel: name runs, or a whole sweep with --sweep")
    if runs:
        found = [folder for text in runs for folder in find_runs(place, text, sweep)]
    else:
        found = [place.run(intent.run_key) for intent in ledger.wanted(find_sweep(place, sweep))]
    answers = end(list(dict.fromkeys(found)), _WAIT_S)
    for folder, _, text in answers:
        click.echo(f"{folder.key} {text}")
    if not all(at_rest for _, at_rest, _ in answers):
        sys.exit(EXIT_ERROR)
