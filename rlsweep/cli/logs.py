"""`rlsweep logs`: what a trainer printed."""

import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsweep.cli.output import ROOT_HELP, note, print_json

if TYPE_CHECKING:
    from rlsweep.launch.queue import Job
    from rlsweep.store.attempts import Attempt
    from rlsweep.store.jobs import Submission
    from rlsweep.store.layout import Root, RunFolder

_POLL_S = 0.5
_NEXT_ATTEMPT_S = 3.0
"""So long after an attempt's end, its launcher may still be about to start the next."""
_ASK_S = 30.0
"""The scheduler is asked no more often."""


@click.command()
@click.argument("run")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on printing, over requeues and later attempts too, until the run ends."
)
@click.option("--attempt", type=click.IntRange(min=1), help="Number of the attempt [default: the newest].")
@click.option("--rank", type=click.IntRange(min=0), default=0, help="Rank of a run on several nodes [default: 0].")
@click.option("--sweep", help="Sweep in which RUN is named [default: the newest].")
@click.option("--root", help=ROOT_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all lines of one attempt, nothing else.")
def logs(
    run: str, follow: bool, attempt: int | None, rank: int, sweep: str | None, root: str | None, as_json: bool
) -> None:
    """Print what the trainer of RUN printed.

    RUN is a key, its first four digits or more, variant:seed, an index as `status` prints it, or values of axes that
    leave one run (loss=cispo,seed=0). Where a Slurm job ended before its attempt began, as by a failing setup line,
    what Slurm wrote about the job is printed instead.
    """
    from rlsweep.cli.runs import find_run
    from rlsweep.errors import UsageError
    from rlsweep.store import attempts
    from rlsweep.store.layout import find_root

    if follow and as_json:
        raise click.UsageError("--json and --follow exclude each other: a log that grows is not one document")
    place = find_root(root)
    folder = find_run(place, run, sweep)
    numbers = [each.number for each in attempts.every(folder)]
    if attempt is not None and attempt not in numbers:
        there = ", ".join(map(str, numbers)) or "none yet"
        raise UsageError(f"run {folder.key} has no attempt {attempt}; it has: {there}")
    if follow:
        _Following(place, folder, attempt or max(numbers, default=1), rank).follow()
        return
    job = _unbegun(folder) if attempt is None else None
    if job is not None and (files := _job_logs(place, job)):
        if as_json:
            _print_as_json(folder, None, None, job.job, files[-1])
        else:
            _print_job_logs(folder, job, files)
        return
    if not numbers:
        where = f": its job {job.job} has not begun" if job is not None else ""
        raise UsageError(f"run {folder.key} has not been started yet{where}")
    shown = attempts.Attempt(folder, attempt or numbers[-1])
    log = _log(shown, rank)
    if as_json:
        _print_as_json(folder, shown.number, rank, _job_of(shown), log)
    else:
        note(f"run {folder.key}, attempt {shown.number} of {numbers[-1]}: {log}")
        _tell_silent(shown, _print_from(log, 0))
        if job is not None:
            note(f"run {folder.key} goes on in job {job.job}, which has not begun")


@dataclass
class _Following:
    """A log that is printed as it grows. `jobs` is what the scheduler last said, None where it did not answer."""

    root: "Root"
    run: "RunFolder"
    number: int
    rank: int
    jobs: "dict[str, Job] | None" = field(default_factory=dict)
    asked: float | None = None
    said: str | None = None

    def follow(self) -> None:
        """Print attempts from the first on as they grow, until the run rests and no later attempt has come."""
        from rlsweep.store import attempts

        attempt, offset, at_work = attempts.Attempt(self.run, self.number), 0, time.monotonic()
        if attempt.path.exists():
            _log(attempt, self.rank)
        named = 0
        while True:
            newest = attempts.newest(self.run)
            if named < attempt.number and attempt.path.exists():
                named = attempt.number
                note(f"run {self.run.key}, attempt {attempt.number}: {attempt.rank_log(self.rank)}")
            before, offset = offset, _print_from(attempt.rank_log(self.rank), offset)
            if offset > before:
                at_work = time.monotonic()
                continue
            if newest is not None and newest.number > attempt.number:
                _tell_silent(attempt, offset)
                attempt, offset = attempts.Attempt(self.run, attempt.number + 1), 0
            elif self._is_at_work():
                at_work = time.monotonic()
                time.sleep(_POLL_S)
            elif time.monotonic() - at_work > _NEXT_ATTEMPT_S:
                break
            else:
                time.sleep(_POLL_S)
        _tell_silent(attempt, offset)
        job = _unbegun(self.run)
        if job is not None and (files := _job_logs(self.root, job)):
            _print_job_logs(self.run, job, files)

    def _is_at_work(self) -> bool:
        """Whether more is to come: told from the folder at every turn, from the scheduler now and then."""
        from rlsweep.launch.seen import look
        from rlsweep.store.jobs import read_submission

        if read_submission(self.run) is not None and not self._is_over():
            if self.asked is None or time.monotonic() - self.asked >= _ASK_S:
                self._ask()
            if self.jobs is None:
                return True  # nobody can say that it rests
        seen = look(self.run, self.jobs or {})
        if seen.state == "pending":
            self._say(f"run {self.run.key} waits in the queue: {seen.reason}")
        elif seen.state == "running":
            self.said = None
        return seen.state in ("running", "waiting", "pending")

    def _is_over(self) -> bool:
        """Whether the folder alone says how the run ended."""
        from rlsweep.store.state import look

        return look(self.run).state in ("finished", "diverged")

    def _ask(self) -> None:
        from rlsweep.errors import SchedulerError
        from rlsweep.launch.seen import jobs_of

        try:
            self.jobs = jobs_of([self.run])
        except SchedulerError as error:
            self.jobs = None
            self._say(f"{error}; asked again every {_ASK_S:.0f} s")
        self.asked = time.monotonic()

    def _say(self, text: str) -> None:
        """A note, once."""
        if text != self.said:
            self.said = text
            note(text)


def _unbegun(run: "RunFolder") -> "Submission | None":
    """The job that a run was handed to, where that has made no attempt."""
    from rlsweep.store import attempts
    from rlsweep.store.jobs import read_attempt_job, read_submission

    submission, newest = read_submission(run), attempts.newest(run)
    if submission is None:
        return None
    of_newest = read_attempt_job(newest) if newest is not None else None
    return None if of_newest is not None and of_newest.token == submission.token else submission


def _job_logs(root: "Root", submission: "Submission") -> list[Path]:
    """What Slurm and submitit wrote about a job of a run: files that hold something, stderr last."""
    folder = root.sweep(submission.sweep).jobs / submission.token
    name = re.compile(rf"{re.escape(submission.job)}_[0-9]+_log\.(out|err)")
    found = [path for path in folder.glob("*_log.*") if name.fullmatch(path.name) and path.stat().st_size]
    return sorted(found, key=lambda path: (path.suffix == ".err", path.name))


def _print_job_logs(run: "RunFolder", job: "Submission", files: list[Path]) -> None:
    note(f"run {run.key}: job {job.job} has made no attempt; what Slurm wrote about it:")
    for path in files:
        note(str(path))
        _print_from(path, 0)


def _tell_silent(attempt: "Attempt", printed: int) -> None:
    """Of an attempt that printed nothing, as one that was refused, how it ended: nothing else tells."""
    from rlsweep.errors import RlsweepError
    from rlsweep.store import outcome

    if printed:
        return
    try:
        ended = outcome.read(attempt.run)
    except RlsweepError as error:
        note(str(error))
        return
    if ended is not None and ended.attempt == attempt.number:
        note(f"attempt {attempt.number} printed nothing; it ended {ended.state}: {ended.reason}")


def _job_of(attempt: "Attempt") -> str | None:
    from rlsweep.store.jobs import read_attempt_job

    job = read_attempt_job(attempt)
    return None if job is None else job.job


def _log(attempt: "Attempt", rank: int) -> Path:
    """The log of a rank. UsageError where the attempt has no such rank."""
    from rlsweep.errors import UsageError

    log = attempt.rank_log(rank)
    if rank and not log.exists():
        names = (re.fullmatch(r"rank-([0-9]+)\.txt", path.name) for path in attempt.path.glob("rank-*.txt"))
        ranks = sorted({0, *(int(name[1]) for name in names if name)})
        there = ", ".join(map(str, ranks))
        raise UsageError(f"attempt {attempt.number} of run {attempt.run.key} has no rank {rank}; it has: {there}")
    return log


def _print_as_json(run: "RunFolder", attempt: int | None, rank: int | None, job: str | None, log: Path) -> None:
    from rlsweep.store.rows import read_bytes

    lines = [line.decode(errors="replace") for line in read_bytes(log).splitlines()]
    whose = {"run_key": run.key, "attempt": attempt, "rank": rank, "job": job}
    print_json({**whose, "path": str(log), "lines": lines})


def _print_from(log: Path, offset: int) -> int:
    """Print what a log holds beyond `offset`; where it ends now."""
    try:
        with open(log, "rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return offset
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return offset + len(data)
