import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import rlsweep.track
from rlsweep.cli import main
from rlsweep.launch import local

FAKE = Path(__file__).parent.parent / "launch" / "fake_trainer.py"
Call = Callable[..., Result]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root, not made, whose runs are trained by the fake trainer and go to no MLflow."""
    path = tmp_path / "dossier à moi"
    monkeypatch.setenv("RLSWEEP_ROOT", str(path))
    monkeypatch.setattr(local, "TRAINER", (sys.executable, str(FAKE)))
    monkeypatch.setattr(local, "_FOLLOW_S", 0.1)
    monkeypatch.setattr(rlsweep.track, "sync", lambda root, name, say: say(f"synced {name}"))
    return path


@pytest.fixture
def call() -> Call:
    """Call rlsweep in this process; stdout is no terminal."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments)

    return run


@pytest.fixture
def behave(root: Path) -> Callable[[str], None]:
    """Tell the fake trainer how to behave."""

    def tell(text: str) -> None:
        root.mkdir(parents=True, exist_ok=True)
        (root / "behaviour").write_text(text)

    return tell
