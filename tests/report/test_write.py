"""The four faces of one report: page, Markdown, JSON and terminal."""

import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlsweep.cli import main
from rlsweep.report import terminal
from rlsweep.report.build import build
from rlsweep.report.cells import cells
from rlsweep.report.numbers import number, one_line, rate
from rlsweep.report.words import answer, sentence, standings
from rlsweep.report.write import write

QUANTITIES = ("pass_rate", "A", "B", "C_mid", "R0")


class Page(HTMLParser):
    """Tags with their attributes, ids and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._hidden = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._hidden = tag == "style"

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_json_has_the_schema_and_nothing_else(written: Any, hostile: str) -> None:
    found = json.loads(written.text("json"), parse_constant=lambda word: pytest.fail(word))
    assert list(found) == ["sweep", "compute_unit", "recipes"]
    assert (found["sweep"], found["compute_unit"]) == ("study", "flops")
    assert [entry["name"] for entry in found["recipes"]] == ["base", "loss=dapo", "loss=gspo", hostile]
    for entry in found["recipes"]:
        assert list(entry) == [
            "name",
            "difference",
            "seeds",
            "points",
            "pass_rate",
            "verdict",
            "A",
            "B",
            "C_mid",
            "R0",
            "flags",
        ]
        assert entry["verdict"] in ("identified", "weak", "not identified")
        for name in QUANTITIES:
            assert list(entry[name]) == ["estimate", "low", "high"]
            assert entry[name]["low"] <= entry[name]["high"]
            unknown = name != "pass_rate" and entry["verdict"] == "not identified"
            assert (entry[name]["estimate"] is None) == unknown
    assert [entry["seeds"] for entry in found["recipes"]] == [2, 2, 2, 1]


def test_page_markdown_and_terminal_show_the_numbers_of_the_json(written: Any) -> None:
    page, markdown = Page(written.text("html")).text, written.text("md")
    plain = "\n".join(terminal.rows(written.report))
    for entry in json.loads(written.text("json"))["recipes"]:
        for name in ("pass_rate", "A", "B", "C_mid"):
            write_number = rate if name in ("pass_rate", "A") else number
            found = entry[name]
            if found["estimate"] is None and name != "A":
                continue
            interval = f"[{write_number(found['low'])}, {write_number(found['high'])}]"
            for text in (page, markdown, plain):
                assert interval in text
                assert found["estimate"] is None or write_number(found["estimate"]) in text


def test_no_number_is_given_for_what_is_not_identified(written: Any) -> None:
    gspo = written.report.variants[2]
    assert [cell.value for cell in cells(gspo)[3:]] == ["not identified"] * 3
    assert sentence(gspo, written.report).startswith("loss=gspo: A not identified (interval ")
    line = next(line for line in written.text("md").splitlines() if line.startswith("| loss=gspo"))
    for name in ("A", "B", "C_mid"):
        shown = (rate if name == "A" else number)(getattr(gspo.fit, name).estimate)
        assert shown not in line


def test_words_say_who_is_better_and_what_is_not_compared(written: Any, hostile: str) -> None:
    _, dapo, _, other = (sentence(row, written.report) for row in written.report.variants)
    assert re.match(r"loss=dapo: A = \.\d{3} \[\.\d{3}, \.\d{3}\], identified; a lower ceiling than base \(-\.", dapo)
    assert other.endswith("; not comparable with base")
    assert f"measured differently, not compared: {one_line(hostile)}" in standings(written.report)
    assert one_line(hostile) not in answer(written.report)
    assert "1 diverged and 6 finished" in answer(written.report)


def test_the_page_is_whole_by_itself(written: Any) -> None:
    text = written.text("html")
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                assert str(value).startswith("#"), (tag, name, value)
    style = "".join(re.findall(r"<style>(.*?)</style>", text, flags=re.DOTALL))
    assert "url(" not in style.replace("url(#", "")
    assert "@import" not in style
    hosts = set(re.findall(r"https?://[^\s\"'<)]*", re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)))
    assert hosts == {"http://x.example&gt;"}  # as text, in a hostile value
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:url\(#|xlink:href="#)([^")]*)', text))
    assert used <= set(ids)
    assert text.count("<svg") == 1 + 4 + 2


def test_names_have_no_power(written: Any, hostile: str) -> None:
    text, markdown = written.text("html"), written.text("md")
    assert "<script" not in text
    assert one_line(hostile) in Page(text).text
    assert not re.search(r"<(?!!--)", markdown)
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    columns = [len(re.findall(r"(?<!\\)\|", line)) for line in rows]
    assert set(columns) == {7, 12, 5}  # verdicts, runs, differences: no name adds a column
    assert "\\`" in markdown
    assert not re.search(r"(?<!\\)\]\(", markdown)
    assert len(list(terminal.rows(written.report))) == 5


def test_a_hostile_name_is_one_cell_of_status_and_of_the_terminals_report(written: Any, hostile: str) -> None:
    result = CliRunner().invoke(main, ["status", "--root", str(written.root.path)])
    lines = result.stdout.splitlines()
    assert len(lines) == 7 and {line.count("\t") for line in lines} == {13}
    assert sum(line.split("\t")[2] == one_line(hostile) for line in lines) == 1
    found = json.loads(CliRunner().invoke(main, ["status", "--json", "--root", str(written.root.path)]).stdout)
    assert [run["variant"] for run in found["runs"]].count(hostile) == 1
    told = list(terminal.verdicts(written.report, "page"))
    assert all(line.isprintable() for line in told) and any(one_line(hostile) in line for line in told)


def test_no_run_is_dropped_and_keys_are_whole(written: Any) -> None:
    text = Page(written.text("html")).text
    runs = [run for row in written.report.variants for run in row.runs]
    assert len(runs) == 7
    for run in runs:
        assert run.key in text
        assert run.key in written.text("md")
    assert "diverged: a|b" in text


def test_the_same_root_gives_the_same_bytes(written: Any) -> None:
    before = {path.name: path.read_bytes() for path in written.folder.reports.iterdir()}
    assert set(before) == {"report.html", "report.md", "report.json"}
    write(build(written.root, "study"), written.folder)
    assert {path.name: path.read_bytes() for path in written.folder.reports.iterdir()} == before


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_folds_and_cuts_nothing(written: Any, width: int) -> None:
    from rich.console import Console

    out = io.StringIO()
    terminal.show(written.report, "report: /a/long/path/" + "x" * 80, Console(file=out, width=width))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= width for line in lines[:-1])
    assert lines[-1] == "report: /a/long/path/" + "x" * 80
    assert "…" not in out.getvalue()
    folded = re.sub(r"\s", "", out.getvalue())
    for row in written.report.variants:
        assert re.sub(r"\s", "", sentence(row, written.report)) in folded
        assert all(word in out.getvalue() for cell in cells(row)[1:] for word in str(cell).split())


def test_no_color_means_no_escape_at_all(
    written: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the captured stdout for a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal.show(written.report, "page")
    assert "\x1b" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.show(written.report, "page")
    assert "\x1b" not in capsys.readouterr().out


def test_in_a_pipe_rows_alone_go_to_stdout(written: Any) -> None:
    result = CliRunner().invoke(main, ["report", "--root", str(written.root.path)])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == list(terminal.rows(written.report))
    assert all(line.count("\t") == 5 for line in result.stdout.splitlines())
    assert "\x1b" not in result.output
    assert result.stderr.splitlines()[-1] == f"report: {written.folder.reports / 'report.html'}"
    assert sentence(written.report.variants[0], written.report) in result.stderr


def test_json_alone_goes_to_stdout(written: Any) -> None:
    result = CliRunner().invoke(main, ["report", "study", "--root", str(written.root.path), "--json"])
    assert result.stdout == written.text("json")
    assert result.stderr == ""


def test_an_axis_changes_the_unit(tmp_path: Path, make_sweep: Callable[..., Any], fake: Any) -> None:
    from rlsweep.store.layout import Root

    make_sweep(Root(tmp_path), "s", {"base": fake(points=3, seeds=(0,))})
    result = CliRunner().invoke(main, ["report", "--root", str(tmp_path), "--axis", "steps", "--json"])
    assert json.loads(result.stdout)["compute_unit"] == "steps"
    assert CliRunner().invoke(main, ["report", "--root", str(tmp_path), "--axis", "hours"]).exit_code == 2
    assert CliRunner().invoke(main, ["report", "other", "--root", str(tmp_path)]).exit_code == 2


def test_many_variants_stay_apart(tmp_path: Path, make_sweep: Callable[..., Any], fake: Any) -> None:
    from rlsweep.report.style import looks
    from rlsweep.store.layout import Root

    found = looks(["base", *(f"v{index}" for index in range(42))], "base")
    assert len({(look.colour, look.marker) for look in found.values()}) == 43
    assert found["base"].marker == "o"
    root = Root(tmp_path)
    variants = {name: fake(points=3, seeds=(0,)) for name in list(found)[:6]}
    folder = make_sweep(root, "s", variants)
    text = write(build(root, "s"), folder).read_text(encoding="utf-8")
    assert text.count("<svg") == 1 + 6 + 2
    assert all(Page(text).text.count(name) > 5 for name in variants)


def test_a_root_that_cant_be_written_is_shown_all_the_same(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("rlsweep.report.write.write_text", refuse, raising=False)
    monkeypatch.setattr("rlsweep.report.write.write_json", refuse, raising=False)
    result = CliRunner().invoke(main, ["report", "--root", str(written.root.path)])
    assert result.exit_code == 0 and result.stdout.count("\n") == 1 + len(written.report.variants)
    assert "nothing was written: " in result.stderr and "permission denied" in result.stderr
