"""What may stand in the queue for a sweep beyond the runs that it wants: runs that others of the same name have
replaced, and jobs of a submission that was cut short, of which no run knows."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlsweep.errors import RlsweepError
from rlsweep.launch.queue import LIVING, Job, is_of
from rlsweep.launch.seen import unsettled
from rlsweep.store import ledger
from rlsweep.store.claim import is_held
from rlsweep.store.jobs import job_name
from rlsweep.store.layout import Root, SweepFolder
from rlsweep.store.ledger import Handed, Intent


@dataclass(frozen=True)
class Leftover:
    """As the disk tells it: whether there are such jobs, the queue says."""

    sweep: SweepFolder
    root: Root
    replaced: tuple[Intent, ...] = ()
    """Runs that were handed to a job and are not over."""
    cut_short: tuple[Handed, ...] = ()
    """Submissions that nobody saw to the end, and nobody is seeing to."""

    @property
    def any(self) -> bool:
        return bool(self.replaced or self.cut_short)

    def living(self, queue: Sequence[Job]) -> list[tuple[Intent, Job]]:
        """Replaced runs whose jobs wait or are at work."""
        jobs = {job.id: job for job in queue if job.state in LIVING}
        found = []
        for intent in self.replaced:
            for submission in unsettled([self.root.run(intent.run_key)])[0]:
                job = jobs.get(submission.job)
                if job is not None and is_of(job, submission):
                    found.append((intent, job))
        return found

    def held(self, queue: Sequence[Job]) -> list[str]:
        """Ids of the jobs, or arrays, of submissions that were cut short."""
        names = {job_name(self.sweep.name, each.token) for each in self.cut_short}
        ids = {job.id.partition("_")[0] for job in queue if job.name in names and job.state == "PENDING"}
        return sorted(ids, key=int)


def find(sweep: SweepFolder, root: Root, wanted: Sequence[Intent]) -> Leftover:
    """What a sweep, which wants these runs, may have left. RlsweepError where its ledger is damaged."""
    return Leftover(sweep, root, tuple(_replaced(sweep, root, wanted)), tuple(_cut_short(sweep)))


def _replaced(sweep: SweepFolder, root: Root, wanted: Sequence[Intent]) -> list[Intent]:
    """Runs this sweep handed to jobs and no longer wants, nor any other sweep."""
    keys = {intent.run_key for intent in wanted}
    older = {intent.run_key: intent for intent in ledger.intents(sweep) if intent.run_key not in keys}
    found = [
        intent
        for key, intent in older.items()
        if any(each.sweep == sweep.name for each in unsettled([root.run(key)])[0])
    ]
    if not found:
        return []
    others = [folder for folder in root.all_sweeps() if folder.name != sweep.name]
    elsewhere = {intent.run_key for folder in others for intent in ledger.wanted(folder)}
    return [intent for intent in found if intent.run_key not in elsewhere]


def _cut_short(sweep: SweepFolder) -> list[Handed]:
    """Before it submits anything, the next submitter puts in order what the one before has left: of each profile only
    the newest may not be seen to."""
    newest = {each.cluster: each for each in ledger.submissions(sweep)}
    unseen = [each for each in newest.values() if each.state == "submitting"]
    try:
        return unseen if unseen and not is_held(sweep.path / "submitter") else []
    except RlsweepError:  # damaged: nobody can tell whether somebody is at work
        return []
