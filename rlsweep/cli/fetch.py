"""`rlsweep fetch`: have model and data lie where jobs without a network find them."""

from dataclasses import asdict

import click

from rlsweep.cli.output import ROOT_HELP, note, print_json, print_rows, size_text


@click.command()
@click.argument("recipe")
@click.option("--scale", help="Base under the recipe: a shipped name (tiny, 8b) or a file [default: the recipe's].")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change the recipe itself; repeatable.")
@click.option("--root", help=ROOT_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object of what is there, nothing else.")
def fetch(recipe: str, scale: str | None, overrides: tuple[str, ...], root: str | None, as_json: bool) -> None:
    """Bring the model and the data of RECIPE from the hub to the root, for jobs that reach no network.

    To be called where there is one, such as on the login node. Pinned revisions are fetched once; for a branch the hub
    is asked where it stands, and its commit is told, for the recipe. HF_TOKEN, HF_ENDPOINT and proxies are heeded.
    Elsewhere than on a terminal: a line each with field, name, commit, files, bytes, how it came there and folder,
    separated by tabs.
    """
    from rlsweep.launch.fetch import fetch as stage
    from rlsweep.recipe.load import load_recipe
    from rlsweep.store.layout import find_root

    place = find_root(root)
    resolved = load_recipe(recipe, scale=scale, overrides=overrides)
    found = stage(resolved, place, say=lambda text: click.echo(text, err=True))
    if as_json:
        print_json({"root": str(place.path), "fetched": [{**asdict(each), "pin": each.pin} for each in found]})
        return
    rows = [
        [each.field, each.name, each.commit or "-", str(each.files), size_text(each.bytes), each.how, each.folder]
        for each in found
    ]
    print_rows(["field", "name", "commit", "files", "size", "how", "folder"], rows)
    for each in found:
        if each.pin:
            note(f"{each.name}: {each.revision} moves; in the recipe, write {each.pin}")
    note("all of it loads without a network")
