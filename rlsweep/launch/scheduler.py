"""Commands of Slurm: called with a time limit, tried again where the controller is busy."""

from collections.abc import Sequence


def call(arguments: Sequence[str]) -> str:
    """Stdout of one command. SchedulerError (exit 4) where it isn't installed, doesn't answer or the controller is
    down; `Refused` with the scheduler's own words where it answered no."""
    raise NotImplementedError


class Refused(Exception):
    """The scheduler answered, and said no: its words."""
