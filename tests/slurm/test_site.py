"""The facts of the test cluster, asked for for real."""

import json
import subprocess
import sys

import pytest

from rlsweep.launch.cluster import load_cluster
from rlsweep.launch.site import Kind, ask, problems

pytestmark = pytest.mark.slurm


def test_the_site_is_what_its_configuration_says() -> None:
    site = ask()
    assert (site.cluster, site.max_array_size, site.kill_wait_s) == ("one_machine", 10, 5)
    assert site.accounting == "slurmdbd" and site.select == "select/cons_tres"
    assert [(each.name, each.default, each.minutes, each.nodes) for each in site.partitions] == [
        ("main", True, 1440, 4),
        ("urgent", False, 60, 4),
        ("short", False, 5, 4),
    ]
    main, urgent, _ = site.partitions
    assert main.kinds == (Kind(4, 2, 4000, ("gpu:h100:8",)),)
    assert (main.grace_s, main.preempted, urgent.preempted) == (15, "REQUEUE", "OFF")


def test_its_own_profile_fits() -> None:
    found = problems(load_cluster("test", (), {}), ask(), nodes=4)
    assert [each for each in found if each.severity == "error"] == []


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["partition=short"], "time"),
        (["partition=mian"], "partition"),
        (["gpus.per_node=8", "gpus.type=a100"], "gpus.type"),
        (["gpus.per_node=9"], "gpus.per_node"),
        (["cpus_per_node=3"], "cpus_per_node"),
        (["memory_gb=4"], "memory_gb"),  # a node has 4000 MB
    ],
)
def test_what_is_called_an_error_slurm_would_not_run(overrides: list[str], key: str) -> None:
    """And what fits, sbatch takes: its own --test-only agrees but on the time limit, which it lets through."""
    site = ask()
    cluster = load_cluster("test", overrides, {})
    assert [each.key for each in problems(cluster, site) if each.severity == "error"] == [key]
    assert sbatch("test", overrides) == (key == "time")


def test_what_fits_sbatch_takes() -> None:
    assert sbatch("test", [])
    assert sbatch("test", ["gpus.per_node=8", "gpus.type=h100"])


def sbatch(name: str, overrides: list[str]) -> bool:
    """Whether sbatch would take a job of the profile."""
    cluster = load_cluster(name, overrides, {})
    type_ = f"{cluster.gpus.type}:" if cluster.gpus.type else ""
    options = [
        f"--partition={cluster.partition}",
        f"--time={cluster.time}",
        f"--cpus-per-task={cluster.cpus_per_node}",
        f"--mem={cluster.memory_gb:g}G",
        *([f"--gpus-per-node={type_}{cluster.gpus.per_node}"] if cluster.gpus.per_node else []),
    ]
    done = subprocess.run(["sbatch", "--test-only", *options, "--wrap=true"], capture_output=True, timeout=60)
    return done.returncode == 0


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "rlsweep", "cluster", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("constraint=foo", "Invalid feature specification"),
        ("exclude=n9", "Invalid node name specified"),
        ("exclude=n[1-4]", "Requested node configuration is not available"),
    ],
)
def test_what_only_sbatch_knows_is_an_error_in_its_own_words(override: str, words: str) -> None:
    done = run("check", "test", "--cluster-set", override)
    assert done.returncode == 2 and words in done.stdout
    assert [line.split("\t")[0] for line in done.stdout.splitlines() if "sbatch" in line] == ["error"]


def test_check_prints_facts_and_problems_and_fails_on_errors() -> None:
    fits = run("check", "test")
    assert fits.returncode == 0 and "MaxArraySize\t10\n" in fits.stdout
    assert "partition main\tdefault, at most 1-00:00:00, 4 nodes with 2 CPUs, 3.906 GB, gpu:h100:8\n" in fits.stdout
    short = run("check", "test", "--cluster-set", "partition=short", "--json")
    assert short.returncode == 2
    told = json.loads(short.stdout)
    assert told["site"]["cluster"] == "one_machine" and told["profile"] == "test"
    assert [each["key"] for each in told["problems"] if each["severity"] == "error"] == ["time"]
