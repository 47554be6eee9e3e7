"""Whether sbatch would take a job of a profile: asked with the script that runs get, and submitting nothing."""

import tempfile
from pathlib import Path

from rlsweep.launch.cluster import Cluster
from rlsweep.launch.scheduler import Refused, call
from rlsweep.launch.script import Resources, Script
from rlsweep.launch.site import Problem
from rlsweep.store.jobs import job_name
from rlsweep.store.layout import Root

_FOR_NOW = ("drained", "not available now", "are busy")
"""What sbatch says, lower case, of jobs that it does take, to wait."""


def refusals(cluster: Cluster, nodes: int = 1) -> list[Problem]:
    """What sbatch says where it would not take a job of the profile, on so many nodes with all GPUs of each.

    One call. It knows features, names of nodes, accounts and QOS, which nothing else shows. SchedulerError where the
    controller can't be reached.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Root(Path(folder))
        script = Script(
            cluster=cluster,
            resources=Resources(nodes, cluster.gpus.per_node or 0, cluster.cpus_per_node),
            root=root,
            name=job_name("check", "0" * 10),
            folder=root.path,
        )
        file = root.path / "submission.sh"
        file.write_text(script.text, encoding="utf-8")
        try:
            call(["sbatch", "--test-only", str(file)])
        except Refused as error:
            words = " ".join(str(error).split())
            waits = any(each in words.lower() for each in _FOR_NOW)
            return [Problem("warning" if waits else "error", "sbatch", f"of a job of this profile it says: {words}")]
    return []
