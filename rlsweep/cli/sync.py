"""`rlsweep sync`: send the journals of a sweep to MLflow."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from rlsweep.cli.output import ROOT_HELP, note, print_json

if TYPE_CHECKING:
    from rlsweep.store.layout import RunFolder
    from rlsweep.store.state import Seen


@click.command()
@click.argument("sweep", required=False)
@click.option("--root", help=ROOT_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object that says what was sent, nothing else.")
def sync(sweep: str | None, root: str | None, as_json: bool) -> None:
    """Send to MLflow what it lacks of SWEEP, by default of the one worked on last.

    The store is the one MLFLOW_TRACKING_URI names, else a SQLite file under the root. Runs that wait in a queue,
    between two attempts say, stay open there. Where the scheduler can't be reached, what the folders hold is sent, the
    runs handed to it stay open, and the exit code is 4.
    """
    from rlsweep.cli.runs import find_sweep
    from rlsweep.errors import RlsweepError, SchedulerError
    from rlsweep.launch.seen import jobs_of, look
    from rlsweep.launch.submit import require_own
    from rlsweep.store import ledger
    from rlsweep.store.jobs import read_submission
    from rlsweep.store.layout import find_root
    from rlsweep.track import sync as send

    place = find_root(root)
    folder = find_sweep(place, sweep)
    require_own(place)
    unreachable, jobs = None, None
    try:
        jobs = jobs_of([place.run(key) for key in {intent.run_key for intent in ledger.intents(folder)}])
    except SchedulerError as error:
        unreachable = error

    def now(run: "RunFolder") -> "Seen":
        seen = look(run, jobs)
        unknown = jobs is None and seen.state in ("interrupted", "lost") and read_submission(run) is not None
        return replace(seen, state="pending") if unknown else seen

    result = send(place, folder.name, say=lambda text: click.echo(text, err=True), look=now)
    if as_json:
        print_json(asdict(result))
    elif not result.skipped:
        note(f"{folder.name}: {result.points} points sent, {result.runs} runs in {result.store}")
    if unreachable is not None:
        raise unreachable
    if result.problems:
        raise RlsweepError(f"{len(result.problems)} of the sweep's runs could not be sent")
