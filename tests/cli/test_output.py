import pytest

from rlsweep.cli import output
from rlsweep.cli.output import layout, print_rows

HEAD = ("run", "variant", "reason")
ROWS = [
    ("0123456789ab", "base", "new"),
    ("ba9876543210", "loss=dapo", "failed (exit code 1: ValueError: no such thing); from the start"),
]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def test_columns_are_aligned_and_the_widest_are_folded() -> None:
    assert layout(HEAD, ROWS, 60) == [
        "run           variant    reason",
        "0123456789ab  base       new",
        "ba9876543210  loss=dapo  failed (exit code 1: ValueError: no",
        "                         such thing); from the start",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_printed_moves_no_cursor_and_adds_no_row(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "200")
    print_rows(HEAD, [("0123456789ab", "a=\x1b[31m<b>|`x`\n\tc\x07\u202e", "new\r\nline")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + terminal and all(line.replace("\t", "").isprintable() for line in lines)
    assert "a= [31m<b>|`x` c" in lines[-1] and "new line" in lines[-1]
    assert lines[-1].count("\t") == (0 if terminal else 2)


def test_folding_keeps_every_character() -> None:
    rows = [("0123456789ab", "curriculum.no_positive_resampling=null", "a reason in words")]
    lines = layout(HEAD, rows, 46)
    assert all(len(line) <= 46 for line in lines) and len(lines) > 3
    assert "".join(line[14:29].strip() for line in lines[1:]) == rows[0][1]


def test_names_of_variants_break_after_their_commas() -> None:
    rows = [("0123456789ab", "loss=dapo,optimizer.lr=0.0003,seed=0", "because")]
    lines = layout(HEAD, rows, 14 + 22 + 2 + 7)
    assert [line[14:36].strip() for line in lines[1:]] == ["loss=dapo,", "optimizer.lr=0.0003,", "seed=0"]


def test_on_a_narrow_terminal_each_cell_has_a_line_and_none_is_cut() -> None:
    lines = layout(HEAD, ROWS, 30)
    assert lines[:4] == ["run      0123456789ab", "variant  base", "reason   new", ""]
    assert lines[-1] == "reason   " + ROWS[1][2]


@pytest.mark.parametrize("width", [1, 20, 48, 49, 50, 80, 500])
def test_ids_stand_whole_at_any_width(width: int) -> None:
    lines = layout(HEAD, ROWS, width)
    assert all(any(row[0] in line for line in lines) for row in ROWS)


def test_colour_is_left_out_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert layout(HEAD, [], 80) == []
    assert "\x1b" not in "".join(layout(HEAD, ROWS, 80))
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" in layout(HEAD, ROWS, 80)[0] and "\x1b" not in "".join(layout(HEAD, ROWS, 80)[1:])
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in "".join(layout(HEAD, ROWS, 80))
