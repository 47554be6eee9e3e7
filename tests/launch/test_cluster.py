import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsweep.errors import RlsweepError
from rlsweep.launch.cluster import Cluster, Gpus, Limits, Setting, load_cluster, settings
from rlsweep.launch.profile import CHECKS
from rlsweep.recipe import shipped
from rlsweep.recipe.explain import docstrings
from rlsweep.recipe.nodes import Node, Place

WHOLE = """\
executor: slurm
partition: gpu,spare
account: p-1234
qos: high
constraint: "a100&ib"
exclude: n[3-4],n9
gpus: {style: gres, per_node: 4, type: nvidia_h100.80gb}
cpus_per_node: 32
memory_gb: 0
exclusive: true
time: 1:30:00
notice_s: 180
setup:
  - module load cuda/12.4 && echo "50% ${USER#x}"
  - export WANDB_API_KEY="$(cat ~/.key)"
environment:
  NCCL_SOCKET_IFNAME: ib0
  NCCL_DEBUG: 1
  EMPTY: ''
interpreter: apptainer exec --nv '/images/the image.sif' python3
srun: [--mpi=none, --network, 3]
limits: {parallel: 8, array: 500, retries: 0}
"""


def write(folder: Path, text: str, name: str = "site.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def load(source: str, *overrides: str, **environ: str) -> Cluster:
    return load_cluster(source, overrides, environ)


def test_every_key_becomes_an_attribute(tmp_path: Path) -> None:
    assert load(write(tmp_path, WHOLE)) == Cluster(
        name="site",
        executor="slurm",
        partition="gpu,spare",
        account="p-1234",
        qos="high",
        constraint="a100&ib",
        exclude="n[3-4],n9",
        gpus=Gpus(style="gres", per_node=4, type="nvidia_h100.80gb"),
        cpus_per_node=32,
        memory_gb=0.0,
        exclusive=True,
        minutes=90,
        notice_s=180,
        setup=('module load cuda/12.4 && echo "50% ${USER#x}"', 'export WANDB_API_KEY="$(cat ~/.key)"'),
        environment={"NCCL_SOCKET_IFNAME": "ib0", "NCCL_DEBUG": "1", "EMPTY": ""},
        interpreter="apptainer exec --nv '/images/the image.sif' python3",
        srun=("--mpi=none", "--network", "3"),
        limits=Limits(parallel=8, array=500, retries=0),
    )


def test_what_is_not_stated_has_its_default(tmp_path: Path) -> None:
    cluster = load(write(tmp_path, "executor: slurm\n", "à moi.yaml"))
    assert cluster == Cluster(name="à moi", executor="slurm")
    assert cluster.python == (sys.executable,)
    assert cluster.time == "0-01:00:00"


def test_a_key_whose_lines_are_all_comments_is_empty(tmp_path: Path) -> None:
    text = "executor: slurm\nsetup:\n  # - module load cuda\nenvironment:\nsrun:\ngpus:\nlimits:\n"
    assert load(write(tmp_path, text)) == Cluster(name="site", executor="slurm")


def test_the_interpreter_is_shell_words(tmp_path: Path) -> None:
    assert load(write(tmp_path, WHOLE)).python == ("apptainer", "exec", "--nv", "/images/the image.sif", "python3")


@pytest.mark.parametrize(
    ("stated", "minutes", "shown"),
    [
        ("90", 90, "0-01:30:00"),
        ("1:30:00", 90, "0-01:30:00"),
        ("'1:30:00'", 90, "0-01:30:00"),
        ("01:30:00", 90, "0-01:30:00"),
        ("0-01:30:01", 91, "0-01:31:00"),
        ("00:02:59", 3, "0-00:03:00"),
        ("1-00:00:00", 1440, "1-00:00:00"),
        ("30:00:00", 1800, "1-06:00:00"),
        ("2-23:59:00", 4319, "2-23:59:00"),
    ],
)
def test_times_are_whole_minutes_and_shown_in_one_form(tmp_path: Path, stated: str, minutes: int, shown: str) -> None:
    source = write(tmp_path, f"executor: slurm\ntime: {stated}\n")
    cluster = load(source)
    assert (cluster.minutes, cluster.time) == (minutes, shown)
    assert Setting("time", shown, "site.yaml:2") in settings(source, (), {})
    assert load(write(tmp_path, "executor: slurm\n"), RLSWEEP_TIME=stated).minutes == minutes


SLURM = "executor: slurm\n"
BAD = [
    # the file
    ("- local\n", ":1: a list stands at the top; it must be a map with the key executor"),
    ("partition: gpu\n", "executor: missing; valid: local, slurm"),
    ("executor: slrum\n", ":1: executor: 'slrum' is not valid; it must be one of local, slurm; did you mean slurm?"),
    (SLURM + "partiton: gpu\n", ":2: partiton: unknown key; valid: executor, partition, account, qos"),
    (SLURM + "partiton: gpu\n", "; did you mean partition?"),
    (SLURM + "per_node: 8\n", "did you mean gpus.per_node?"),
    (SLURM + "gpus: {pernode: 8}\n", ":2: gpus.pernode: unknown key; valid: style, per_node, type; did you mean"),
    (SLURM + "limits: {retry: 1}\n", ":2: limits.retry: unknown key; valid: parallel, array, retries"),
    (SLURM + "gpus: 8\n", ":2: gpus: 8 is not valid; it must be a map"),
    (SLURM + "qos: a\nqos: b\n", ":3: qos: stated twice; first on line 2"),
    # what goes on a line of sbatch
    (SLURM + "partition: gpu --nodelist=n1\n", ":2: partition: gpu --nodelist=n1 is not valid; it must be one word"),
    (SLURM + 'account: "a\\n#SBATCH --uid=0"\n', "account: 'a\\n#SBATCH --uid=0' is not valid; it must be one word"),
    (SLURM + 'qos: "a\\u001bb"\n', "qos: 'a\\x1bb' is not valid; it must be one word"),
    (SLURM + "exclude: n1, n2\n", "exclude: n1, n2 is not valid"),
    (SLURM + "constraint: ''\n", "constraint: '' is not valid"),
    (SLURM + "constraint: $FEATURE\n", "constraint: $FEATURE is not valid"),
    (SLURM + "account: 1234\n", "account: 1234 (a whole number) is not valid; it must be a text or null; put"),
    # devices
    (SLURM + "gpus: {type: h100}\n", ":2: gpus.type: h100 says which GPUs, but nothing says how many; state"),
    (SLURM + "gpus:\n  style: gres\n", ":3: gpus.style: gres says which GPUs, but nothing says how many"),
    (SLURM + "gpus: {style: gpu, per_node: 1}\n", "gpus.style: 'gpu' is not valid; it must be one of gpus_per_node"),
    (SLURM + "gpus: {per_node: 0}\n", "gpus.per_node: 0 is not valid; it must be 1 or more, or null"),
    (SLURM + "gpus: {per_node: '8'}\n", "gpus.per_node: '8' (a text) is not valid; it must be a whole number or null"),
    (SLURM + "gpus: {per_node: 8, type: 'h100:8'}\n", "gpus.type: 'h100:8' is not valid; it must be the name alone"),
    (SLURM + "cpus_per_node: 0\n", "cpus_per_node: 0 is not valid"),
    (SLURM + "memory_gb: -1\n", "memory_gb: -1 is not valid; it must be 0 (all of the node) or more, or null"),
    (SLURM + "memory_gb: 64G\n", "memory_gb: 64G (a text) is not valid; it must be a number or null"),
    (SLURM + "exclusive: yes\n", "exclusive: yes (a text) is not valid; it must be true or false"),
    # times
    (SLURM + "time: 1:30\n", ":2: time: 1:30 is not valid; hours and minutes, or minutes and seconds"),
    (SLURM + "time: 1-12\n", "time: 1-12 is not valid; write it whole: 1-12:00:00"),
    (SLURM + "time: 1-6:30\n", "time: 1-6:30 is not valid; write it whole: 1-06:30:00"),
    (SLURM + "time: 1-24:00:00\n", "time: 1-24:00:00 is not valid; minutes and seconds end at 59"),
    (SLURM + "time: 0:60:00\n", "time: 0:60:00 is not valid; minutes and seconds end at 59"),
    (SLURM + "time: 0\n", "time: 0 is not valid; it must be minutes or a text d-hh:mm:ss or hh:mm:ss"),
    (SLURM + "time: 0:00:00\n", "time: 0:00:00 is not valid; it must be minutes"),
    (SLURM + "time: -5\n", "time: -5 is not valid"),
    (SLURM + "time: 90.5\n", "time: 90.5 is not valid"),
    (SLURM + "time: true\n", "time: true is not valid"),
    (SLURM + "time: null\n", "time: null is not valid"),
    (SLURM + "time: infinite\n", "time: infinite is not valid"),
    (SLURM + "time: 5h\n", "time: 5h is not valid"),
    (SLURM + "time: 9999-00:00:00\n", "time: 9999-00:00:00 is not valid; it must be minutes or a text d-hh:mm:ss"),
    (SLURM + "notice_s: 3\n", "notice_s: 3 is not valid; it must be a whole number of seconds from 10 to 65535"),
    (SLURM + "time: 2\n", None),
    (SLURM + "notice_s: 60\ntime: 1\n", ":3: time: the notice (60 s) must be shorter than the time limit (0-00:01:00)"),
    (SLURM + "notice_s: 3600\n", ":2: notice_s: the notice (3600 s) must be shorter than the time limit (0-01:00:00)"),
    # shell
    (SLURM + "setup: module load cuda\n", ":2: setup: module load cuda is not valid; it must be a list of texts"),
    (SLURM + "setup:\n  - true\n  - |\n    a\n    b\n", ":4: setup.1: 'a\\nb\\n' is not valid; it must be one line"),
    (SLURM + "setup: ['']\n", "setup.0: '' is not valid; it must be one line of shell, not an empty one"),
    (SLURM + "setup: [[a]]\n", "setup.0: a list is not valid; it must be one line of shell"),
    (SLURM + "setup: ['#SBATCH --nice']\n", "options of sbatch are keys of the profile"),
    (SLURM + "setup: [export HF_TOKEN=hf_abc]\n", "setup.0: HF_TOKEN looks like a credential; a profile is a file"),
    (SLURM + "interpreter: ''\n", "interpreter: '' is not valid; it must be a path, or shell words"),
    (SLURM + "interpreter: $HOME/bin/python\n", "variables and ~ are not expanded"),
    (SLURM + "interpreter: 'python; true'\n", "variables and ~ are not expanded, and no shell reads ; or |"),
    (SLURM + "interpreter: 'python | tee x'\n", "and no shell reads ; or |"),
    (SLURM + "interpreter: ~/bin/python\n", "variables and ~ are not expanded"),
    (SLURM + "interpreter: \"it's\"\n", "interpreter: \"it's\" is not valid; not shell words: no closing quotation"),
    (SLURM + "srun: --mpi=none\n", ":2: srun: --mpi=none is not valid; it must be a list of texts"),
    (SLURM + "srun: [python]\n", "'python' is no option of srun; options begin with a dash"),
    (SLURM + 'srun: ["--x=a\\nb"]\n', "srun.0: '--x=a\\nb' is not valid; it must be an argument of srun"),
    (SLURM + "srun: [--mpi=none, --ntasks=4]\n", ":2: srun: a list is not valid; --ntasks=4 says how many"),
    (SLURM + "srun: [--ntasks-per-node, 2]\n", "--ntasks-per-node says how many tasks or nodes"),
    (SLURM + "srun: [-n4]\n", "-n4 says how many tasks or nodes there are, which follows from the run"),
    (SLURM + "srun: [-N, 2]\n", "-N says how many tasks or nodes"),
    (SLURM + "srun: [--nodes=2-3]\n", "--nodes=2-3 says how many tasks or nodes"),
    (SLURM + "srun: [--container-image=/i.sqsh]\n", ":2: srun: --container-image=/i.sqsh starts a container, which"),
    # environment
    (SLURM + "environment: [A=1]\n", ":2: environment: a list is not valid; it must be a map"),
    (SLURM + "environment:\n  1A: x\n", ":3: environment.1A: '1A' can't name a variable; valid: letters"),
    (SLURM + "environment: {A-B: x}\n", "'A-B' can't name a variable"),
    (SLURM + "environment: {'A=1;rm': x}\n", "'A=1;rm' can't name a variable"),
    (SLURM + "environment: {A: }\n", "environment.A: null is not valid; it must be a text; an empty one is ''"),
    (SLURM + "environment: {A: {b: c}}\n", "environment.A: a map is not valid; it must be a text"),
    (SLURM + 'environment: {A: "b\\nc"}\n', "without line ends and control characters"),
    (SLURM + "environment: {PATH: '/x:$PATH'}\n", "not expanded here; a line of setup can: export PATH=..."),
    (SLURM + "environment: {HF_HOME: ~/hf}\n", "not expanded here"),
    (SLURM + "environment: {RANK: 0}\n", "environment.RANK: RANK is set for each process of a run by rlsweep"),
    (SLURM + "environment: {SBATCH_PARTITION: x}\n", "SBATCH_PARTITION: options of sbatch are keys of the profile"),
    (SLURM + "environment: {GH_PAT: ghp_abcDEF0123456789}\n", "GH_PAT: GH_PAT holds a credential (ghp_...)"),
    (SLURM + "setup: [curl -u x:hf_abcDEF0123456789 hub]\n", "setup.0: it holds a credential (hf_...); a profile is a"),
    (SLURM + "environment: {MLFLOW_TRACKING_URI: 'https://me:pw@host'}\n", "MLFLOW_TRACKING_URI holds a password"),
    # a local profile
    ("executor: local\nlimits: {parallel: 0}\n", ":2: limits.parallel: 0 is not valid; it must be 1 or more, or null"),
    ("executor: local\nlimits: {parallel: true}\n", "limits.parallel: true (true or false) is not valid"),
    ("executor: local\npartition: gpu\n", ":2: partition: it is an option of Slurm; a profile with executor: local"),
    ("executor: local\nlimits: {retries: 2}\n", ":2: limits.retries: it is an option of Slurm"),
    ("environment: {A: b}\nexecutor: local\n", ":1: environment.A: it is an option of Slurm"),
    ("executor: local\nparallel: 3\n", ":2: parallel: unknown key; valid: executor"),
    ("executor: local\nparallel: 3\n", "did you mean limits.parallel?"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), [case for case in BAD if case[1]])
def test_a_profile_that_is_not_valid_is_refused_with_place_and_reason(tmp_path: Path, text: str, message: str) -> None:
    source = write(tmp_path, text)
    with pytest.raises(RlsweepError) as error:
        load(source)
    told = str(error.value)
    assert message in told and told.startswith(source) and "\n" not in told and error.value.exit_code == 2


@given(text=st.text(min_size=1, max_size=12) | st.text("ab -'\"\\\n\r\t#;$`&|()[]*,=", min_size=1, max_size=12))
@pytest.mark.parametrize("key", ["partition", "account", "qos", "constraint", "exclude", "gpus.type"])
def test_whatever_is_accepted_stays_one_word_of_one_line(key: str, text: str) -> None:
    try:
        value = CHECKS[key](Node(text, Place("p.yaml", 1)), key)
    except RlsweepError as error:
        assert "\n" not in str(error)
        return
    line = f"#SBATCH --x={value}"
    assert line.splitlines() == [line] and shlex.split(line, comments=False)[1:] == [f"--x={text}"]


@pytest.mark.parametrize(
    "name",
    [*("HF_TOKEN", "hf_token", "WANDB_API_KEY", "OPENAI_KEY", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "GH_TOKEN_1")],
)
def test_credentials_belong_into_the_submitting_shell(tmp_path: Path, name: str) -> None:
    with pytest.raises(RlsweepError, match=f"{name} looks like a credential; .* export it in the shell that submits"):
        load(write(tmp_path, f"executor: slurm\nenvironment: {{{name}: x}}\n"))


@pytest.mark.parametrize(
    "start", [*("ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "hf_", "sk-", "sk-ant-", "xoxb-", "AKIA")]
)
def test_whatever_its_name_a_value_that_is_a_credential_is_refused(tmp_path: Path, start: str) -> None:
    for value in (f"{start}aB3dE6gH9jK2mN5pQ8", f"https://host/?key={start}aB3dE6gH9jK2mN5pQ8"):
        with pytest.raises(RlsweepError, match=r"A holds a credential .* export it in the shell that submits") as error:
            load(write(tmp_path, f"executor: slurm\nenvironment: {{A: '{value}'}}\n"))
        assert "dE6gH9" not in str(error.value)


def test_arguments_of_srun_that_only_look_like_sizes_are_fine(tmp_path: Path) -> None:
    stated = ["--nodelist=n1", "--network=x", "--nice", "--cpu-bind=none"]
    assert load(write(tmp_path, f"executor: slurm\nsrun: {stated}\n")).srun == tuple(stated)


def test_names_that_only_sound_like_credentials_are_fine(tmp_path: Path) -> None:
    fine = {"TOKENIZERS_PARALLELISM": "false", "HF_TOKEN_PATH": "/x", "VLLM_MAX_TOKENS": "8", "KEYBOARD": "de"}
    fine |= {"TEAM": "hf_", "MODEL": "/x/hf_checkpoints_of_ours", "DISKS": "risk-0123456789abcdef"}
    lines = "".join(f"  {name}: {value}\n" for name, value in fine.items())
    assert load(write(tmp_path, f"executor: slurm\nenvironment:\n{lines}")).environment == fine


def test_flags_win_over_variables_over_the_profile_over_defaults(tmp_path: Path) -> None:
    source = write(tmp_path, "executor: slurm\npartition: a\nqos: a\naccount: a\ngpus: {per_node: 4}\n")
    environ = {"RLSWEEP_PARTITION": "b", "RLSWEEP_QOS": "b", "RLSWEEP_GPUS_TYPE": "h100", "RLSWEEP_TIME": "0:45:00"}
    overrides = ["partition=c", "limits.parallel=3", "limits.parallel=2"]
    cluster = load_cluster(source, overrides, environ)
    assert (cluster.partition, cluster.qos, cluster.account, cluster.gpus) == (
        "c",
        "b",
        "a",
        Gpus(per_node=4, type="h100"),
    )
    assert (cluster.minutes, cluster.limits.parallel) == (45, 2)
    origins = {each.key: (each.value, each.origin) for each in settings(source, overrides, environ)}
    assert origins["executor"] == ("slurm", "site.yaml:1")
    assert origins["partition"] == ("c", "flag")
    assert origins["qos"] == ("b", "RLSWEEP_QOS")
    assert origins["account"] == ("a", "site.yaml:4")
    assert origins["gpus.per_node"] == (4, "site.yaml:5")
    assert origins["gpus.type"] == ("h100", "RLSWEEP_GPUS_TYPE")
    assert origins["time"] == ("0-00:45:00", "RLSWEEP_TIME")
    assert origins["limits.parallel"] == (2, "flag")
    assert origins["limits.retries"] == (20, "default")
    assert list(CHECKS) == list(origins) and origins["environment"] == ({}, "default")


def test_texts_typed_in_a_shell_need_no_second_quotes(tmp_path: Path) -> None:
    source = write(tmp_path, "executor: slurm\npartition: a\n")
    assert load(source, "account=1234", RLSWEEP_QOS="7").account == "1234"
    assert load(source, "partition=null").partition is None


def test_lists_and_variables_can_be_overridden(tmp_path: Path) -> None:
    source = write(tmp_path, "executor: slurm\nsetup: [a]\nenvironment:\n  A: x\n  B: x\n")
    assert load(source, "setup=[b, c d]").setup == ("b", "c d")
    assert load(source, RLSWEEP_SRUN="[--mpi=none]").srun == ("--mpi=none",)
    assert load(source, "environment.B=y", "environment.C=1").environment == {"A": "x", "B": "y", "C": "1"}
    assert load(source, RLSWEEP_ENVIRONMENT="{C: z}").environment == {"C": "z"}
    found = settings(source, ["environment.B=y"], {})
    assert [each for each in found if each.key.startswith("env")] == [
        Setting("environment.A", "x", "site.yaml:4"),
        Setting("environment.B", "y", "flag"),
    ]


def test_a_null_stated_is_a_statement(tmp_path: Path) -> None:
    """So that a profile with GPUs can be used without them."""
    source = write(tmp_path, "executor: slurm\ngpus: {style: gres, per_node: 8}\n")
    assert load(source, "gpus.per_node=null").gpus == Gpus(style="gres")


@pytest.mark.parametrize(
    ("overrides", "environ", "message"),
    [
        (["partition"], {}, "--cluster-set partition: it must be KEY=VALUE, as in partition=gpu"),
        (["partiton=x"], {}, "--cluster-set partiton=x: partiton: unknown key; valid: executor, partition"),
        (["environment=3"], {}, "--cluster-set environment=3: environment: 3 is not valid; it must be a map"),
        (["time=1:30"], {}, "--cluster-set time=1:30: time: 1:30 is not valid"),
        (["memory_gb=lots"], {}, "--cluster-set memory_gb=lots: memory_gb: lots (a text) is not valid"),
        (["executor=local"], {}, "executor: it belongs to the profile's file; choose another profile with --cluster"),
        (["environment.HF_TOKEN=x"], {}, "HF_TOKEN looks like a credential"),
        ([], {"RLSWEEP_TIME": "1:30"}, "RLSWEEP_TIME: time: 1:30 is not valid"),
        ([], {"RLSWEEP_TIME": "1"}, "RLSWEEP_TIME: time: the notice (120 s) must be shorter than the time limit"),
        (["notice_s=9999"], {"RLSWEEP_TIME": "1"}, "--cluster-set notice_s=9999: notice_s: the notice (9999 s) must"),
        ([], {"RLSWEEP_PARTITON": "x"}, "RLSWEEP_PARTITON: no such variable; did you mean RLSWEEP_PARTITION?"),
        ([], {"RLSWEEP_GPU_TYPE": "x"}, "did you mean RLSWEEP_GPUS_TYPE?"),
        ([], {"RLSWEEP_EXECUTOR": "local"}, "RLSWEEP_EXECUTOR: the executor belongs to the profile's file"),
        ([], {"RLSWEEP_GPUS_TYPE": "h100"}, "RLSWEEP_GPUS_TYPE: gpus.type: h100 says which GPUs, but nothing says how"),
    ],
)
def test_an_override_that_is_not_valid_is_refused(
    tmp_path: Path, overrides: list[str], environ: dict[str, str], message: str
) -> None:
    source = write(tmp_path, SLURM)
    with pytest.raises(RlsweepError) as error:
        load_cluster(source, overrides, environ)
    assert message in str(error.value) and error.value.exit_code == 2


def test_variables_of_others_and_empty_ones_are_left_alone(tmp_path: Path) -> None:
    source = write(tmp_path, "executor: slurm\npartition: a\n")
    assert load(source, RLSWEEP_ROOT="/x", RLSWEEP_PARTITION="", RLSWEEP_SOMETHING="y", PARTITION="z").partition == "a"


def test_this_process_s_variables_are_meant_where_none_are_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RLSWEEP_PARTITION", "gpu")
    assert load_cluster(write(tmp_path, SLURM)).partition == "gpu"


def test_variables_for_slurm_do_not_touch_a_local_profile() -> None:
    """They are set once in a shell's start file, for all that is submitted."""
    environ = {"RLSWEEP_PARTITION": "gpu", "RLSWEEP_TIME": "nonsense", "RLSWEEP_LIMITS_PARALLEL": "2"}
    assert load_cluster("local", (), environ) == Cluster(name="local", executor="local", limits=Limits(parallel=2))
    assert [each.key for each in settings("local", (), environ)] == ["executor", "limits.parallel"]
    with pytest.raises(RlsweepError, match=r"--cluster-set partition=gpu: partition: it is an option of Slurm"):
        load_cluster("local", ["partition=gpu"], {})


def test_an_unknown_profile_is_refused_with_the_shipped_ones() -> None:
    with pytest.raises(RlsweepError, match="shipped profiles: gres, h100, local, test"):
        load_cluster("leonardo")


@pytest.mark.parametrize("name", ["gres", "h100", "local", "test"])
def test_shipped_profiles_are_valid(name: str) -> None:
    assert name in shipped.names("profile")
    assert load_cluster(name, (), {}).executor == ("local" if name == "local" else "slurm")


def test_what_the_shipped_profiles_ask_for() -> None:
    h100, gres, test = (load_cluster(name, (), {}) for name in ("h100", "gres", "test"))
    assert (h100.gpus, h100.exclusive, h100.memory_gb, h100.time) == (
        Gpus(style="gpus_per_node", per_node=8),
        True,
        0.0,
        "1-00:00:00",
    )
    assert gres.gpus.style == "gres" and gres.gpus.per_node
    assert (test.partition, test.gpus.per_node, test.cpus_per_node) == ("main", None, 1)


def test_every_key_says_what_it_means() -> None:
    for noun in (Cluster, Gpus, Limits):
        assert not [name for name, text in docstrings(noun).items() if not text and name not in ("gpus", "limits")]
