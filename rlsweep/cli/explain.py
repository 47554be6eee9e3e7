"""`rlsweep explain`: what a recipe can say."""

import json
from dataclasses import asdict

import click


@click.command()
@click.argument("path", default="")
@click.option("--json", "as_json", is_flag=True, help="One JSON list of the leaves, nothing else.")
def explain(path: str, as_json: bool) -> None:
    """Say what PATH of a recipe means: a leaf such as loss.eps_max, or a section such as loss.

    Without PATH, all leaves are listed, one a line.
    """
    from rlsweep.recipe.explain import explain as look_up
    from rlsweep.recipe.text import scalar_text

    found = look_up(path)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    for number, each in enumerate(found):
        name = each.path + (f" (of {each.of})" if each.of else "")
        default = "must be stated" if each.required else f"default {scalar_text(each.default)}"
        if path == "":
            click.echo(f"{name}: {each.valid}; {default}")
            continue
        if number:
            click.echo()
        text = each.text.replace("\n", "\n  ")
        click.echo(f"{name}\n  {each.valid}; {default}\n  {text}")
