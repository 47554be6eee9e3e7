"""Rank 0 of a job: claims the attempt, passes Slurm's notice on, says how the attempt ended and whether it goes on."""

import os
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rlsweep.errors import SchedulerError
from rlsweep.launch import scheduler
from rlsweep.launch.child import Trainer, start
from rlsweep.launch.job import end, whence, why
from rlsweep.launch.notice import Notice
from rlsweep.launch.owned import Over, failure, refusal, require_ours, settled, used_up
from rlsweep.launch.ranks import ENDED_WELL, STOPPED, Death, Place, job_of, meeting_point, reports
from rlsweep.launch.scheduler import Refused
from rlsweep.recipe.resolved import read_resolved
from rlsweep.store import attempts, checkpoints
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import describe, write_json
from rlsweep.store.jobs import AttemptJob, Submission, write_attempt_job
from rlsweep.store.layout import RunFolder
from rlsweep.store.outcome import DIVERGED, SAVED, Outcome

_POLL_S = 0.2
_DYING_S = 10.0
_PEERS_S = 2.0
"""How often rank 0 looks for ranks whose trainer has died."""
_ALONE_S = 30.0
"""So long after another rank's trainer died ours, which may wait for it in vain, is ended."""
_TOLD_S = 5.0
"""How long to wait, after ours ended, for the other ranks to say how theirs did."""
_AGAIN_S = 300.0
"""How long to try to queue the job again while the controller doesn't answer."""
_BETWEEN_S = 5.0
_BEAT_S = 60.0
"""How often a job gives a sign of life: its GPU-hours count until the last one where it can't say that it ended."""
_EARLY_S = 60.0
"""Slurm gives notice up to so much earlier than it was asked to; what comes earlier still is a preemption."""


@dataclass
class Lead:
    """The attempt of this start of the job, and its trainer on this node."""

    submission: Submission
    place: Place
    attempt: Attempt
    job: AttemptJob
    number: int
    """How many attempts this submission has made, this one included."""
    trainer: Trainer
    notice: Notice
    beat: float = 0.0
    """When the last sign of life was given, on the monotonic clock."""
    looked: float = 0.0
    mourned: float | None = None
    """When another rank's trainer was found dead, on the monotonic clock."""
    pulled: bool = False
    """Whether our trainer was ended because another's was dead."""

    @classmethod
    def begin(cls, run: RunFolder, submission: Submission, place: Place, notice: Notice) -> "Lead":
        """Claim the next attempt and start its trainer. Over where no further one may start."""
        earlier = sum(job.token == submission.token for each in attempts.every(run) if (job := job_of(each)))
        refused = refusal(run, submission, earlier)
        threads = read_resolved(run.recipe).execution.threads
        attempt = attempts.claim(run)  # a refused one, too: what is left of those before it may write nothing more
        write_json(attempt.launcher, attempts.identity(os.getpid()))
        attempts.record_process(attempt)
        address, port = meeting_point(place)
        now = time.time()
        job = AttemptJob(
            token=submission.token,
            job=place.job,
            restart=place.restart,
            nodes=list(place.nodes),
            devices=submission.devices,
            address=address,
            port=port,
            started=now,
            ended=None if refused is None else now,
        )
        write_attempt_job(attempt, job)
        if refused is not None:
            end(attempt, "interrupted", refused)
            raise Over(f"run {run.key}: {refused}")
        try:
            trainer = start(attempt, place, job, threads, notice.signal)
        except OSError as error:
            end(attempt, "failed", f"its trainer could not be started: {describe(error)}")
            write_attempt_job(attempt, replace(job, ended=time.time()))
            raise
        lead = cls(submission, place, attempt, job, earlier + 1, trainer, notice)
        lead.say(f"job {place.job} on {', '.join(place.nodes)}, start {place.restart + 1}")
        return lead

    def work(self) -> None:
        """Wait for the trainer, then for what comes of it. Never returns: Over or RunFailed, or SystemExit where the
        job is queued again."""
        while (code := self.trainer.wait(_POLL_S)) is None:
            self._give_sign()
            if self.notice.came:
                self._pass_on()
            if self.place.world > 1:
                self._watch()
        self._conclude(code)
        self._queue_again()

    def stop(self) -> None:
        """Have the trainer save and end in the time that Slurm leaves it. Returns where the job is to be queued again;
        Over or RunFailed where not."""
        began, notice = time.monotonic(), self.submission.notice_s
        spare = min(30.0, notice / 4)
        limit = notice - spare
        self.say(f"Slurm wants the node back: waiting up to {limit:.0f} s for the trainer to save")
        self.trainer.ask()
        code, killed = self.trainer.wait(limit), None
        if code is None:
            killed = f"killed, as it had not saved within {limit:.0f} s"
            self.trainer.kill()
            code = self.trainer.wait(_DYING_S)
        self._conclude(code, asked=True, killed=killed)
        self._ask_whether_running(began + notice - spare / 2)

    def end(self) -> None:
        """Note when the attempt ended, however that came about."""
        if self.job.ended is None:
            self.job = replace(self.job, ended=time.time())
            with suppress(OSError):  # a full disk; what it was last heard of tells nearly as much
                write_attempt_job(self.attempt, self.job)

    def say(self, text: str) -> None:
        """A line in the job's log and in the attempt's."""
        print(f"rlsweep: {text}", flush=True)
        with suppress(OSError), open(self.attempt.log, "a", encoding="utf-8") as log:
            log.write(f"rlsweep: {text}\n")

    def _pass_on(self) -> None:
        """Let submitit stop the trainer (through `stop`) and queue the job again."""
        try:
            self.notice.pass_on()
        except (OSError, subprocess.SubprocessError) as error:  # of scontrol, which it calls
            if settled(self.attempt) is None:
                raise
            self.say(f"scontrol requeue: {error}")
            self._queue_again()

    def _conclude(self, code: int | None, *, asked: bool = False, killed: str | None = None) -> None:
        """Say how the attempt ended. Returns where the run is to go on within this submission."""
        run = self.attempt.run
        ended = self._settle(code, asked, killed)
        if ended is None or not self.attempt.owns():
            raise Over(f"run {run.key}: attempt {self.attempt.number} ended; a newer one has taken the run over")
        if ended.state in ("finished", "diverged"):
            raise Over(f"run {run.key} {ended.state} at step {ended.step}: {ended.reason}")
        if ended.state == "failed":
            raise failure(self.attempt, ended)
        if self.attempt.cancelled.exists():
            raise Over(f"run {run.key} was cancelled at step {ended.step}: {ended.reason}")
        require_ours(run, self.submission.token)
        self._require_progress(ended, asked)
        if self.number > self.submission.retries:
            self._give_up(used_up(self.submission))
        self.say(f"{ended.reason}; queueing the job again")

    def _settle(self, code: int | None, asked: bool, killed: str | None) -> Outcome | None:
        """The outcome of the ended attempt, written down where its trainer left none."""
        cause = self._cause(code)
        told = settled(self.attempt)
        if told is not None and (told.state in ("finished", "diverged") or (asked and told.state == "interrupted")):
            return told
        if cause is not None and _is_kill(cause.code) and not (asked and cause.rank == 0):
            return self._killed(cause)
        if told is not None:
            return told
        if asked or code in STOPPED or code == SAVED:
            return end(self.attempt, "interrupted", f"{killed or 'stopped'}; {whence(self.attempt)}")
        if cause is not None and cause.rank > 0:
            reason = f"rank {cause.rank}: {why(cause.code, self.attempt.rank_log(cause.rank))}"
            return end(self.attempt, "failed", reason)
        return end(self.attempt, "failed", why(code, self.attempt.log))

    def _cause(self, code: int | None) -> Death | None:
        """The trainer that failed first: others fail because they have lost it. None where none is to blame."""
        if code is None:
            return None
        ours = Death(0, code, time.time())
        if self.place.world == 1 or code in (0, DIVERGED) or (_is_kill(code) and not self.pulled):
            return ours
        deadline = time.monotonic() + _TOLD_S
        while len(reports(self.attempt)) < self.place.world - 1 and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        others = self._dead()
        killed = [each for each in others if _is_kill(each.code)]
        return killed[0] if killed else others[0] if others and self.pulled else ours

    def _killed(self, death: Death) -> Outcome | None:
        """A death by a signal may be chance, of the machine, say."""
        how = why(death.code, self.attempt.rank_log(death.rank))
        how = f"rank {death.rank}: {how}" if self.place.world > 1 else how
        return end(self.attempt, "interrupted", f"{how}; {whence(self.attempt)}")

    def _require_progress(self, ended: Outcome, asked: bool) -> None:
        """RunFailed where this attempt ended with the checkpoint that the one before had ended with, too: a third would
        do no better. Not where either was preempted or lost its node, which says nothing of the run."""
        submission = self.submission
        limit = self.place.limit or self.job.started + 60 * submission.minutes
        if self.notice.told is not None and self.notice.told < limit - submission.notice_s - _EARLY_S:
            return
        saved, before = self._saved(), Attempt(self.attempt.run, self.attempt.number - 1)
        self.job = replace(self.job, saved=saved)
        job = job_of(before)
        if job is None or job.token != submission.token or job.saved is None or saved > job.saved:
            return
        remedy = "save more often (execution.checkpoint_minutes), give it more memory, or look at its nodes"
        if asked:
            remedy = f"raise the profile's time ({submission.minutes} min) or notice_s ({submission.notice_s} s)"
        reason = f"{ended.reason}; no newer checkpoint than after attempt {before.number}: {remedy}"
        failed = end(self.attempt, "failed", reason)
        if failed is not None:
            raise failure(self.attempt, failed)

    def _give_sign(self) -> None:
        """Touch the attempt's job.json."""
        now = time.monotonic()
        if now - self.beat >= _BEAT_S:
            self.beat = now
            with suppress(OSError):
                os.utime(self.attempt.job)

    def _watch(self) -> None:
        """End our trainer where another rank's is dead: it may wait for that one for ever."""
        now = time.monotonic()
        if now - self.looked < _PEERS_S:
            return
        self.looked = now
        if self.mourned is None and self._dead():
            self.mourned = now
        if self.mourned is not None and now - self.mourned > _ALONE_S:
            self.pulled = True
            self.trainer.kill()

    def _dead(self) -> list[Death]:
        """Other ranks whose trainer has failed, in the order in which they did."""
        return [each for each in reports(self.attempt) if each.rank and each.code not in (*ENDED_WELL, *STOPPED)]

    def _queue_again(self) -> None:
        """Have Slurm queue the job again: SystemExit. Over where it can't, or where Slurm itself has ended the job."""
        for name in ("squeue", "scontrol"):
            if shutil.which(name) is None:
                self._give_up(f"there is no {name} on node {self.place.nodes[0]}")
        deadline = time.monotonic() + _AGAIN_S
        while True:
            try:
                self._require_running()
                scheduler.call(["scontrol", "requeue", self.place.job])
                break
            except Refused as error:
                self._give_up(str(error))
            except SchedulerError as error:
                if time.monotonic() > deadline:
                    self._give_up(str(error))
                time.sleep(_BETWEEN_S)
        self.say(f"job {self.place.job} is queued again")
        raise SystemExit(SAVED)

    def _ask_whether_running(self, deadline: float) -> None:
        """Over where Slurm has ended the job meanwhile, as a person who cancels does: a requeue would revive it. No
        answer by then, on the monotonic clock, says nothing, and time is short: then it is queued again."""
        while (left := deadline - time.monotonic()) > 0 and shutil.which("squeue") is not None:
            try:
                return self._require_running(retry=False, limit_s=left)
            except Refused as error:
                self._give_up(str(error))
            except SchedulerError as error:
                self.say(str(error))
                time.sleep(min(_BETWEEN_S, left))

    def _require_running(self, **how: Any) -> None:
        """Over unless the job only runs: what a person has cancelled, or Slurm has queued again, is left as it is."""
        state = scheduler.call(["squeue", "--noheader", f"--jobs={self.place.job}", "--format=%T"], **how).strip()
        if state != "RUNNING":
            self.say(f"the job is {state or 'gone'}: it is not queued again from here")
            raise Over(f"run {self.attempt.run.key} stopped: Slurm has ended job {self.place.job} ({state or 'gone'})")

    def _give_up(self, reason: str) -> None:
        """Leave the run where it is, with the reason where people look for it."""
        ended = settled(self.attempt)
        first = f"{ended.reason}; " if ended else ""
        end(self.attempt, "interrupted", f"{first}not queued again: {reason}")
        self.say(f"not queued again: {reason}")
        raise Over(f"run {self.attempt.run.key} is not queued again: {reason}")

    def _saved(self) -> int:
        checkpoint = checkpoints.resumable(self.attempt.run)
        return checkpoint.step if checkpoint else 0


def _is_kill(code: int) -> bool:
    """Whether a trainer died of a signal that isn't one to stop by."""
    return code < 0 and code not in STOPPED
