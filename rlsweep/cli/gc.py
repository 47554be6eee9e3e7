"""`rlsweep gc`: free the disk of what is over."""

from contextlib import nullcontext

import click

from rlsweep.cli.output import ROOT_HELP, note, print_json, print_rows, size_text


@click.command()
@click.argument("sweep", required=False)
@click.option("--dry-run", is_flag=True, help="Print what would be freed and remove nothing.")
@click.option("--root", help=ROOT_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, nothing else.")
def gc(sweep: str | None, dry_run: bool, root: str | None, as_json: bool) -> None:
    """Free what the runs of SWEEP, by default of the one worked on last, don't need any more.

    Of a finished or diverged run the weights, journal and samples stay; what it would need to go on is removed, so
    that a budget raised later trains it from the start again. Runs at work, in a queue, or that any sweep wants more
    of, are left.
    """
    from rlsweep.cli.runs import find_sweep
    from rlsweep.launch.seen import jobs_of, look
    from rlsweep.launch.submit import require_own, submitting
    from rlsweep.store import garbage, ledger
    from rlsweep.store.layout import find_root

    place = find_root(root)
    folder = find_sweep(place, sweep)
    if not dry_run:
        require_own(place)
    wanted = garbage.wanted_steps(place)
    runs = [place.run(key) for key in dict.fromkeys(each.run_key for each in ledger.wanted(folder))]
    jobs = jobs_of(runs)
    found = []
    with nullcontext() if dry_run else submitting(place, folder.name):
        for run in runs:  # looked at one by one: another sweep may just have begun to go on with it
            those = garbage.find(run, wanted, lambda run: look(run, jobs))
            found += those
            for each in () if dry_run else those:
                garbage.free(each)
    total = sum(each.size for each in found)
    if as_json:
        rows = [
            {
                "run_key": each.run.key,
                "path": str(each.path.relative_to(place.path)),
                "bytes": each.size,
                "why": each.why,
            }
            for each in found
        ]
        print_json({"sweep": folder.name, "freed": not dry_run, "bytes": total, "folders": rows})
        return
    cells = [
        (each.run.key, str(each.path.relative_to(each.run.path)), size_text(each.size), each.why) for each in found
    ]
    if cells:
        print_rows(("run", "folder", "size", "why"), cells)
    verb = "could be freed" if dry_run else "freed"
    note(f"sweep {folder.name}: {size_text(total)} {verb}")
