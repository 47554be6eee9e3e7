"""Texts of Slurm in the forms of several versions, shortened, and profiles that a site can't carry out."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlsweep.errors import SchedulerError
from rlsweep.launch.cluster import Cluster, Gpus, Limits
from rlsweep.launch.site import Kind, Partition, Problem, Site, ask, problems, read

CONFIG_20 = """\
Configuration data as of 2021-03-04T10:11:12
AccountingStorageBackupHost = (null)
AccountingStorageType   = accounting_storage/none
ClusterName             = old
JobCompType             = jobcomp/none
KillWait                = 30 sec
MaxArraySize            = 1001
PreemptMode             = OFF
PreemptType             = preempt/none
SelectType              = select/cons_res
SLURM_VERSION           = 20.11.9
SlurmctldHost[0]        = head(10.0.0.1)
SlurmctldParameters     = (null)

Slurmctld(primary) at head is UP
"""
CONFIG_22 = """\
Configuration data as of 2026-12-01T12:37:05
AccountingStorageType   = accounting_storage/slurmdbd
AuthInfo                = socket=/run/munge/socket,cred_expire=5
ClusterName             = one_machine
JobCompType             = jobcomp/filetxt
KillWait                = 5 sec
MaxArraySize            = 10
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
SelectType              = select/cons_tres
SlurmctldParameters     = idle_on_node_suspend,preempt_send_user_signal
SLURM_VERSION           = 22.05.8
"""
CONFIG_25 = """\
Configuration data as of 2025-10-02T08:00:00
AccountingStorageType   = (null)
ClusterName             = new
JobCompType             = jobcomp/mysql
KillWait                = 60 sec
MaxArraySize            = 100001
PreemptMode             = GANG,REQUEUE
PreemptType             = preempt/qos
SelectType              = select/cons_tres
SLURM_VERSION           = 25.05.1
SlurmctldParameters     = enable_configless

Cgroup Support Configuration:
CgroupPlugin            = autodetect
MaxArraySize            = 3

Slurmctld(primary) at head1 is UP
Slurmctld(backup) at head2 is DOWN
"""
PARTITIONS_20 = """\
PartitionName=debug AllowGroups=ALL AllowAccounts=ALL Default=NO QoS=N/A DefaultTime=NONE GraceTime=0 MaxNodes=2 \
MaxTime=00:30:00 MinNodes=1 Nodes=c[1-2] PreemptMode=OFF State=UP TotalCPUs=64 TotalNodes=2 DefMemPerNode=UNLIMITED
PartitionName=long* AllowGroups=ALL Default=NO MaxTime=UNLIMITED Nodes=(null) State=INACTIVE TotalCPUs=0 TotalNodes=0
"""
PARTITIONS_25 = """\
PartitionName=gpu AllowGroups=ALL AllowAccounts=a,b AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A \
DefaultTime=01:00:00 DisableRootJobs=NO ExclusiveUser=NO ExclusiveTopo=NO GraceTime=120 Hidden=NO MaxNodes=UNLIMITED \
MaxTime=7-12:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED MaxCPUsPerSocket=UNLIMITED Nodes=g[01-12],h[1-4] \
OverSubscribe=NO OverTimeLimit=NONE PreemptMode=GANG,REQUEUE State=UP TotalCPUs=1920 TotalNodes=16 \
JobDefaults=DefCpuPerGPU=12 DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED \
TRES=cpu=1920,mem=16000G,node=16,billing=1920,gres/gpu=128,gres/gpu:h100=96 TRESBillingWeights=CPU=1.0,Mem=0.25G
"""
NODES_25 = """\
gpu*|12|112|2063000|gpu:h100:8(S:0-1)
gpu*|3|64|515000|gpu:a100_3g.20gb:2(S:0,2-3),gpu:a100:2(S:1),shard:16(S:0)
gpu*|1|64+|515000+|gpu:4
cpu|9|128|257000|(null)
"""


def test_without_accounting_in_the_words_of_20_11() -> None:
    site = read(CONFIG_20, PARTITIONS_20.replace("long*", "long"), "debug|2|32|128000|(null)\n")
    assert site == Site(
        cluster="old",
        version="20.11.9",
        max_array_size=1001,
        kill_wait_s=30,
        accounting="none",
        preempt_signal=False,
        select="select/cons_res",
        partitions=(
            Partition("debug", False, 30, 2, most_nodes=2, kinds=(Kind(2, 32, 128000, ()),)),
            Partition("long", False, None, 0, state="INACTIVE"),
        ),
    )


def test_a_database_and_the_user_signal_in_the_words_of_22_05() -> None:
    site = read(CONFIG_22, "PartitionName=main Default=YES MaxTime=INFINITE PreemptMode=REQUEUE GraceTime=15", "")
    assert (site.accounting, site.preempt_signal, site.max_array_size, site.kill_wait_s) == ("slurmdbd", True, 10, 5)
    assert site.partitions == (Partition("main", True, None, 0, grace_s=15, preempted="REQUEUE"),)


def test_job_completion_and_several_kinds_of_nodes_in_the_words_of_25_05() -> None:
    site = read(CONFIG_25, PARTITIONS_25, NODES_25)
    assert (site.accounting, site.version, site.max_array_size, site.kill_wait_s) == ("jobcomp", "25.05.1", 100001, 60)
    (gpu,) = site.partitions
    assert (gpu.default, gpu.minutes, gpu.nodes, gpu.grace_s, gpu.preempted) == (
        True,
        7 * 1440 + 720,
        16,
        120,
        "REQUEUE",
    )
    assert gpu.kinds == (
        Kind(12, 112, 2063000, ("gpu:h100:8",)),
        Kind(3, 64, 515000, ("gpu:a100_3g.20gb:2", "gpu:a100:2")),
        Kind(1, 64, 515000, ("gpu:4",)),
    )
    assert gpu.gpu_types == ("h100", "a100_3g.20gb", "a100")
    assert [kind.count(None) for kind in gpu.kinds] == [8, 4, 4]
    assert [kind.count("a100") for kind in gpu.kinds] == [0, 2, 0]


@pytest.mark.parametrize(
    ("storage", "completion", "kept"),
    [
        ("accounting_storage/slurmdbd", "(null)", "slurmdbd"),
        ("accounting_storage/none", "jobcomp/filetxt", "jobcomp"),
        ("(null)", "jobcomp/none", "none"),
        ("(null)", "jobcomp/elasticsearch", "none"),
        ("", "(null)", "none"),
    ],
)
def test_what_is_kept_of_jobs_that_are_over(storage: str, completion: str, kept: str) -> None:
    assert read(f"AccountingStorageType = {storage}\nJobCompType = {completion}\n", "", "").accounting == kept


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("UNLIMITED", None),
        ("INFINITE", None),
        ("infinite", None),
        ("NONE", None),
        ("7-12:00:00", 10_800),
        ("1-00:00:00", 1440),
        ("12:30:00", 750),
        ("00:05:00", 5),
        ("30:00", 30),
    ],
)
def test_time_limits_as_slurm_writes_them(text: str, minutes: int | None) -> None:
    assert read("", f"PartitionName=a MaxTime={text}", "").partitions[0].minutes == minutes


def test_where_the_site_preempts_nothing_no_partition_does() -> None:
    text = "PartitionName=a PreemptMode=REQUEUE"
    assert read("PreemptMode = REQUEUE\nPreemptType = preempt/none\n", text, "").partitions[0].preempted == "OFF"
    assert read("PreemptMode = REQUEUE\nPreemptType = (null)\n", text, "").partitions[0].preempted == "OFF"
    of = read(
        "PreemptMode = CANCEL\nPreemptType = preempt/qos\n", "PartitionName=a\nPartitionName=b PreemptMode=OFF", ""
    )
    assert [each.preempted for each in of.partitions] == ["CANCEL", "OFF"]


H100, A100 = Kind(4, 96, 2_000_000, ("gpu:h100:8",)), Kind(2, 64, 500_000, ("gpu:a100:4",))
SITE = Site(
    cluster="site",
    version="24.05.4",
    max_array_size=1001,
    kill_wait_s=30,
    accounting="slurmdbd",
    preempt_signal=True,
    partitions=(
        Partition("gpu", True, 1440, 6, kinds=(H100, A100)),
        Partition("cpu", False, None, 9, kinds=(Kind(9, 128, 257_000, ()),)),
        Partition("short", False, 30, 4, most_nodes=2, kinds=(H100,)),
        Partition("spare", False, None, 4, grace_s=60, preempted="REQUEUE"),
    ),
)  # fmt: skip
FITS = Cluster(
    name="p", executor="slurm", minutes=600, gpus=Gpus(per_node=8, type="h100"), cpus_per_node=96, memory_gb=0
)


def told(cluster: Cluster, site: Site = SITE, nodes: int = 1) -> list[tuple[str, str]]:
    return [(each.severity, each.key) for each in problems(cluster, site, nodes)]


def only(cluster: Cluster, site: Site = SITE, nodes: int = 1) -> Problem:
    (problem,) = problems(cluster, site, nodes)
    return problem


def test_a_profile_that_fits_has_no_problems() -> None:
    assert told(FITS) == []
    assert told(FITS, nodes=4) == []
    assert told(replace(FITS, partition="gpu", minutes=1440)) == []
    assert told(Cluster(name="p", executor="slurm", partition="cpu", minutes=99_999, memory_gb=250.9), nodes=9) == []


def test_a_partition_must_exist() -> None:
    problem = only(replace(FITS, partition="gpus"))
    assert problem.message == "no partition gpus; valid: gpu, cpu, short, spare; did you mean gpu?"
    assert (problem.severity, problem.key) == ("error", "partition")


def test_without_a_default_one_must_be_named() -> None:
    site = replace(SITE, partitions=SITE.partitions[1:])
    assert only(FITS, site).message == "none is named, and the site has no default; valid: cpu, short, spare"


def test_a_time_limit_above_the_partition_s_would_pend_for_ever() -> None:
    problem = only(replace(FITS, minutes=1441))
    assert (problem.severity, problem.key) == ("error", "time")
    assert "partition gpu ends jobs after 1-00:00:00, and 1-00:01:00 is asked for" in problem.message
    assert told(replace(FITS, minutes=1441, qos="long")) == [("warning", "time")]


@pytest.mark.parametrize(
    ("gpus", "key", "message"),
    [
        (Gpus(per_node=8, type="H100"), "gpus.type", "has no GPU of type H100; valid: h100, a100; did you mean h100?"),
        (Gpus(per_node=9), "gpus.per_node", "has no node with 9 GPUs; its nodes have gpu:h100:8, gpu:a100:4"),
        (Gpus(per_node=8, type="a100"), "gpus.per_node", "has no node with 8 a100; its nodes have"),
    ],
)
def test_gpus_that_no_node_has(gpus: Gpus, key: str, message: str) -> None:
    problem = only(replace(FITS, gpus=gpus, cpus_per_node=1))
    assert problem.key == key and message in problem.message and problem.severity == "error"


def test_gpus_of_a_partition_without() -> None:
    cluster = replace(FITS, partition="cpu", cpus_per_node=1)
    assert "valid: none" in only(cluster).message
    assert "its nodes have no GPUs" in only(replace(cluster, gpus=Gpus(per_node=1))).message


def test_cpus_and_memory_that_no_node_has() -> None:
    assert told(replace(FITS, cpus_per_node=97, memory_gb=2000)) == [("error", "cpus_per_node"), ("error", "memory_gb")]
    assert (
        "no node with 2000 GB; at most 1953 (0: all of the node)"
        in problems(replace(FITS, memory_gb=2000), SITE)[0].message
    )


def test_more_nodes_than_there_are() -> None:
    assert "gives a job at most 6 nodes, and a run needs 7" in only(replace(FITS, gpus=Gpus()), nodes=7).message
    assert "gives a job at most 2 nodes" in only(replace(FITS, partition="short", minutes=30), nodes=3).message
    # Four nodes have eight GPUs, two have four: no six have eight.
    assert "partition gpu has 4 nodes with all that is asked for; a run needs 5" in only(FITS, nodes=5).message


def test_of_several_partitions_one_that_fits_is_enough() -> None:
    assert told(replace(FITS, partition="gpu,short")) == [("warning", "time")]
    assert told(replace(FITS, partition="cpu,short")) == [("error", "gpus.type"), ("error", "time")]
    assert told(replace(FITS, partition="gpu,nowhere")) == [("error", "partition")]


def test_a_partition_that_is_closed() -> None:
    closed = [replace(SITE, partitions=(replace(SITE.partitions[0], state=state),)) for state in ("DRAIN", "INACTIVE")]
    assert [told(FITS, site) for site in closed] == [[("error", "partition")]] * 2
    later = replace(SITE, partitions=(replace(SITE.partitions[0], state="DOWN"),))
    assert told(FITS, later) == [("warning", "partition")]


def test_flags_for_gpus_that_the_site_s_selection_does_not_know() -> None:
    site = replace(SITE, select="select/cons_res")
    assert "doesn't know --gpus-per-node; valid here: gres" in only(FITS, site).message
    assert told(replace(FITS, gpus=replace(FITS.gpus, style="gres")), site) == []
    assert told(replace(FITS, gpus=Gpus()), site) == []


def test_what_only_makes_a_run_lose_more_is_a_warning() -> None:
    assert told(FITS, replace(SITE, accounting="none")) == [("warning", "executor")]
    assert told(replace(FITS, notice_s=20)) == [("warning", "notice_s")]
    assert told(replace(FITS, limits=Limits(array=2000))) == [("warning", "limits.array")]
    spare = replace(FITS, partition="spare")
    assert told(spare) == []
    problem = only(spare, replace(SITE, preempt_signal=False))
    assert problem.severity == "warning" and "gets SIGTERM alone, 90 s before it is killed" in problem.message
    cancelling = replace(SITE, partitions=(replace(SITE.partitions[3], preempted="CANCEL"),))
    assert "cancels preempted jobs instead of requeueing them" in only(spare, cancelling).message


def test_errors_come_first() -> None:
    assert told(replace(FITS, notice_s=20, minutes=1441)) == [("error", "time"), ("warning", "notice_s")]


def test_it_is_asked_with_three_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    for name in ("scontrol", "sinfo"):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> "{calls}"\necho "ClusterName = x"\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert ask().cluster == "x"
    assert calls.read_text().splitlines() == [
        "scontrol show config",
        "scontrol show partition --oneliner",
        "sinfo --noheader --exact --format=%P|%D|%c|%m|%G",
    ]


def test_where_there_is_no_scheduler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SchedulerError, match="scontrol: there is no such command here"):
        ask()
