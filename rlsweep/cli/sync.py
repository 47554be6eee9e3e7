"""`rlsweep sync`: send the journals of a sweep to MLflow."""

from dataclasses import asdict

import click

from rlsweep.cli.output import ROOT_HELP, note, print_json


@click.command()
@click.argument("sweep", required=False)
@click.option("--root", help=ROOT_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object that says what was sent, nothing else.")
def sync(sweep: str | None, root: str | None, as_json: bool) -> None:
    """Send to MLflow what it lacks of SWEEP, by default of the one worked on last.

    The store is the one MLFLOW_TRACKING_URI names, else a SQLite file under the root.
    """
    from rlsweep.cli.runs import find_sweep
    from rlsweep.errors import RlsweepError
    from rlsweep.store.layout import find_root
    from rlsweep.track import sync as send

    place = find_root(root)
    name = find_sweep(place, sweep).name
    result = send(place, name, say=lambda text: click.echo(text, err=True))
    if as_json:
        print_json(asdict(result))
    elif not result.skipped:
        note(f"{name}: {result.points} points sent, {result.runs} runs in {result.store}")
    if result.problems:
        raise RlsweepError(f"{len(result.problems)} of the sweep's runs could not be sent")
