"""The reference of all commands, as docs/cli.md: `python -m rlsweep.cli.reference > docs/cli.md`."""

from collections.abc import Iterator
from typing import Any

import click

from rlsweep.cli import COMMANDS, main

_WIDTH = 100
_HEAD = """# Commands

Made from the commands' own help by `python -m rlsweep.cli.reference`; a test holds it current.
"""


def reference() -> str:
    """Help of `rlsweep` and of each of its commands, the same on every terminal."""
    width: dict[str, Any] = {"terminal_width": _WIDTH, "max_content_width": _WIDTH}
    parent = click.Context(main, info_name="rlsweep", **width, **main.context_settings)
    parts = [_HEAD, _section("rlsweep", main, parent)]
    for name in COMMANDS:
        parts += _sections("rlsweep", name, main, parent, width)
    return "\n".join(parts)


def _sections(
    before: str, name: str, group: click.Group, parent: click.Context, width: dict[str, Any]
) -> Iterator[str]:
    """The section of a command, and of each of its own where it is a group."""
    command = group.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent, **width)
    yield _section(f"{before} {name}", command, context)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from _sections(f"{before} {name}", each, command, context, width)


def _section(title: str, command: click.Command, context: click.Context) -> str:
    return f"## {title}\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    click.echo(reference(), nl=False)
