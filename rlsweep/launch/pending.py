"""Why a job waits, in words a person understands, with Slurm's own code behind them."""

from rlsweep.launch.queue import Job

_WORDS = {
    "": "waits to be looked at by the scheduler",
    "Priority": "waits behind jobs of higher priority",
    "Resources": "waits for nodes to become free",
    "BeginTime": "waits for its begin time: a job that is queued again starts some minutes later",
    "Dependency": "waits for another job to end",
    "DependencyNeverSatisfied": "never starts: the job it was to follow did not end as needed",
    "JobArrayTaskLimit": "waits for others of its array: so many run at a time as asked for",
    "JobHeldUser": "held by its owner",
    "JobHeldAdmin": "held by an administrator, who alone can release it: ask the site",
    "Licenses": "waits for a licence",
    "Cleaning": "waits until its last start is cleaned up",
    "Prolog": "its nodes are being prepared",
    "ReqNodeNotAvail": "waits for nodes that are down, drained or reserved",
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions": (
        "waits for nodes that are down, drained or reserved"
    ),
    "NodeDown": "waits for a node that is down",
    "Reservation": "waits for its reservation",
    "ReservationDeleted": "its reservation was deleted",
    "PartitionDown": "waits: the partition is down",
    "PartitionInactive": "waits: the partition takes no jobs now",
    "PartitionTimeLimit": "never starts as it is: its time limit is over that of the partition",
    "PartitionNodeLimit": "never starts as it is: it asks for more nodes than the partition allows, or those are down",
    "PartitionConfig": "never starts as it is: it asks for what the partition doesn't allow",
    "AccountingPolicy": "waits: a limit of its account is reached",
    "BadConstraints": "never starts as it is: no node has what it asks for",
    "NodeConfig": "never starts as it is: no node has what it asks for",
    "InvalidAccount": "never starts as it is: its account is not valid",
    "InvalidQOS": "never starts as it is: its QOS is not valid",
    "AssociationJobLimit": "waits: so many jobs of its account run already",
    "AssociationResourceLimit": "waits: its account has as much as it may",
    "AssociationTimeLimit": "waits: its account has used up its time",
    "QOSJobLimit": "waits: so many jobs of its QOS run already",
    "QOSResourceLimit": "waits: its QOS has as much as it may",
    "QOSTimeLimit": "waits: its QOS has used up its time",
    "QOSNotAllowed": "never starts as it is: its QOS is not allowed here",
    "JobHoldMaxRequeue": "held: it was queued again too often",
    "job_requeued_in_held_state": "held when it was queued again",
    "launch_failed_requeued_held": "held: it could not be launched on its node",
}
_WHOSE = {"QOS": "its QOS", "Assoc": "its account"}
_OF_WHAT = {
    "Minutes": "as much time",
    "Wall": "as much time",
    "Mem": "as much memory",
    "Jobs": "as many jobs",
    "GRES": "as many GPUs",
    "Gres": "as many GPUs",
    "Cpu": "as many CPUs",
    "CPU": "as many CPUs",
    "Node": "as many nodes",
}


def why(job: Job) -> str:
    """One line on a job that waits, e.g. `waits for nodes to become free [Resources]`."""
    if job.state == "SPECIAL_EXIT":
        return "held: it ended with an exit code that asks for it [SPECIAL_EXIT]"
    code = job.reason.partition("(")[0].strip(" ,")
    known = _WORDS.get(code) or _WORDS.get(code.replace(" ", "_")) or _limit(code)
    if known is None:
        first = code.partition(",")[0].strip()  # ReqNodeNotAvail, UnavailableNodes:n[1-2]
        known = _WORDS.get(first) or ("held" if job.held else "waits")
    return f"{known} [{job.reason}]" if job.reason else known


def release(job: Job) -> str | None:
    """The command that lets a held job go, None where it isn't held, or its owner can't release it."""
    return f"scontrol release {job.id}" if job.held and job.reason != "JobHeldAdmin" else None


def _limit(code: str) -> str | None:
    """QOSMaxGRESPerUser, AssocGrpCpuLimit, MaxNodePerAccount: whose limit it is, and of what."""
    whose = next((words for prefix, words in _WHOSE.items() if code.startswith(prefix)), None)
    if whose is None and not code.startswith("Max"):
        return None
    if "PerJob" in code:
        return f"never starts as it is: it asks for more than {whose or 'a limit'} allows one job"
    if "Min" in code and "Minutes" not in code:
        return f"never starts as it is: it asks for less than {whose or 'a limit'} demands"
    amount = next((words for part, words in _OF_WHAT.items() if part in code), "as much")
    return f"waits: {whose or 'its owner'} has {amount} as it may"
