"""The one error tree: all that a user can cause is an RlsweepError, which the command line prints as one message."""

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_RUNS_FAILED = 3
EXIT_SCHEDULER = 4
EXIT_INTERRUPTED = 130


class RlsweepError(Exception):
    """Something a person can mend: the message says what, where and what is valid; the shell sees `exit_code`."""

    exit_code = EXIT_ERROR


class RecipeError(RlsweepError):
    """A recipe, a sweep file, an override or an axis that can't be read or is not valid."""

    exit_code = EXIT_USAGE


class UsageError(RlsweepError):
    """A command called with something that doesn't exist or doesn't fit: an unknown sweep, run or profile."""

    exit_code = EXIT_USAGE


class SchedulerError(RlsweepError):
    """The scheduler can't be asked or doesn't answer. Nothing was lost: the same command works once it does."""

    exit_code = EXIT_SCHEDULER
