"""`rlsweep cancel`: end runs."""

import sys

import click

from rlsweep.cli.output import ROOT_HELP, note
from rlsweep.errors import EXIT_ERROR

_WAIT_S = 30.0


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--sweep", help="End all runs of this sweep, or the sweep in which RUN is named [default: the newest].")
@click.option("--root", help=ROOT_HELP)
def cancel(runs: tuple[str, ...], sweep: str | None, root: str | None) -> None:
    """End runs: processes at work on this machine, which save first, and jobs of yours, which wait or are at work.

    RUN is a key, its first four digits or more, a variant (all its seeds), variant:seed, indexes as `status` prints
    them (0-3,5), or values of axes (loss=cispo,seed=0). A job that waits leaves the queue; one at work saves, has as
    long for that as the cluster lets it (KillWait), and is not queued again. A run that was ended goes on from where it
    saved when `rlsweep ablate` asks for it again. --sweep alone also ends runs that others of the same name have
    replaced, and jobs of a submission that was cut short. Exit code 1 where a run is not at rest after half a minute.
    """
    from rlsweep.cli.runs import find_runs, find_sweep
    from rlsweep.errors import UsageError
    from rlsweep.launch.cancel import cancel as end
    from rlsweep.launch.cancel import cancel_sweep
    from rlsweep.launch.submit import require_own
    from rlsweep.store.layout import find_root

    place = find_root(root)
    if not runs and sweep is None:
        raise UsageError("nothing to cancel: name runs, or a whole sweep with --sweep")
    if runs:
        found = [folder for text in runs for folder in find_runs(place, text, sweep)]
        require_own(place)
        answers = end(list(dict.fromkeys(found)), _WAIT_S)
    else:
        meant = find_sweep(place, sweep)
        require_own(place)
        dropped, answers = cancel_sweep(meant, place, _WAIT_S)
        if dropped:
            jobs = "1 job" if dropped == 1 else f"{dropped} jobs"
            note(f"{jobs} of a submission that was cut short taken out of the queue; nothing had started")
    for folder, _, text in answers:
        click.echo(f"{folder.key} {text}")
    if not all(at_rest for _, at_rest, _ in answers):
        sys.exit(EXIT_ERROR)
