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
from rlsweep.launch.chunks import Chunk, Tokens
from rlsweep.launch.cluster import Cluster
from rlsweep.launch.plan import ACTIONS, TO_START, Action, Dropped, Planned, survey
from rlsweep.launch.recover import drop, recover, release
from rlsweep.launch.scheduler import Refused
from rlsweep.launch.script import Script, occupied, refuse_path, resources
from rlsweep.launch.site import Problem, Site
from rlsweep.launch.stop import Stop
from rlsweep.launch.submit import at_once, submitting, write_down
from rlsweep.launch.task import Train
from rlsweep.store import ledger
from rlsweep.store.claim import Claim
from rlsweep.store.jobs import Submission, write_submission
from rlsweep.store.layout import Root, SweepFolder
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

    UsageError, before anything is submitted, where the profile doesn't fit the site or the cap on GPU-hours is
    reached; SchedulerError where the controller can't be reached: the same command goes on where this one ended.
    `max_gpu_hours` holds for the sweep from now on, for what is in Slurm already too; None: the cap that it has.
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


def preview(
    sweep: Sweep,
    root: Root,
    decisions: Sequence[Planned],
    cluster: Cluster,
    largest: int,
    dropped: Sequence[Dropped] = (),
) -> list[Script]:
    """The scripts that `submit` would submit for these decisions, in order."""
    folder = root.sweep(sweep.name)
    tokens = _tokens(folder, root)
    return [
        chunks.script(chunk, cluster, root, folder, tokens.next(chunk.keys))
        for chunk in _cut(decisions, dropped, cluster, largest)
    ]


def cancel_dropped(dropped: Sequence[Dropped], root: Root, sweep: str) -> list[Dropped]:
    """Cancel the jobs of runs that their sweep no longer asks for, unless another sweep does; those cancelled."""
    jobs = [each for each in dropped if each.job is not None]
    if not jobs:
        return []
    elsewhere = [ledger.wanted(folder) for folder in root.all_sweeps() if folder.name != sweep]
    others = {intent.run_key for intents in elsewhere for intent in intents}
    found = [each for each in jobs if each.intent.run_key not in others]
    cancel([root.run(each.intent.run_key) for each in found], wait_s=0)
    return found


def _refuse_misfit(sweep: Sweep, cluster: Cluster, here: Site) -> None:
    wrong = [f"{each.key}: {each.message}" for each in misfits(sweep, cluster, here) if each.severity == "error"]
    if wrong:
        raise UsageError(f"profile {cluster.name} doesn't fit this site: " + "; ".join(wrong))


def _cut(decisions: Collection[Planned], dropped: Collection[Dropped], cluster: Cluster, largest: int) -> list[Chunk]:
    runs = [planned.run for planned in decisions if planned.action in TO_START]
    jobs = [each.job for each in decisions] + [each.job for each in dropped]
    left = [job for job in jobs if job is not None]
    return chunks.cut(runs, cluster, largest, left)


def _tokens(folder: SweepFolder, root: Root) -> Tokens:
    handed = ledger.submissions(folder)
    return Tokens(root, folder.name, {each.token for each in handed}, len(handed))


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
        decisions, dropped = survey(self.sweep, self.root)
        pruned = cancel_dropped(dropped, self.root, self.sweep.name) if prune else []
        if pruned:
            self.say(f"{len(pruned)} cancelled, no longer asked for")
        left = [each for each in dropped if each not in pruned]
        self._refuse_above_cap(decisions)
        parts = _cut(decisions, left, self.cluster, self.site.max_array_size)
        write_down(self.sweep, self.root, decisions)
        if self.max_gpu_hours not in (None, ledger.cap(self.folder)):
            row = {"kind": "cap", "time": time.time(), "max_gpu_hours": self.max_gpu_hours}
            ledger.append(self.folder, [row])
        with Stop() as stop:
            why = self._hand_all(parts, stop)
            interrupted = stop.asked > 0
        submitted = sum(len(chunk.runs) for chunk, _ in self.done)
        invalid = why is not None and not submitted and _is_invalid(why)
        return Submitted(
            submitted=submitted,
            jobs=tuple(handed.job for _, handed in self.done if handed.job is not None),
            rest={each: sum(p.action == each for p in decisions) for each in ACTIONS if each not in TO_START},
            not_submitted=sum(len(chunk.runs) for chunk in parts) - submitted,
            why=why,
            invalid=invalid,
            interrupted=interrupted,
        )

    def _refuse_above_cap(self, decisions: Sequence[Planned]) -> None:
        cap = self.max_gpu_hours or ledger.cap(self.folder)
        gpu_hours.refuse_above(cap, gpu_hours.estimate(self.root, self.sweep.name, decisions, self.cluster))

    def _hand_all(self, parts: Sequence[Chunk], stop: Stop) -> str | None:
        """Submit the chunks and release their jobs; the scheduler's words where it refused one."""
        why = None
        try:
            tokens = self._free_tokens()
            for chunk in parts:
                if stop.asked:
                    break
                self.claim.refresh()
                self._hand(chunk, tokens, self._after(chunk))
        except Refused as error:
            why = str(error)
        except BaseException:  # no answer, or a full disk, say: what stands is whole
            self._release()
            raise
        self._release()
        return why

    def _free_tokens(self) -> Tokens:
        tokens = _tokens(self.folder, self.root)
        if not tokens.taken:  # jobs of an earlier ledger of this place may be there still, one that was deleted
            tokens.taken |= {job.name.rpartition(":")[2] for job in queue.own_jobs()}
        return tokens

    def _after(self, chunk: Chunk) -> list[str]:
        job = None if chunk.after is None else self.done[chunk.after][1].job
        return [*chunk.behind, *([] if job is None else [job])]

    def _hand(self, chunk: Chunk, tokens: Tokens, after: Sequence[str]) -> None:
        for last in [False] * (_TRIES - 1) + [True]:
            handed = self._begin(chunk, tokens.next(chunk.keys))
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

    def _begin(self, chunk: Chunk, token: str) -> ledger.Handed:
        row = {"kind": "submitting", "time": time.time(), "token": token, "cluster": self.cluster.name}
        ledger.append(self.folder, [{**row, "runs": chunk.keys}])
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
                devices=occupied(run.recipe, self.cluster),
                nodes=chunk.resources.nodes,
                minutes=self.cluster.minutes,
                retries=self.cluster.limits.retries,
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
        ids = [each.job for each in handed if each.job is not None]
        try:
            self._tell_held(release(self.folder, handed, ids))
        except SchedulerError as error:
            raise SchedulerError(f"{error}; on hold until then: {', '.join(ids)}") from error

    def _tell_held(self, ids: Sequence[str]) -> None:
        if ids:
            self.say(
                f"the scheduler goes on holding {', '.join(ids)}: ask the site, or: scontrol release {','.join(ids)}"
            )


def _is_invalid(words: str) -> bool:
    """Whether sbatch says that no such job can ever run, rather than that there are too many for now."""
    said = words.lower().replace("not available now", "")
    return any(word in said for word in ("invalid", "not available", "unrecognized", "can not be satisfied"))
