"""The reference of all commands, as docs/cli.md: `python -m rlsweep.cli.reference > docs/cli.md`."""

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
        command = main.get_command(parent, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=parent, **width)
        parts.append(_section(f"rlsweep {name}", command, context))
    return "\n".join(parts)


def _section(title: str, command: click.Command, context: click.Context) -> str:
    return f"## {title}\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    click.echo(reference(), nl=False)
