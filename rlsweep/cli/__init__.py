"""The command line: one small file a command, found here by name and imported only when it is called."""

import sys
from importlib import import_module
from typing import Any

import click

from rlsweep.errors import EXIT_INTERRUPTED, RlsweepError

COMMANDS: dict[str, tuple[str, str]] = {
    "plan": ("rlsweep.cli.ablate:plan", "Print each run of a sweep and what would be done about it; write nothing."),
    "ablate": ("rlsweep.cli.ablate:ablate", "Train what a recipe and its axes ask for and is not trained yet."),
    "status": ("rlsweep.cli.status:status", "Print the state of each run of SWEEP, by default of the newest."),
    "logs": ("rlsweep.cli.logs:logs", "Print what the trainer of RUN printed."),
    "samples": (
        "rlsweep.cli.samples:samples",
        "Show what the model of RUN wrote: up to 32 rollouts of each evaluation and of every tenth training step.",
    ),
    "cancel": (
        "rlsweep.cli.cancel:cancel",
        "End runs: processes at work on this machine, which save first, and jobs of yours, which wait or are at work.",
    ),
    "sync": ("rlsweep.cli.sync:sync", "Send to MLflow what it lacks of SWEEP, by default of the one worked on last."),
    "report": (
        "rlsweep.cli.report:report",
        "Write and show the report of SWEEP, by default of the one worked on last.",
    ),
    "gc": (
        "rlsweep.cli.gc:gc",
        "Free what the runs of SWEEP, by default of the one worked on last, don't need any more.",
    ),
    "cluster": ("rlsweep.cli.cluster:cluster", "Look at profiles of where runs go, and try them."),
    "fetch": (
        "rlsweep.cli.fetch:fetch",
        "Bring the model and the data of RECIPE from the hub to the root, for jobs that reach no network.",
    ),
    "explain": (
        "rlsweep.cli.explain:explain",
        "Say what PATH of a recipe means: a leaf such as loss.eps_max, or a section such as loss.",
    ),
}
"""Name -> (module:attribute, the first sentence of the command's help, kept here so that --help imports nothing)."""


class _Lazy(click.Group):
    """A group whose commands are imported when called, and whose errors are one message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of a sweep's life."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_) for name, (_, help_) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what a person can mend is told in one message."""
        try:
            return super().invoke(ctx)
        except RlsweepError as error:
            click.echo(f"rlsweep: {error}", err=True)
            sys.exit(error.exit_code)
        except BrokenPipeError:
            raise  # the reader of stdout has gone: click ends quietly
        except OSError as error:
            from rlsweep.store.files import describe, disk_fault

            if error.filename is None and not disk_fault(error):  # a full disk behind stdout has no name
                raise
            click.echo(f"rlsweep: {describe(error)}", err=True)
            sys.exit(RlsweepError.exit_code)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0; 1 error; 2 usage or recipe; 3 some runs failed; 4 scheduler unreachable; 130 interrupted.",
)
@click.version_option(package_name="rlsweep")
def main() -> None:
    """Derive, train and compare reinforcement-learning recipes for language models.

    A recipe goes in, a prediction comes out: `rlsweep ablate` trains a recipe and its variants, `rlsweep report` fits
    the law of compute and performance to each and says what differs. Each command has its own --help.
    """
