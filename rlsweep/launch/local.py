"""The local runner: keeps as many runs going as there are cores, and can be killed and called again at any time."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlsweep.errors import RlsweepError
from rlsweep.launch.display import Display
from rlsweep.launch.job import Job, adopt, name_of, spawn, start, tail
from rlsweep.launch.machine import cores
from rlsweep.launch.plan import TO_START, Planned, decide_run
from rlsweep.launch.stop import Stop
from rlsweep.launch.submit import freeze
from rlsweep.recipe.key import embedded_identity
from rlsweep.recipe.model import Embedded
from rlsweep.store import attempts, ledger
from rlsweep.store.attempts import Superseded
from rlsweep.store.claim import Claim
from rlsweep.store.files import describe, read_json
from rlsweep.store.layout import Root, SweepFolder
from rlsweep.store.outcome import SAVED
from rlsweep.sweep.expand import Run

TRAINER = (sys.executable, "-m", "rlsweep.train")
_POLL_S = 0.1
_FOLLOW_S = 1.0
_REFRESH_S = 10.0
_GRACE_S = 30.0
_TRIES = 2


@dataclass(frozen=True)
class Failure:
    """A run that failed: why, and the last lines of its log."""

    run: Run
    reason: str
    log: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What became of the runs: the failed ones, and whether the runner was asked to stop before all were done."""

    failures: tuple[Failure, ...]
    interrupted: bool


def run_all(
    folder: SweepFolder,
    root: Root,
    decisions: Sequence[Planned],
    parallel: int | None,
    show: Display,
    claim: Claim,
) -> Result:
    """Carry out submitted decisions on this machine, `parallel` runs at a time; None: as many as its cores bear.

    Returns when all runs have ended. Ends its runs when asked to stop by SIGINT, SIGTERM or SIGHUP: each saves and
    goes on from there when the command is run again. A run that dies by a signal, or stops unasked, is tried once more.
    `claim` is the one on the sweep, whose ledger is written here. RlsweepError where it is lost: the runs end likewise.
    """
    threads = max((planned.run.recipe.execution.threads for planned in decisions), default=1)
    slots = parallel or max(1, cores() // threads)
    with Stop() as stop:
        runner = _Runner(folder, root, slots, show, claim, stop)
        runner.work(decisions)
        return Result(tuple(runner.failures), stop.asked > 0)


@dataclass
class _Runner:
    folder: SweepFolder
    root: Root
    slots: int
    show: Display
    claim: Claim
    stop: Stop
    queue: deque[Run] = field(default_factory=deque)
    jobs: list[Job] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    tries: dict[str, int] = field(default_factory=dict)
    followed: float = 0.0
    refreshed: float = 0.0
    ending: bool = False

    def work(self, decisions: Sequence[Planned]) -> None:
        """From the first start to the last end."""
        for planned in decisions:
            if planned.job is not None:
                self.show.say(f"{planned.run.key} {name_of(planned.run)}: left to job {planned.job}: {planned.reason}")
            elif planned.action == "leave":
                self._begin(planned.run)
        try:
            self.queue.extend(self._prepared(decisions))
            while (self.queue or self.jobs) and not self.stop.asked:
                self._refresh()
                for _ in range(len(self.queue)):  # one that is put back waits for the next turn
                    if len(self.jobs) < self.slots:
                        self._begin(self.queue.popleft())
                self._turn()
        finally:
            self._end()

    def _begin(self, run: Run) -> None:
        """Start a run, or wait for it where it is at work already, or leave it where it is done by now."""
        try:
            job = self._started(run)
        except (RlsweepError, OSError) as error:  # a damaged folder, a full disk: the other runs go on
            self._failed(Failure(run, describe(error), ()))
            return
        if job is not None:
            self.jobs.append(job)
            note = f"attempt {job.attempt.number} {'started' if job.process else 'found at work'}"
            self.show.started(run.key, job.name, run.recipe.budget.steps, note)

    def _started(self, run: Run) -> Job | None:
        folder = self.root.run(run.key)
        before = attempts.newest(folder)
        planned = decide_run(run, folder)
        if planned.action == "skip":
            return None
        if planned.action == "leave":
            owner = attempts.newest(folder)
            assert owner is not None
            return adopt(run, owner)
        try:
            # The attempt after those that the decision knew of: one made since then is another launcher's, and lives.
            attempt = attempts.claim(folder, before.number + 1 if before else 1)
        except Superseded:
            self.queue.append(run)
            return None
        row = {"kind": "attempt", "time": time.time(), "run_key": run.key, "attempt": attempt.number}
        ledger.append(self.folder, [row])
        self.tries[run.key] = self.tries.get(run.key, 0) + 1
        freeze(run, folder)
        return start(run, attempt, TRAINER)

    def _refresh(self) -> None:
        """Now and then, say that this launcher is at work on the sweep."""
        if time.monotonic() - self.refreshed < _REFRESH_S:
            return
        self.refreshed = time.monotonic()
        with suppress(OSError):  # a slow file system: said again later
            self.claim.refresh()

    def _turn(self) -> None:
        """Wait a moment, show what the journals gained, take away what has ended."""
        time.sleep(_POLL_S)
        follow = time.monotonic() - self.followed >= _FOLLOW_S
        if follow:
            self.followed = time.monotonic()
        for job in list(self.jobs):
            # Asking after an attempt of another launcher reads files: as rarely as the journals are read.
            ended = job.done() if job.process is not None or follow else False
            if (follow or ended) and job.follow():
                self.show.progress(job.run.key, job.step, job.evaluation)
            if ended:
                self.jobs.remove(job)
                self._ended(job)

    def _ended(self, job: Job) -> None:
        key, cancelled = job.run.key, job.attempt.cancelled.exists()
        try:
            ended = job.settle(asked=self.ending or cancelled)
        except (RlsweepError, OSError) as error:
            self.show.ended(key, f"failed: {describe(error)}")
            self.failures.append(Failure(job.run, describe(error), tuple(job.log_tail())))
            return
        if ended is None:
            self.show.ended(key, "left by its launcher, or taken over")
            self._again(job.run)
        elif ended.state == "finished":
            rate = f", pass rate {job.evaluation.pass_rate:.3f}" if job.evaluation else ""
            self.show.ended(key, f"finished at step {ended.step}{rate}")
            if job.process is None and ended.step < job.run.recipe.budget.steps:
                self._again(job.run)  # it was started with a lower budget
        elif ended.state == "diverged":
            self.show.ended(key, f"diverged at step {ended.step}: {ended.reason}")
        elif ended.state == "interrupted" and (self.ending or cancelled):
            self.show.ended(key, f"{'cancelled' if cancelled else 'stopped'} at step {ended.step}: {ended.reason}")
        elif not self.ending and _worth_another_try(job) and self.tries.get(key, 0) < _TRIES:
            self.show.ended(key, f"{ended.reason}; trying once more")
            self._again(job.run)
        else:
            self.show.ended(key, f"{ended.state}: {ended.reason}")
            self.failures.append(Failure(job.run, ended.reason, tuple(job.log_tail())))

    def _failed(self, failure: Failure) -> None:
        """A run that could not even start."""
        self.show.say(f"{failure.run.key} {name_of(failure.run)}: failed: {failure.reason}")
        self.failures.append(failure)

    def _again(self, run: Run) -> None:
        if not self.ending:
            self.queue.appendleft(run)

    def _end(self) -> None:
        """Ask the runs that are left to save and end; kill them when asked again, or after a while."""
        self.ending = True
        ours = [job for job in self.jobs if job.ours]
        self.jobs = ours  # what belongs to another launcher goes on
        if ours:
            self.show.say(
                f"stopping: waiting up to {_GRACE_S:.0f} s for {len(ours)} run(s) to save; again to kill them"
            )
        for job in ours:
            job.signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        # Counted from the first request, not from here: the second may have come before the first was acted on.
        while self.jobs and self.stop.asked < 2 and time.monotonic() < deadline:
            self._turn()
        for job in self.jobs:
            job.killed = "killed, as asked again" if self.stop.asked >= 2 else f"killed after {_GRACE_S:.0f} s"
            job.signal(signal.SIGKILL)
        while self.jobs:
            self._turn()

    def _prepared(self, decisions: Sequence[Planned]) -> list[Run]:
        """Have each embedded model made once, before several runs need it at once; the runs that can be started."""
        runs = [planned.run for planned in decisions if planned.action in TO_START]
        made = {embedded_identity(planned.run.recipe) for planned in decisions if planned.step}
        users: dict[tuple[object, ...], list[Run]] = {}
        for run in runs:
            model = embedded_identity(run.recipe)
            if isinstance(run.recipe.model, Embedded) and model not in made and not _is_made(self.root, model):
                users.setdefault(model, []).append(run)
        waiting = deque(users.values())
        going: list[tuple[list[Run], subprocess.Popen[bytes]]] = []
        failed: set[str] = set()
        if users:
            self.show.say(
                "making the embedded model (once)" if len(users) == 1 else f"making {len(users)} embedded models (once)"
            )
        while (waiting or going) and not self.stop.asked:
            self._refresh()
            while waiting and len(going) < self.slots:
                going.append((waiting[0], self._prepare(waiting.popleft()[0])))
            time.sleep(_POLL_S)
            for group, process in [entry for entry in going if entry[1].poll() is not None]:
                going.remove((group, process))
                if process.returncode:
                    failed |= self._unprepared(group, process.returncode)
        for _, process in going:
            os.killpg(process.pid, signal.SIGKILL)  # making a model is atomic: nothing is lost but the work
            process.wait()
        return [run for run in runs if run.key not in failed]

    def _prepare(self, run: Run) -> subprocess.Popen[bytes]:
        with open(_prepare_log(self.root, run), "wb") as log:
            path = str(self.root.run(run.key).path)
            return spawn([*TRAINER, "--prepare", path], run.recipe.execution.threads, log.fileno())

    def _unprepared(self, group: list[Run], code: int) -> set[str]:
        log = tail(_prepare_log(self.root, group[0]), 3)
        reason = f"its embedded model could not be made (exit code {code})"
        for run in group:
            self._failed(Failure(run, reason, tuple(log)))
        return {run.key for run in group}


def _worth_another_try(job: Job) -> bool:
    """Killed (by a lack of memory, say) or stopped by somebody else, rather than ended by an error of its own."""
    if job.process is None:
        return True
    return job.process.returncode < 0 or job.process.returncode == SAVED


def _is_made(root: Root, model: tuple[tuple[str, object], ...]) -> bool:
    """Whether a model of these leaves is in the root already. A trainer that needs another makes it itself."""
    notes = root.models.glob("embedded-*/made-from.json")
    return any(read_json(note).get("leaves") == dict(model) for note in notes)


def _prepare_log(root: Root, run: Run) -> Path:
    return root.run(run.key).path / "prepare.txt"
