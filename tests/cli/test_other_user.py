"""A root of another user: all that reads works, all that would change it is refused, and nothing in it changes."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rlsweep.store.layout import Root

Call = Callable[..., Result]
NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
CHANGING = [
    *(("cancel", "0"), ("cancel", "--sweep", "small"), ("gc",), ("sync",)),
    *(("fetch", "scalerl", "--scale", "tiny"), ("cluster", "probe", "test")),
]


@pytest.fixture
def theirs(undisturbed: Root, small: str) -> Iterator[Root]:
    """A root with four finished runs, and the recipe beside it, that everybody may read."""
    with tempfile.TemporaryDirectory() as folder:
        root = Root(Path(folder) / "l'été à nous")
        shutil.copytree(undisturbed.path, root.path, symlinks=True)
        root.models.unlink()  # a link into a folder of ours alone
        root.models.mkdir()
        shutil.copy(small, Path(folder) / "small.yaml")
        for path in (root.path.parent, root.path):
            path.chmod(0o755)
        yield root


@pytest.fixture
def nobody() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Call rlsweep as a user who owns nothing."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    try:
        subprocess.run([*AS_NOBODY, sys.executable, "-c", "import rlsweep"], check=True, capture_output=True, cwd="/")
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"another user can't run this python: {error}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RLSWEEP", "MLFLOW"))}

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        with tempfile.TemporaryDirectory() as home:
            os.chown(home, NOBODY, NOBODY)
            return subprocess.run(
                [*AS_NOBODY, sys.executable, "-m", "rlsweep", *arguments],
                env={**kept, "HOME": home, "MPLCONFIGDIR": home},
                capture_output=True,
                text=True,
                cwd="/",
            )

    return run


def contents(root: Root) -> dict[str, tuple[int, int]]:
    """Every file and folder with its size and when it was changed last."""
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in [root.path, *root.path.rglob("*")]}


def test_what_reads_works_on_another_users_root_and_changes_nothing(theirs: Root, nobody: Callable[..., Any]) -> None:
    before = contents(theirs)
    recipe = str(theirs.path.parent / "small.yaml")
    for arguments, told in {
        ("status", "--check"): "4 finished",
        ("logs", "0"): "attempt 1 of 1",
        ("samples", "seed=1"): "evaluation of step 8",
        ("plan", recipe, "--seeds", "4"): "4 to skip",
        ("gc", "--dry-run"): "could be freed",
        ("report",): "nothing was written: the root ",
        ("report", "--json"): "nothing was written: the root ",
    }.items():
        done = nobody(*arguments, "--root", str(theirs.path))
        assert done.returncode == 0 and done.stdout and told in done.stderr, (arguments, done.stdout, done.stderr)
    for arguments in [("ablate", recipe, "--seeds", "5"), *CHANGING]:
        done = nobody(*arguments, "--root", str(theirs.path))
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert f"rlsweep: the root {theirs.path} belongs to root: others can read it" in done.stderr.splitlines()[-1]
    assert contents(theirs) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a root to another user")
def test_not_even_who_may_write_everywhere_changes_it(theirs: Root, small: str, call: Call) -> None:
    for path in [theirs.path, *theirs.path.rglob("*")]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    before = contents(theirs)
    for arguments in [("ablate", small, "--seeds", "5"), *CHANGING]:
        result = call(*arguments, "--root", str(theirs.path))
        assert result.exit_code == 2 and " belongs to nobody: others can read it" in result.stderr
    result = call("report", "--root", str(theirs.path))
    assert result.exit_code == 0 and "nothing was written: the root " in result.stderr
    assert contents(theirs) == before
