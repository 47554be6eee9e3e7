"""Provenance: the code, its changes and the machine, and never a credential."""

import json
import subprocess
from pathlib import Path

import pytest

from rlsweep.train import provenance

KEYS = ["git", "packages", "python", "host", "platform", "devices", "threads", "started"]


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that we stand in, while the package lies in none."""
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "remote", "add", "origin", "https://me:s3cret@example.org/x.git")
    (tmp_path / "code.py").write_text("a = 1\n")
    _git(tmp_path, "add", "code.py")
    _git(tmp_path, "commit", "-q", "-m", "first")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(provenance, "__file__", "/nowhere/rlsweep/train/provenance.py")
    return tmp_path


def test_all_is_there_and_is_json() -> None:
    found = provenance.collect(3, "cpu")
    assert list(found) == KEYS
    assert found["threads"] == 3
    assert found["devices"]["kind"] == "cpu"
    assert found["devices"]["count"] >= 1
    assert found["packages"]["numpy"]
    assert json.loads(json.dumps(found)) == found


def test_a_clean_commit(repository: Path) -> None:
    found = provenance.collect(1, "cpu")["git"]
    assert found == {"commit": _git(repository, "rev-parse", "HEAD"), "dirty": False, "diff": ""}


def test_changes_are_recorded(repository: Path) -> None:
    (repository / "code.py").write_text("a = 2\n")
    found = provenance.collect(1, "cpu")["git"]
    assert found["dirty"] is True
    assert "-a = 1\n+a = 2\n" in found["diff"]


def test_a_new_file_makes_it_dirty(repository: Path) -> None:
    (repository / "new.py").write_text("")
    assert provenance.collect(1, "cpu")["git"]["dirty"] is True


def test_a_large_diff_is_cut_at_a_line_and_says_so(repository: Path) -> None:
    (repository / "code.py").write_text("value = 12345\n" * 50_000)
    diff = provenance.collect(1, "cpu")["git"]["diff"]
    assert len(diff) < provenance.DIFF_LIMIT + 100
    assert diff.splitlines()[-2] == "+value = 12345"
    assert diff.splitlines()[-1].startswith("[cut after ")


def test_no_credential_is_recorded(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_t0ken")
    text = json.dumps(provenance.collect(1, "cpu"))
    assert "s3cret" not in text
    assert "hf_t0ken" not in text


def test_the_repository_that_tracks_the_package_comes_first(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "__file__", str(repository / "code.py"))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    assert provenance.collect(1, "cpu")["git"]["commit"] == _git(repository, "rev-parse", "HEAD")
    # Installed inside a repository that doesn't track it, as in an environment: not that repository's code.
    monkeypatch.setattr(provenance, "__file__", str(repository / "untracked.py"))
    assert provenance.collect(1, "cpu")["git"]["commit"] is None


@pytest.mark.parametrize("case", ["no repository", "no commit", "no git"])
def test_without_git_there_is_nothing_to_say(
    tmp_path: Path,
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
) -> None:
    empty = tmp_path_factory.mktemp("empty")
    if case == "no commit":
        _git(empty, "init", "-q")
    if case == "no git":
        monkeypatch.setenv("PATH", str(empty))
    monkeypatch.chdir(repository if case == "no git" else empty)
    assert provenance.collect(1, "cpu")["git"] == {"commit": None, "dirty": None, "diff": None}
