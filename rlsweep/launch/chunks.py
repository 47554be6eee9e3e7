"""How the runs to start are cut into jobs: by equal resources, under the largest array, with a cap on all together."""

import hashlib
from collections.abc import Sequence
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

    @property
    def keys(self) -> list[str]:
        return [run.key for run in self.runs]


def cut(runs: Sequence[Run], cluster: Cluster, largest: int, active: int = 0) -> list[Chunk]:
    """The chunks, in the order of the runs. `largest` is the site's MaxArraySize, `active` runs of the sweep are in
    Slurm already: all together at most `limits.parallel` are at work, but of these at least 1."""
    size = max(1, min(largest, cluster.limits.array or largest))
    groups: dict[Resources, list[Run]] = {}
    for run in runs:
        groups.setdefault(resources(run.recipe, cluster), []).append(run)
    chunks = [
        Chunk(tuple(group[start : start + size]), needed)
        for needed, group in groups.items()
        for start in range(0, len(group), size)
    ]
    if cluster.limits.parallel is None:
        return chunks
    cap = max(1, cluster.limits.parallel - active)
    if cap < len(chunks):  # a lane for each run that may be at work, and chunks in line on it
        return [
            replace(chunk, parallel=1, after=place - cap if place >= cap else None)
            for place, chunk in enumerate(chunks)
        ]
    shares = _shares([len(chunk.runs) for chunk in chunks], cap)
    return [replace(chunk, parallel=share) for chunk, share in zip(chunks, shares, strict=True)]


def token(root: Root, sweep: str, keys: Sequence[str], number: int) -> str:
    """Name of a submission that is the sweep's `number`th, from 0: known before it is made, and never made again."""
    parts = (str(root.path), sweep, *keys, str(number))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


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
