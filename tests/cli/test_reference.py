from pathlib import Path

import pytest

from rlsweep.cli import COMMANDS
from rlsweep.cli.reference import reference


def test_the_reference_in_the_docs_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    assert page.read_text() == reference(), "run: python -m rlsweep.cli.reference > docs/cli.md"


def test_the_reference_has_every_command_and_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = reference()
    assert all(f"## rlsweep {name}\n" in text for name in COMMANDS)
    assert all(f"## rlsweep cluster {name}\n" in text for name in ("show", "check", "probe"))
    monkeypatch.setenv("COLUMNS", "40")
    assert reference() == text
