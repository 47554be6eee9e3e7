"""How the runs to start are cut into jobs: by equal resources, under the largest array, with a cap on all together."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rlsweep.launch.cluster import Cluster
from rlsweep.launch.script import Resources, Script, resources
from rlsweep.store.jobs import job_name
from rlsweep.store.layout import Root, SweepFolder
from rlsweep.sweep.expand import Run

SMALLEST_SITE = 1001
"""MaxArraySize where nobody can be asked: Slurm's default."""


@dataclass(frozen=True)
class Chunk:
    """Runs of one job array; a single one is a plain job."""

    runs: tuple[Run, ...]
    resources: Resources
    parallel: int | None = None
    """Most of them at a time; None: all."""
    after: int | None = None
    """Place of the chunk that must be over first, where there are more chunks than runs may be at work."""
    behind: tuple[str, ...] = ()
    """Jobs of earlier submissions that must be over first, where as many of their runs are left as may be at work."""

    @property
    def keys(self) -> list[str]:
        return [run.key for run in self.runs]


def cut(runs: Sequence[Run], cluster: Cluster, largest: int, left: Collection[str] = ()) -> list[Chunk]:
    """The chunks, in the order of the runs. `largest` is the site's MaxArraySize, `left` are the sweep's jobs in Slurm
    already, elements of arrays one by one: all together at most `limits.parallel` runs are at work."""
    size = max(1, min(largest, cluster.limits.array or largest))
    groups: dict[Resources, list[Run]] = {}
    for run in runs:
        groups.setdefault(resources(run.recipe, cluster), []).append(run)
    chunks = [
        Chunk(tuple(group[start : start + size]), needed)
        for needed, group in groups.items()
        for start in range(0, len(group), size)
    ]
    most = cluster.limits.parallel
    if most is None:
        return chunks
    cap = most - len(left)
    behind: tuple[str, ...] = ()
    if cap < 1:  # which of those that are left end first nobody knows: it is all or none
        cap, behind = most, tuple(sorted({job.partition("_")[0] for job in left}))
    if cap < len(chunks):  # a lane for each run that may be at work, and chunks in line on it
        return [
            replace(chunk, parallel=1, after=place - cap) if place >= cap else replace(chunk, parallel=1, behind=behind)
            for place, chunk in enumerate(chunks)
        ]
    shares = _shares([len(chunk.runs) for chunk in chunks], cap)
    return [replace(chunk, parallel=share, behind=behind) for chunk, share in zip(chunks, shares, strict=True)]


def token(root: Root, sweep: str, keys: Sequence[str], number: int) -> str:
    """Name of a submission that is the sweep's `number`th, from 0: known before it is made."""
    parts = (str(root.path), sweep, *keys, str(number))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


@dataclass
class Tokens:
    """Names of a sweep's next submissions, in order; none of those that are taken."""

    root: Root
    sweep: str
    taken: set[str]
    """Those in the ledger, and of jobs that a ledger which is gone has left in the queue."""
    number: int
    """Submissions in the ledger so far."""

    def next(self, keys: Sequence[str]) -> str:
        """The name for these runs."""
        while (found := token(self.root, self.sweep, keys, self.number)) in self.taken:
            self.number += 1
        self.number += 1
        self.taken.add(found)
        return found


def script(chunk: Chunk, cluster: Cluster, root: Root, folder: SweepFolder, token: str) -> Script:
    """The job of a chunk under its token."""
    return Script(
        cluster=cluster,
        resources=chunk.resources,
        root=root,
        name=job_name(folder.name, token),
        folder=folder.jobs / token,
        count=len(chunk.runs),
        parallel=chunk.parallel,
        follows=chunk.after is not None or bool(chunk.behind),
    )


def _shares(sizes: Sequence[int], cap: int) -> list[int]:
    """`cap` split over chunks by their sizes, at least 1 and at most its size each."""
    shares = [1] * len(sizes)
    for _ in range(cap - len(sizes)):
        open_ = [place for place, share in enumerate(shares) if share < sizes[place]]
        if not open_:
            break
        shares[max(open_, key=lambda place: sizes[place] / shares[place])] += 1
    return shares
