import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsweep.launch import local
from rlsweep.store.layout import Root
from rlsweep.sweep.expand import Sweep, expand

FAKE = (sys.executable, str(Path(__file__).with_name("fake_trainer.py")))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """A root whose runs are trained by the fake trainer."""
    monkeypatch.setattr(local, "TRAINER", FAKE)
    monkeypatch.setattr(local, "_FOLLOW_S", 0.1)
    return Root(tmp_path / "dossier à moi")


@pytest.fixture
def sweep() -> Callable[..., Sweep]:
    """A small sweep: ScaleRL at the tiny scale, two losses, so many steps."""

    def make(steps: int = 4, vary: str = "loss=cispo,dapo", seeds: str | None = None) -> Sweep:
        return expand("scalerl", scale="tiny", overrides=[f"budget.steps={steps}"], vary=[vary], seeds=seeds, name="s")

    return make


@pytest.fixture
def behave(root: Root) -> Callable[[str], None]:
    """Tell the fake trainer how to behave."""

    def tell(text: str) -> None:
        root.path.mkdir(parents=True, exist_ok=True)
        (root.path / "behaviour").write_text(text)

    return tell


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Put a shell script under the name of a command first on the path; the file that gets a line for each call."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(name: str, text: str) -> Path:
        calls = tmp_path / "calls.txt"
        calls.touch()
        (folder / name).write_text(f"#!/bin/bash\necho {name} \"$@\" >> '{calls}'\n{text}\n")
        (folder / name).chmod(0o755)
        return calls

    return make
