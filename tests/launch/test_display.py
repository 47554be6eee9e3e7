import io
import sys

import pytest

from rlsweep.launch.display import Bars, Evaluated, Lines, display


def test_lines_tell_starts_ends_and_about_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.started("k", "base seed 0", 100, "attempt 1")
    for step in range(101):
        lines.progress("k", step, None if step < 5 else Evaluated(step - step % 2, step / 100))
    lines.ended("k", "finished at step 100")
    lines.close()
    told = capsys.readouterr()
    text = [line.partition(" ")[2] for line in told.err.splitlines()]
    assert told.out == "" and len(text) == 13
    assert text[0] == "k base seed 0: attempt 1" and text[1] == "k base seed 0: step 4/100, pass rate 0.050"
    assert (
        text[2] == "k base seed 0: step 10/100, pass rate 0.100" and text[-1] == "k base seed 0: finished at step 100"
    )


def test_without_a_terminal_there_are_lines() -> None:
    assert isinstance(display(), Lines)


def test_a_terminal_that_went_away_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    lines = Lines()
    lines.started("k", "base seed 0", 10, "attempt 1")
    lines.ended("k", "finished")


def test_bars_take_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    bars = Bars()
    bars.started("k", "a.b=[red]x[/red] seed 0", 10, "attempt 1")
    bars.progress("k", 5, Evaluated(4, 0.25))
    bars.ended("k", "finished at step 10")
    bars.say("[bold]done")
    bars.close()
    assert "k a.b=[red]x[/red] seed 0: finished at step 10" in terminal.getvalue()
    assert "[bold]done" in terminal.getvalue()
