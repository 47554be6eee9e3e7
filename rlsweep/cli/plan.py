"""What was decided about a sweep on a cluster; what takes long to know is asked when it is wanted first."""

from dataclasses import dataclass
from functools import cached_property

from rlsweep.errors import SchedulerError, UsageError
from rlsweep.launch.cluster import Cluster
from rlsweep.launch.gpu_hours import Estimate, estimate, refuse_above
from rlsweep.launch.plan import Dropped, Planned
from rlsweep.launch.script import Script
from rlsweep.store import ledger
from rlsweep.store.layout import Root
from rlsweep.sweep.expand import Sweep


@dataclass
class Plan:
    """What was decided about a sweep on a cluster."""

    sweep: Sweep
    root: Root
    decisions: list[Planned]
    dropped: list[Dropped]
    cluster: Cluster
    lacks: str | None
    """What the first run to start misses there; None: nothing."""
    max_gpu_hours: float | None
    """As asked for with this command; None: the sweep's cap stays."""

    @property
    def slurm(self) -> bool:
        return self.cluster.executor == "slurm"

    @cached_property
    def hours(self) -> Estimate | None:
        """GPU-hours of the runs to start, for Slurm."""
        if not self.slurm:
            return None
        devices = [each.devices for each in self.dropped]
        return estimate(self.root, self.sweep.name, self.decisions, self.cluster, devices)

    @cached_property
    def cap(self) -> float | None:
        """GPU-hours from which on no attempt of the sweep starts, for Slurm."""
        return self.max_gpu_hours or (ledger.cap(self.root.sweep(self.sweep.name)) if self.slurm else None)

    @cached_property
    def refusal(self) -> str | None:
        """Why `ablate` would submit nothing, None where it would."""
        if self.lacks is not None:
            return self.lacks
        if any(text.startswith("error: ") for text in self.problems):
            return f"profile {self.cluster.name} doesn't fit this site"
        try:
            if self.hours is not None:
                refuse_above(self.cap, self.hours)
        except UsageError as error:
            return str(error)
        return None

    @cached_property
    def scripts(self) -> list[Script]:
        """What would be submitted, in order."""
        return self._asked[0]

    @cached_property
    def problems(self) -> list[str]:
        """What of the profile doesn't fit the site, or why nobody could ask."""
        return self._asked[1]

    @cached_property
    def _asked(self) -> tuple[list[Script], list[str]]:
        if not self.slurm:
            return [], []
        from rlsweep.launch import chunks, site, slurm

        largest, problems = chunks.SMALLEST_SITE, []
        try:  # what can't be spread over nodes is what `lacks` says
            try:
                here = site.ask()
                largest = here.max_array_size
                problems = [
                    f"{each.severity}: {each.key}: {each.message}"
                    for each in slurm.misfits(self.sweep, self.cluster, here)
                ]
            except SchedulerError as error:
                problems = [f"the site was not asked, its MaxArraySize is taken to be {largest}: {error}"]
            scripts = slurm.preview(self.sweep, self.root, self.decisions, self.cluster, largest, self.dropped)
            return scripts, problems
        except UsageError:
            return [], problems
