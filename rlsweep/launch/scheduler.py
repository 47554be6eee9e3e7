"""Commands of Slurm: called with a time limit, tried again where the controller is busy."""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence

from rlsweep.errors import RlsweepError, SchedulerError

_LIMIT_S = 30.0
_WAITS_S = (1.0, 3.0)
"""Waits between tries. Where nobody listens, a command of Slurm tries for 9 s on its own before it gives up."""
_PATIENCE_S = 15.0
"""No further try so long after the first one began: commands that hang add up."""

_FOREIGN = ("SLURM", "SBATCH_", "SQUEUE_", "SACCT_", "SALLOC_", "SCANCEL_", "SCONTROL_", "SINFO_", "SRUN_", "SUBMITIT_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
"""Where the scheduler is, and who is asking."""
RANKS = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|PMI_\w+"
    r"|PMIX_(RANK|NAMESPACE|SERVER\w*)|MPI_LOCAL\w+|(OMPI|MV2)_COMM_WORLD_\w+"
)
"""Names of variables that make a process one rank of several: what torch and accelerate take for a process group, and
what a site's MPI gives to every task. Settings of an MPI (OMPI_MCA_..., PMIX_MCA_...) are none."""

_BUSY = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connection timed out",
    "connection reset",
    "connect failure",
    "unable to connect",
    "communication connection failure",
    "zero bytes were transmitted",
    "transport endpoint is not connected",
    "message receive failure",
    "unexpected message received",
    "insane message length",
    "resource temporarily unavailable",
    "temporarily unable to accept job",
    "in standby mode",
    "unable to establish controller",
    "no route to host",
    "network is unreachable",
    "problem talking to the database",
    "database connection is down",
    "munge encode failed",
    "munge decode failed",
    "protocol authentication error",
)
"""What Slurm says where it can't answer now, lower case: the same command may work in a moment."""
_ABSENT = (
    "could not establish a configuration source",
    "failed to fetch config",
    "slurm.conf: no such file",
    "unable to process configuration file",
)


class Refused(RlsweepError):
    """The scheduler answered, and said no: its words."""


def call(
    arguments: Sequence[str],
    *,
    retry: bool = True,
    variables: Mapping[str, str] | None = None,
    limit_s: float = _LIMIT_S,
) -> str:
    """Stdout of one command. SchedulerError (exit 4) where it isn't installed, doesn't answer or the controller is
    down; `Refused` with the scheduler's own words where it answered no.

    `retry`: whether it may be given again where no answer came, though it may have been carried out: not for sbatch.
    `variables` are added to its environment. `limit_s`: how long each try may take.
    """
    # sbatch hands its environment on to the job, whose language stays that of the person who submits.
    language = {} if arguments[0] == "sbatch" else {"LC_ALL": "C.UTF-8"}
    around = {**environment(), **language, **(variables or {})}
    began = time.monotonic()
    waits = iter(_WAITS_S if retry else ())
    while True:
        try:
            return _once(arguments, around, limit_s)
        except _NoAnswer as error:
            wait = next(waits, None)
            if wait is None or time.monotonic() - began > _PATIENCE_S:
                raise _unreachable(arguments, str(error)) from None
            time.sleep(wait)


def environment() -> dict[str, str]:
    """This process's environment without what the job or the ranks around it put there, but with the way to Slurm.

    Options that stand in the environment (SBATCH_PARTITION, SQUEUE_STATES) would silently win over what is asked for.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not (name.startswith(_FOREIGN) or RANKS.fullmatch(name))
    }


class _NoAnswer(Exception):
    """It may work in a moment: the scheduler's words."""


def _once(arguments: Sequence[str], around: dict[str, str], limit_s: float) -> str:
    try:
        done = subprocess.run(
            list(arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            env=around,
            start_new_session=True,  # the terminal's Ctrl-C must not cut off an sbatch whose job was taken
        )
    except FileNotFoundError:
        raise SchedulerError(
            f"{arguments[0]}: there is no such command here, so no Slurm on this machine; "
            "run this where jobs are submitted"
        ) from None
    except PermissionError as error:
        raise SchedulerError(f"{arguments[0]}: can't be run here ({error.strerror})") from error
    except subprocess.TimeoutExpired:
        raise _NoAnswer(f"no answer within {limit_s:.0f} s") from None
    if done.returncode == 0:
        return done.stdout.decode(errors="replace")
    words = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
    said = words.lower()
    if any(phrase in said for phrase in _ABSENT):
        raise _unreachable(arguments, words)
    if any(phrase in said for phrase in _BUSY):
        raise _NoAnswer(words)
    raise Refused(words or f"{arguments[0]}: ended with exit code {done.returncode} and said nothing")


def _unreachable(arguments: Sequence[str], words: str) -> SchedulerError:
    called = shlex.join(arguments)
    if len(called) > 200:
        called = f"{called[:200]}..."
    last = " ".join(words.split())
    return SchedulerError(
        f"the scheduler can't be reached: `{called}` said: {last}. Nothing was lost; run the same command again "
        "once Slurm answers"
    )
