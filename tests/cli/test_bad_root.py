"""A root that can't be written, or that fills up: one message, nothing half-written, and the same command goes on."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsweep.store import attempts, checkpoints, ledger, outcome
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import Root, RunFolder

Command = Callable[..., list[str]]
NAME = "l'été à moi"  # spaces, accents and an apostrophe, for real trainers too


def at_most(size: int) -> Callable[[], None]:
    """Let a process write no file larger than so many bytes: like a full disk, and for this no one needs to be root."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.fixture
def root(tmp_path: Path, models: Path, model_folder: str) -> Root:
    """A root whose embedded model is made already."""
    root = Root(tmp_path / NAME)
    root.path.mkdir()
    root.models.symlink_to(models)
    return root


@pytest.fixture(scope="session")
def own_mounts() -> list[str]:
    """How to run a shell that can mount what nobody else sees."""
    for options in ("-m", "-rm"):
        line = ["unshare", options, "sh", "-c"]
        try:
            tried = subprocess.run([*line, "mount -t tmpfs -o size=64k tmpfs /mnt"], capture_output=True)
        except FileNotFoundError:
            break
        if tried.returncode == 0:
            return line
    pytest.skip("mounts of one's own are not allowed here (unshare -m)")


def hidden(root: Root) -> list[str]:
    """What an interrupted write may leave beside its file."""
    return [str(path.relative_to(root.path)) for path in root.path.rglob(".*")]


@pytest.mark.parametrize(
    ("seeds", "size", "file"),
    [("1", 0, "sweeps/s/submitter"), ("4", 600, "sweeps/s/ledger.jsonl"), ("1", 600, "recipe.yaml")],
)
def test_a_disk_that_is_full_when_a_sweep_is_submitted(
    root: Root, small: str, command: Command, environment: dict[str, str], seeds: str, size: int, file: str
) -> None:
    line = command("ablate", small, "--seeds", seeds, "--name", "s", "--root", str(root.path))
    done = subprocess.run(line, env=environment, preexec_fn=at_most(size), capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"rlsweep: {root.path}/") and last.endswith(f"{file}: file too large")
    assert hidden(root) == [] and not list(root.path.rglob("attempts"))
    line[line.index("ablate")] = "plan"
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and f"{seeds} to submit" in done.stderr


def trainer(run: RunFolder, environment: dict[str, str], size: int | None = None) -> "subprocess.CompletedProcess[str]":
    """The real trainer on a run, with as much disk as it may have."""
    return subprocess.run(
        [sys.executable, "-m", "rlsweep.train", str(run.path)],
        env=environment,
        preexec_fn=None if size is None else at_most(size),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_disk_that_is_full_when_a_checkpoint_is_written(
    root: Root, undisturbed: Root, keys: list[str], environment: dict[str, str], ends_as: Callable[..., bool]
) -> None:
    """The weights still fit, the optimizer's state does not: of that, PyTorch alone would only say `unexpected pos`.

    At a path in ASCII: others it doesn't open itself.
    """
    plain = Root(root.path.with_name("plain"))
    plain.path.mkdir()
    plain.models.symlink_to(root.models.resolve())
    run = plain.run(keys[0])
    whole = checkpoints.newest(undisturbed.run(run.key))
    assert whole is not None
    weights, optimizer = whole.model / "model.safetensors", whole.resume / "optimizer.pt"
    size = (weights.stat().st_size + optimizer.stat().st_size) // 2
    run.path.mkdir(parents=True)
    shutil.copy(undisturbed.run(run.key).recipe, run.recipe)
    done = trainer(run, environment, size)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    assert done.stdout.splitlines()[-1] == "rlsweep: file too large"
    ended = outcome.read(run)
    assert ended is not None and (ended.state, ended.step, ended.reason) == ("failed", 0, "file too large")
    assert [row["step"] for row in read_rows(run.journal)] == [0, 1, 2, 3]
    assert checkpoints.every(run) == [] and hidden(plain) == []
    done = trainer(run, environment)
    assert done.returncode == 0, done.stdout
    assert ends_as(run)


def test_a_disk_that_is_full_when_the_journal_grows(
    root: Root, undisturbed: Root, keys: list[str], environment: dict[str, str]
) -> None:
    run = root.run(keys[0])
    shutil.copytree(undisturbed.run(run.key).path, run.path)
    run.recipe.write_text(run.recipe.read_text().replace("steps: 8\n", "steps: 10\n"))
    before = run.journal.read_bytes()
    done = trainer(run, environment, len(before) + 300)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    assert done.stdout.splitlines()[-1] == f"rlsweep: {run.journal}: file too large"
    ended = outcome.read(run)
    assert ended is not None and (ended.state, ended.step) == ("failed", 8)
    assert run.journal.read_bytes() == before and [each.step for each in checkpoints.every(run)] == [8]
    done = trainer(run, environment)
    assert done.returncode == 0, done.stdout
    assert run.journal.read_bytes().startswith(before)
    assert [row["step"] for row in read_rows(run.journal) if row["kind"] == "step"] == list(range(1, 11))


def test_a_disk_on_which_not_even_the_outcome_fits(
    root: Root, undisturbed: Root, keys: list[str], environment: dict[str, str]
) -> None:
    run = root.run(keys[0])
    run.path.mkdir(parents=True)
    shutil.copy(undisturbed.run(run.key).recipe, run.recipe)
    done = trainer(run, environment, 10)
    assert done.returncode == 1 and outcome.read(run) is None
    assert done.stdout == f"rlsweep: {run.attempts}/0001/process.json: file too large\n"


FULL = """
set -e
for each in "0 16k" "1 160k" "2 2m"; do
    set -- $each
    eval key=\\$KEY$1
    mount -t tmpfs -o size=$2 tmpfs "$ROOT/runs/$key"
done
sh -c "$ABLATE" 2>"$OUT/first" || echo $? >"$OUT/code"
cp -r "$ROOT/runs" "$OUT/full"
for key in $KEY0 $KEY1 $KEY2; do mount -o remount,size=64m "$ROOT/runs/$key"; done
sh -c "$ABLATE" 2>"$OUT/second"
cp -r "$ROOT/runs" "$OUT/whole"
"""


def test_disks_that_fill_up_fail_their_runs_alone_and_with_space_they_end_as_if_nothing_had_been(
    root: Root,
    tmp_path: Path,
    small: str,
    keys: list[str],
    command: Command,
    environment: dict[str, str],
    own_mounts: list[str],
    ends_as: Callable[..., bool],
) -> None:
    """Of four runs the first has no room for its small files, the second none for a checkpoint, the third only for
    the first checkpoint; the fourth has all it needs."""
    out = tmp_path / "out"
    out.mkdir()
    for key in keys[:3]:
        root.run(key).path.mkdir(parents=True)
    line = command("ablate", small, "--seeds", "4", "--name", "s", "--root", str(root.path))
    given = {f"KEY{number}": key for number, key in enumerate(keys)}
    given |= {"ROOT": str(root.path), "OUT": str(out), "ABLATE": " ".join(f"'{quoted(word)}'" for word in line)}
    done = subprocess.run([*own_mounts, FULL], env={**environment, **given}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + (out / "first").read_text()
    assert (out / "code").read_text() == "3\n"
    first = (out / "first").read_text()
    full = Root(out).path / "full"
    assert "Traceback" not in first and not [
        path for path in full.rglob("log.txt") if b"Traceback" in path.read_bytes()
    ]
    for key in keys[:3]:
        assert first.count(f"\nrun {key} (") == 1
        told = first.partition(f"\nrun {key} (")[2].partition("\n  see: ")[0]
        assert "no space left on device" in told
    assert f"\nrun {keys[3]} (" not in first and ends_as(RunFolder(full / keys[3]))
    reached = [[each.step for each in checkpoints.every(RunFolder(full / key))] for key in keys]
    assert reached == [[], [], [3], [8]]
    for key in keys[1:3]:
        ended = outcome.read(RunFolder(full / key))
        assert ended is not None and ended.state == "failed" and "no space left on device" in ended.reason
        steps = [row["step"] for row in read_rows(RunFolder(full / key).journal) if row["kind"] == "step"]
        assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 3
    assert "sweep s: 4 finished" in (out / "second").read_text()
    assert all(ends_as(RunFolder(out / "whole" / key)) for key in keys)


def quoted(word: str) -> str:
    """A word between single quotes for the shell."""
    return word.replace("'", "'\\''")


READ_ONLY = 'mount --bind "$ROOT" "$ROOT" && mount -o remount,bind,ro "$ROOT" && exec "$@"'


def test_a_read_only_root_can_be_read_and_is_refused_before_anything_starts(
    tmp_path: Path,
    undisturbed: Root,
    small: str,
    command: Command,
    environment: dict[str, str],
    own_mounts: list[str],
) -> None:
    path = tmp_path / NAME
    shutil.copytree(undisturbed.path, path, symlinks=True)

    def call(*arguments: str, root: Path = path) -> "subprocess.CompletedProcess[str]":
        line = [*own_mounts, READ_ONLY, "sh", *command(*arguments, "--root", str(root))]
        return subprocess.run(line, env={**environment, "ROOT": str(path)}, capture_output=True, text=True)

    for more in (path, path / "below"):
        done = call("ablate", small, "--seeds", "5", root=more)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1] == (
            f"rlsweep: the root {more} can't be written to ({path} is on a read-only file system); "
            "choose another with --root"
        )
    done = call("plan", small, "--seeds", "5")
    assert done.returncode == 0 and "1 to submit, 4 to skip" in done.stderr
    done = call("status")
    assert done.returncode == 0 and "4 finished" in done.stderr
    done = subprocess.run(
        [*own_mounts, READ_ONLY, "sh", sys.executable, "-m", "rlsweep", "sync", "--root", str(path)],
        env={**environment, "ROOT": str(path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"rlsweep: {path}/mlflow.sync: read-only file system\n"


ANOTHER_USER = """
import os, sys
import rlsweep.launch.local, rlsweep.launch.display, rlsweep.launch.status, rlsweep.launch.submit
from rlsweep.cli import main
arguments = sys.argv[1:]
try:
    main(["plan", *arguments])
except SystemExit as planned:
    assert not planned.code
os.setgid(65534), os.setuid(65534)
main(["ablate", *arguments])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_root_of_another_user_is_refused(environment: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # others may look, but not write
        root = Path(folder) / NAME
        line = [sys.executable, "-c", ANOTHER_USER, "scalerl", "--scale", "tiny", "--root", str(root)]
        done = subprocess.run(line, env=environment, capture_output=True, text=True)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1] == (
            f"rlsweep: the root {root} can't be written to (no permission in {folder}); choose another with --root"
        )
        assert not root.exists()


def test_three_commands_at_once_train_each_run_once(
    root: Root, small: str, keys: list[str], command: Command, environment: dict[str, str], ends_as: Callable[..., bool]
) -> None:
    """Two of the same sweep, of which one gives way, and one of a sweep that shares its runs and waits for them."""

    def ablate(name: str) -> "subprocess.Popen[str]":
        line = command("ablate", small, "--seeds", "2", "--name", name, "--root", str(root.path))
        return subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    first, second, other = ablate("s"), ablate("s"), ablate("t")
    said = {process: process.communicate()[1] for process in (first, second, other)}
    assert not any("Traceback" in text for text in said.values())
    refused, worked = sorted((first, second), key=lambda process: -process.returncode)
    assert (refused.returncode, worked.returncode, other.returncode) == (1, 0, 0)
    assert f"rlsweep: sweep s in {root.path} is being worked on by pid {worked.pid} on host " in said[refused]
    assert "sweep s: 2 finished" in said[worked] and "sweep t: 2 finished" in said[other]
    for key in keys[:2]:
        assert [each.number for each in attempts.every(root.run(key))] == [1] and ends_as(root.run(key))
    for name in "st":
        assert [intent.run_key for intent in ledger.wanted(root.sweep(name))] == keys[:2]
