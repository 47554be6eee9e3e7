"""What is asked of sbatch about a profile, and what is made of its answer; sbatch is a small script here."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rlsweep.errors import SchedulerError
from rlsweep.launch import scheduler
from rlsweep.launch.cluster import load_cluster
from rlsweep.launch.site import Problem
from rlsweep.launch.trial import refusals

Script = Callable[[str, str], Path]
PROFILE = load_cluster("h100", ["constraint=ib", "exclude=n[3-4]", "account=lab", "qos=high", "partition=gpu"], {})


def test_sbatch_is_given_the_script_that_runs_get_and_nothing_is_submitted(script: Script, tmp_path: Path) -> None:
    calls = script("sbatch", f"cat \"${{@: -1}}\" > '{tmp_path}/given'")
    assert refusals(PROFILE, 2) == []
    assert [line.split()[:2] for line in calls.read_text().splitlines()] == [["sbatch", "--test-only"]]
    given = (tmp_path / "given").read_text().splitlines()
    for line in ("account=lab", "constraint=ib", "exclude='n[3-4]'", "qos=high", "partition=gpu", "nodes=2"):
        assert f"#SBATCH --{line}" in given
    assert "#SBATCH --gpus-per-node=8" in given and "#SBATCH --signal=USR2@300" in given


@pytest.mark.parametrize(
    ("words", "severity"),
    [
        ("Invalid feature specification", "error"),
        ("Invalid account or account/partition combination specified", "error"),
        ("Required node not available (down, drained or reserved)", "warning"),
    ],
)
def test_its_no_is_told_in_its_own_words_and_one_for_now_is_no_error(script: Script, words: str, severity: str) -> None:
    script("sbatch", f"echo 'allocation failure: {words}' >&2; exit 1")
    told = f"of a job of this profile it says: allocation failure: {words}"
    assert refusals(PROFILE) == [Problem(severity, "sbatch", told)]  # type: ignore[arg-type]


def test_one_that_does_not_answer_is_no_refusal(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_WAITS_S", ())
    script("sbatch", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(SchedulerError):
        refusals(PROFILE)
