"""Commands of Slurm, played by small scripts that stand first on the path."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rlsweep.errors import RecipeError, SchedulerError
from rlsweep.launch import scheduler
from rlsweep.launch.profile import check_variable
from rlsweep.launch.ranks import Place, variables
from rlsweep.launch.scheduler import Refused, call, environment
from rlsweep.recipe.nodes import Place as NodePlace
from rlsweep.recipe.nodes import parse_value
from rlsweep.store.jobs import AttemptJob

Script = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_WAITS_S", (0.01, 0.01))


def test_the_answer_is_what_it_printed_and_arguments_are_passed_as_they_are(script: Script) -> None:
    script("squeue", 'printf "%s|" "$@"; printf "\\351"; echo warning >&2')
    assert call(["squeue", "-o", "a b|$HOME", "é"]) == "-o|a b|$HOME|é|�"


def test_a_refusal_is_told_in_the_schedulers_own_words_and_not_tried_again(script: Script) -> None:
    calls = script("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(Refused, match=r"^sbatch: error: invalid partition specified: x$"):
        call(["sbatch"])
    assert calls.read_text().count("sbatch") == 1
    script("scancel", "exit 3")
    with pytest.raises(Refused, match="scancel: ended with exit code 3 and said nothing"):
        call(["scancel"])


@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "sacct: error: Problem talking to the database: Connection refused",
        "squeue: error: authentication: Munge encode failed: Failed to access socket",
    ],
)
def test_a_busy_controller_is_asked_again_and_then_said_to_be_out_of_reach(script: Script, words: str) -> None:
    calls = script("squeue", f"echo '{words}' >&2; exit 1")
    with pytest.raises(SchedulerError) as raised:
        call(["squeue", "--me"])
    assert calls.read_text().count("squeue") == 3
    for part in ("`squeue --me`", words, "Nothing was lost", "run the same command again"):
        assert part in str(raised.value)
    assert raised.value.exit_code == 4
    with pytest.raises(SchedulerError):
        call(["squeue"], retry=False)
    assert calls.read_text().count("squeue") == 4


def test_an_answer_at_the_second_try_is_an_answer(script: Script, tmp_path: Path) -> None:
    script(
        "squeue",
        f"[ -e '{tmp_path}/again' ] && echo yes && exit; touch '{tmp_path}/again'; echo Connection refused >&2; exit 1",
    )
    assert call(["squeue"]) == "yes\n"


def test_a_command_that_hangs_is_given_up(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = script("squeue", "exec sleep 60")
    monkeypatch.setattr(scheduler, "_LIMIT_S", 0.3)
    monkeypatch.setattr(scheduler, "_PATIENCE_S", 0.2)
    with pytest.raises(SchedulerError, match="no answer within"):
        call(["squeue"])
    assert calls.read_text().count("squeue") == 1  # what hangs isn't asked again and again


def test_without_slurm_and_without_its_configuration_there_is_nothing_to_wait_for(script: Script) -> None:
    with pytest.raises(SchedulerError, match=r"no-such-command: .* no Slurm on this machine"):
        call(["no-such-command"])
    calls = script("squeue", "echo 'squeue: fatal: Could not establish a configuration source' >&2; exit 1")
    with pytest.raises(SchedulerError, match="configuration source"):
        call(["squeue"])
    assert calls.read_text().count("squeue") == 1


def test_what_a_job_around_us_or_a_shells_options_say_is_not_passed_on(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SBATCH_PARTITION would win over the script's own partition, SQUEUE_STATES hide jobs, RANK confuse a trainer."""
    foreign = (
        "SLURM_JOB_ID",
        "SLURMD_NODENAME",
        "SBATCH_PARTITION",
        "SQUEUE_STATES",
        "SACCT_FORMAT",
        "SLURM_TIME_FORMAT",
    )
    for name in (*foreign, "RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/é/slurm.conf")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("RANKING", "mine")
    script("squeue", "env")
    seen = dict(line.split("=", 1) for line in call(["squeue"], variables={"TZ": "UTC"}).splitlines() if "=" in line)
    assert not {*foreign, "RANK", "WORLD_SIZE", "MASTER_ADDR"} & seen.keys()
    assert (seen["SLURM_CONF"], seen["LC_ALL"], seen["TZ"], seen["RANKING"]) == (
        "/etc/é/slurm.conf",
        "C.UTF-8",
        "UTC",
        "mine",
    )
    assert "WORLD_SIZE" not in environment() and environment()["RANKING"] == "mine"


def test_sbatch_hands_the_persons_language_on_to_the_job(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script("sbatch", "echo ${LC_ALL-none}")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert call(["sbatch"], retry=False) == "de_DE.UTF-8\n"
    monkeypatch.delenv("LC_ALL")
    assert call(["sbatch"], retry=False) == "none\n"


@pytest.mark.parametrize(
    ("name", "is_rank"),
    [
        *((name, True) for name in ("RANK", "LOCAL_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID")),
        *((name, True) for name in ("PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE")),
        *((name, False) for name in ("OMPI_MCA_btl", "PMIX_MCA_psec", "RANKS", "MY_RANK", "NCCL_DEBUG")),
    ],
)
def test_what_names_a_rank_is_the_same_for_all(name: str, is_rank: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept from the scheduler's commands, kept from trainers, and refused in a profile."""
    monkeypatch.setenv(name, "1")
    job = AttemptJob("t", "7", 0, ["n1"], 1, "n1", 1, 1.0)
    assert (name not in environment()) == is_rank
    assert (name not in variables(Place("7", 0, 0, 1, ("n1",)), job)) == is_rank
    if is_rank:
        with pytest.raises(RecipeError, match="is set for each process of a run"):
            check_variable(parse_value("1", NodePlace("x")), f"environment.{name}")
    else:
        assert check_variable(parse_value("1", NodePlace("x")), f"environment.{name}") == "1"
