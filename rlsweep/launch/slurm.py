"""Runs handed to Slurm so that dying anywhere neither loses nor doubles one: ledger, held job, run folders, release.

Each chunk of runs has a token, which names its jobs. `submitting` goes to the ledger, then sbatch takes a held job,
then each run's submission.json names it, then `submitted` goes to the ledger; one release of all jobs is the last step.
What a killed submitter left is put in order by the next (recover.py).
"""

import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from rlsweep.errors import SchedulerError, UsageError
from rlsweep.launch import chunks, gpu_hours, queue, site
from rlsweep.launch.cancel import cancel
from rlsweep.launch.chunks import Chunk
from rlsweep.launch.cluster import Cluster
from rlsweep.launch.plan import ACTIONS, TO_START, Action, Planned, decide, no_longer_asked_for
from rlsweep.launch.recover import drop, recover, release
from rlsweep.launch.scheduler import Refused
from rlsweep.launch.script import Script, refuse_path, resources
from rlsweep.launch.seen import jobs_of, look
from rlsweep.launch.site import Problem, Site
from rlsweep.launch.stop import Stop
from rlsweep.launch.submit import at_once, submitting
from rlsweep.launch.submit import submit as write_down
from rlsweep.launch.task import Train
from rlsweep.store import ledger
from rlsweep.store.claim import Claim
from rlsweep.store.jobs import Submission, read_submission, write_submission
from rlsweep.store.layout import Root, RunFolder, SweepFolder
from rlsweep.sweep.expand import Sweep

Say = Callable[[str], None]

_TRIES = 2
"""So often is a chunk handed over where sbatch gives no answer."""


@dataclass(frozen=True)
class Submitted:
    """What became of the runs."""

    submitted: int
    jobs: tuple[str, ...]
    """Ids of the jobs that were submitted and released."""
    rest: dict[Action, int]
    """How many were skipped and left."""
    pruned: int
    not_submitted: int
    why: str | None
    """The scheduler's words where it took no more jobs."""
    invalid: bool
    """Whether it called the very request invalid: asking again would not help."""
    interrupted: bool


def submit(
    sweep: Sweep, root: Root, cluster: Cluster, say: Say, *, max_gpu_hours: float | None = None, prune: bool = False
) -> Submitted:
    """Hand all runs that are to start to Slurm, and return; nobody waits for them here.

    UsageError, before anything is written, where the profile doesn't fit the site or the cap on GPU-hours is reached;
    SchedulerError where the controller can't be reached: the same command goes on where this one ended.
    """
    refuse_path(root.path)
    here = site.ask()
    _refuse_misfit(sweep, cluster, here)
    with submitting(root, sweep.name) as claim:
        submitter = _Submitter(sweep, root, cluster, here, say, claim, max_gpu_hours)
        return submitter.work(prune)


def misfits(sweep: Sweep, cluster: Cluster, here: Site) -> list[Problem]:
    """What of a profile doesn't fit a site, for the run of a sweep that needs the most nodes."""
    nodes = max((resources(run.recipe, cluster).nodes for run in sweep.runs), default=1)
    return site.problems(cluster, here, nodes)


def preview(sweep: Sweep, root: Root, decisions: Sequence[Planned], cluster: Cluster, largest: int) -> list[Script]:
    """The scripts that `submit` would submit for these decisions, in order."""
    folder = root.sweep(sweep.name)
    number = len(ledger.submissions(folder))
    return [
        chunks.script(chunk, cluster, root, folder, chunks.token(root, sweep.name, chunk.keys, number + place))
        for place, chunk in enumerate(_cut(decisions, cluster, largest))
    ]


def cancel_dropped(sweep: Sweep, root: Root) -> list[str]:
    """Cancel jobs of this sweep whose runs it no longer asks for, unless another sweep does; keys of the runs."""
    others = {
        intent.run_key for folder in root.all_sweeps() if folder.name != sweep.name for intent in ledger.wanted(folder)
    }
    found = []
    for intent in no_longer_asked_for(sweep, root):
        run = root.run(intent.run_key)
        submission = read_submission(run)
        if submission is not None and submission.sweep == sweep.name and run.key not in others:
            found.append(run)
    jobs = jobs_of(found)
    live = [run for run in found if look(run, jobs).state in ("pending", "running") and _job(run) in jobs]
    if live:
        cancel(live, wait_s=0)
    return [run.key for run in live]


def _job(run: RunFolder) -> str | None:
    submission = read_submission(run)
    return None if submission is None else submission.job


def _refuse_misfit(sweep: Sweep, cluster: Cluster, here: Site) -> None:
    wrong = [f"{each.key}: {each.message}" for each in misfits(sweep, cluster, here) if each.severity == "error"]
    if wrong:
        raise UsageError(f"profile {cluster.name} doesn't fit this site: " + "; ".join(wrong))


def _cut(decisions: Collection[Planned], cluster: Cluster, largest: int) -> list[Chunk]:
    runs = [planned.run for planned in decisions if planned.action in TO_START]
    active = sum(planned.job is not None for planned in decisions)
    return chunks.cut(runs, cluster, largest, active)


@dataclass
class _Submitter:
    sweep: Sweep
    root: Root
    cluster: Cluster
    site: Site
    say: Say
    claim: Claim
    max_gpu_hours: float | None
    done: list[tuple[Chunk, ledger.Handed]] = field(default_factory=list)
    number: int = 0
    """Submissions in the ledger so far."""

    @property
    def folder(self) -> SweepFolder:
        return self.root.sweep(self.sweep.name)

    def work(self, prune: bool) -> Submitted:
        found = recover(self.folder, self.root, self.cluster.name)
        if found.cancelled:
            jobs = "1 job" if found.cancelled == 1 else f"{found.cancelled} jobs"
            self.say(f"{jobs} of a submission that was cut short cancelled; nothing had started")
        if found.released:
            self.say(f"released what an earlier submission had left on hold: {', '.join(found.released)}")
        self._tell_held(found.held)
        decisions = decide(self.sweep, self.root)
        if self.max_gpu_hours is not None:
            estimate = gpu_hours.estimate(self.root, self.sweep.name, decisions, self.cluster)
            gpu_hours.refuse_above(self.max_gpu_hours, estimate)
        parts = _cut(decisions, self.cluster, self.site.max_array_size)
        write_down(self.sweep, self.root, decisions)
        pruned = cancel_dropped(self.sweep, self.root) if prune else []
        self.number = len(ledger.submissions(self.folder))
        with Stop() as stop:
            why = self._hand_all(parts, stop)
            interrupted = stop.asked > 0
        submitted = sum(len(chunk.runs) for chunk, _ in self.done)
        invalid = why is not None and not submitted and _is_invalid(why)
        return Submitted(
            submitted=submitted,
            jobs=tuple(handed.job for _, handed in self.done if handed.job is not None),
            rest={each: sum(p.action == each for p in decisions) for each in ACTIONS if each not in TO_START},
            pruned=len(pruned),
            not_submitted=sum(len(chunk.runs) for chunk in parts) - submitted,
            why=why,
            invalid=invalid,
            interrupted=interrupted,
        )

    def _hand_all(self, parts: Sequence[Chunk], stop: Stop) -> str | None:
        """Submit the chunks and release their jobs; the scheduler's words where it refused one."""
        why = None
        try:
            for chunk in parts:
                if stop.asked:
                    break
                self.claim.refresh()
                self._hand(chunk, self._after(chunk))
        except Refused as error:
            why = str(error)
        except SchedulerError:
            raise  # a release would not get through either; the next command sees to it
        except BaseException:  # a full disk, say: what stands is whole
            self._release()
            raise
        self._release()
        return why

    def _after(self, chunk: Chunk) -> list[str]:
        job = None if chunk.after is None else self.done[chunk.after][1].job
        return [] if job is None else [job]

    def _hand(self, chunk: Chunk, after: Sequence[str]) -> None:
        for last in [False] * (_TRIES - 1) + [True]:
            handed = self._begin(chunk)
            script = chunks.script(chunk, self.cluster, self.root, self.folder, handed.token)
            calls = [Train(str(self.root.run(key).path), handed.token) for key in handed.runs]
            try:
                job = script.submit(calls, after)
            except Refused:
                shutil.rmtree(script.folder, ignore_errors=True)
                raise
            except SchedulerError as error:
                if last:
                    raise
                self.say(f"no answer whether the job was taken ({error}); looking for it and trying once more")
                drop(self.folder, self.root, [handed], queue.own_jobs())
                continue
            self._end(chunk, handed, job)
            return

    def _begin(self, chunk: Chunk) -> ledger.Handed:
        token = chunks.token(self.root, self.sweep.name, chunk.keys, self.number)
        row = {"kind": "submitting", "time": time.time(), "token": token, "cluster": self.cluster.name}
        ledger.append(self.folder, [{**row, "runs": chunk.keys}])
        self.number += 1
        return ledger.Handed(token, "submitting", self.cluster.name, tuple(chunk.keys), None)

    def _end(self, chunk: Chunk, handed: ledger.Handed, job: str) -> None:
        def hand(place: int) -> None:
            run = chunk.runs[place]
            submission = Submission(
                token=handed.token,
                sweep=self.sweep.name,
                cluster=self.cluster.name,
                job=job if len(chunk.runs) == 1 else f"{job}_{place}",
                time=now,
                devices=run.recipe.execution.devices,
                nodes=chunk.resources.nodes,
                minutes=self.cluster.minutes,
                retries=self.cluster.limits.retries,
                max_gpu_hours=self.max_gpu_hours,
                accounting=self.site.accounting,
                notice_s=self.cluster.notice_s,
            )
            write_submission(self.root.run(run.key), submission)

        now = time.time()
        at_once(hand, range(len(chunk.runs)))
        row = {"kind": "submitted", "time": time.time(), "token": handed.token, "job": job, "runs": chunk.keys}
        ledger.append(self.folder, [row])
        whole = ledger.Handed(handed.token, "submitted", handed.cluster, handed.runs, job)
        self.done.append((chunk, whole))

    def _release(self) -> None:
        handed = [each for _, each in self.done]
        self._tell_held(release(self.folder, handed, [each.job for each in handed if each.job is not None]))

    def _tell_held(self, ids: Sequence[str]) -> None:
        if ids:
            self.say(
                f"the scheduler goes on holding {', '.join(ids)}: ask the site, or: scontrol release {','.join(ids)}"
            )


def _is_invalid(words: str) -> bool:
    """Whether sbatch says that no such job can ever run, rather than that there are too many for now."""
    said = words.lower().replace("not available now", "")
    return any(word in said for word in ("invalid", "not available", "unrecognized", "can not be satisfied"))
