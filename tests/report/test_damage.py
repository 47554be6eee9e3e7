"""Reports and status where files of a run are damaged: the others' numbers stay, the file is named."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rlsweep.cli import main
from rlsweep.launch.status import status
from rlsweep.report.build import build
from rlsweep.report.data import to_data
from rlsweep.report.runs import read_run
from rlsweep.store import attempts, ledger, outcome
from rlsweep.store.layout import Root, RunFolder, SweepFolder

Make = Callable[..., SweepFolder]
LAST = 120
"""Steps of every run."""


@dataclass(frozen=True)
class Case:
    """A sweep of a base and a variant with two seeds each; what happens, happens to seed 0 of the variant."""

    root: Root
    run: RunFolder
    before: dict[str, Any]
    """The variants' entries in report.json while all was whole."""

    def call(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "--root", str(self.root.path)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, make_sweep: Make, fake: Any) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("whole")
    recipe = "loss: {type: cispo}\nseed: 0\n"
    make_sweep(Root(path), "s", {"base": fake(recipe=recipe), "a=1": fake(difference={"a": 1}, recipe=recipe)})
    report = build(Root(path), "s")
    assert not any(run.damage for row in report.variants for run in row.runs)
    return path, {entry["name"]: entry for entry in to_data(report)["recipes"]}


@pytest.fixture()
def case(tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> Case:
    shutil.copytree(whole[0], tmp_path / "root")
    root = Root(tmp_path / "root")
    wanted = next(each for each in ledger.wanted(root.sweep("s")) if (each.variant, each.seed) == ("a=1", 0))
    return Case(root, root.run(wanted.run_key), whole[1])


def replaced(name: str, content: str | bytes) -> Callable[[RunFolder], Path]:
    def damage(run: RunFolder) -> Path:
        path = run.path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return damage


def in_the_journal(change: Callable[[list[str]], list[str]]) -> Callable[[RunFolder], Path]:
    def damage(run: RunFolder) -> Path:
        run.journal.write_text("".join(change(run.journal.read_text().splitlines(keepends=True))))
        return run.journal

    return damage


def of_an_evaluation(**change: Any) -> Callable[[RunFolder], Path]:
    """The third evaluation's row, so changed; a value of None takes the entry away."""

    def damage(lines: list[str]) -> list[str]:
        row = json.loads(lines[4])
        assert row["kind"] == "evaluation" and row["step"] == 20
        lines[4] = json.dumps({key: value for key, value in {**row, **change}.items() if value is not None}) + "\n"
        return lines

    return in_the_journal(damage)


def a_folder(name: str) -> Callable[[RunFolder], Path]:
    def damage(run: RunFolder) -> Path:
        path = run.path / name
        path.unlink(missing_ok=True)
        path.mkdir()
        return path

    return damage


WITHOUT_NUMBERS = {
    "a torn line": in_the_journal(lambda lines: [*lines[:5], lines[5][:30] + "\n", *lines[6:]]),
    "no JSON": in_the_journal(lambda lines: ["\x00\x01\n", *lines]),
    "nested too deep": in_the_journal(lambda lines: [lines[0], "[" * 100_000 + "\n", *lines[1:]]),
    "a step that is a text": in_the_journal(
        lambda lines: [line.replace('"step": 20', '"step": "20"') for line in lines]
    ),
    "a metric that is a text": of_an_evaluation(metrics={"clock/flops": "many"}),
    "no clock": of_an_evaluation(metrics={"evaluation/pass_rate": 0.5}),
    "a negative clock": of_an_evaluation(metrics={"clock/flops": -1.0}),
    "no counts": of_an_evaluation(counts=None),
    "no prompt": of_an_evaluation(counts=[]),
    "counts above samples": of_an_evaluation(counts=[5] * 300),
    "no samples": of_an_evaluation(samples=0),
    "a folder": a_folder("metrics.jsonl"),
    "emptied": in_the_journal(lambda lines: []),
}
"""Nothing of the journal is used."""

OTHERWISE = {
    "provenance, half of it": replaced("provenance.json", '{"git": {"comm'),
    "provenance, a list": replaced("provenance.json", "[]"),
    "provenance, parts": replaced("provenance.json", '{"git": {"commit": "b"}, "devices": "cpu"}'),
    "provenance of an attempt": replaced("attempts/0001/provenance.json", b"\xff\xfe"),
    "provenance, a folder": a_folder("provenance.json"),
    "recipe, half of it": replaced("recipe.yaml", "loss: {type: cis"),
    "recipe, a tab": replaced("recipe.yaml", "loss:\n\ttype: cispo\n"),
    "recipe, Latin-1": replaced("recipe.yaml", "name: caf\xe9\n".encode("latin-1")),
    "recipe, a list": replaced("recipe.yaml", "- 1\n"),
    "recipe, empty": replaced("recipe.yaml", ""),
    "discarded rows": replaced("attempts/0001/discarded.jsonl", '{"kind": "step", "st\n{}\n'),
    "shortened": in_the_journal(lambda lines: lines[:9]),
    "without its last row": in_the_journal(lambda lines: lines[:-1]),
    "outcome, empty": replaced("outcome.json", ""),
    "outcome, a list": replaced("outcome.json", "[1]"),
    "outcome, unknown state": replaced("outcome.json", '{"state": "won", "step": 3, "reason": ""}'),
    "outcome, other entries": replaced("outcome.json", '{"state": "finished", "stop": 3}'),
    "outcome, a text for a step": replaced("outcome.json", '{"state": "finished", "step": "x", "reason": ""}'),
    "outcome, a text for an attempt": replaced(
        "outcome.json", '{"state": "finished", "step": 120, "reason": "", "attempt": "1"}'
    ),
    "outcome, a folder": a_folder("outcome.json"),
}
"""The journal's numbers are used as far as they go."""

SHORTER = ("shortened", "without its last row")


@pytest.mark.parametrize("kind", [*WITHOUT_NUMBERS, *OTHERWISE])
def test_the_others_keep_their_numbers_and_the_file_is_named(case: Case, kind: str) -> None:
    path = {**WITHOUT_NUMBERS, **OTHERWISE}[kind](case.run)
    report = build(case.root, "s")
    base, damaged = to_data(report)["recipes"]
    assert base == case.before["base"]
    run = report.variants[1].runs[0]
    assert run.damage and all(each.startswith(f"{path}:") and "\n" not in each for each in run.damage)
    assert [flag for flag in damaged["flags"] if "damaged" in flag] == [
        f"Seed 0 has a damaged file, {each}." for each in run.damage
    ]
    if kind in WITHOUT_NUMBERS:
        assert (damaged["seeds"], damaged["points"]) == (1, 13)
    elif kind not in SHORTER:
        used = ("seeds", "points", "A", "pass_rate")
        assert {key: damaged[key] for key in used} == {key: case.before["a=1"][key] for key in used}
    assert run.state == ("lost" if kind.startswith("outcome") else "finished")

    result = case.call("status")
    assert result.exit_code == 0 and "Traceback" not in result.output
    rows = {line.split("\t")[1]: line for line in result.stdout.splitlines()}
    assert len(rows) == 4
    if kind.startswith("outcome"):
        assert "\tlost\t" in rows[case.run.key] and str(path) in rows[case.run.key]
    elif kind == "a folder":
        assert f"rows are missing from {path}" in rows[case.run.key]


@pytest.mark.parametrize("kind", ["a torn line", "provenance, a list", "recipe, Latin-1", "outcome, empty"])
def test_the_command_warns_and_writes_all_its_files(case: Case, kind: str) -> None:
    path = {**WITHOUT_NUMBERS, **OTHERWISE}[kind](case.run)
    result = case.call("report", "--json")
    assert result.exit_code == 0 and len(json.loads(result.stdout)["recipes"]) == 2
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith(f"rlsweep: warning: {path}:")
    for ending in ("html", "md"):
        text = (case.root.sweep("s").reports / f"report.{ending}").read_text()
        assert case.run.key in text and "has a damaged file" in text


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("emptied", "ends at step 0, but the run had reached step 120; rows are missing"),
        ("shortened", "ends at step 40, but the run had reached step 120; rows are missing"),
        ("without its last row", "a finished run ends with an evaluation, the one at step 120 is missing"),
    ],
)
def test_rows_that_are_missing_are_told(case: Case, kind: str, message: str) -> None:
    {**WITHOUT_NUMBERS, **OTHERWISE}[kind](case.run)
    row = build(case.root, "s").variants[1].runs[0]
    assert row.damage == (f"{case.run.journal}: {message}",)
    assert row.step == {"emptied": LAST, "shortened": 40}.get(kind, LAST)
    told = f"rows are missing from {case.run.journal}, it ends at step"
    assert (told in case.call("status").stdout) == (kind != "without its last row")


def test_a_run_that_goes_on_misses_nothing(case: Case) -> None:
    """Neither one that was taken back to its checkpoint nor one that has failed since."""
    lines = case.run.journal.read_text().splitlines(keepends=True)
    case.run.journal.write_text("".join(lines[:9]))
    outcome.write(case.run, outcome.Outcome("failed", 40, "x"))
    assert build(case.root, "s").variants[1].runs[0].damage == ()
    outcome.write(case.run, outcome.Outcome("failed", 50, "x"))
    assert build(case.root, "s").variants[1].runs[0].damage != ()
    attempts.record_process(attempts.Attempt(case.run, 1))  # this process: it is alive
    row = build(case.root, "s").variants[1].runs[0]
    assert (row.state, row.damage) == ("running", ())
    # Taken back to step 40 after its state was looked at.
    seen = next(each for each in status(case.root.sweep("s"), case.root).runs if each.run_key == case.run.key)
    assert seen.state == "running" and read_run(case.run, replace(seen, step=60), "flops").damage == ()


def test_several_files_are_all_named(case: Case) -> None:
    paths = [
        {**WITHOUT_NUMBERS, **OTHERWISE}[kind](case.run) for kind in ("no JSON", "recipe, a tab", "outcome, empty")
    ]
    damage = build(case.root, "s").variants[1].runs[0].damage
    assert {each.split(":")[0] for each in damage} == set(map(str, paths))


def test_the_recipe_of_another_seed_stands_in(case: Case) -> None:
    """Variants are still compared by all that their recipes say."""
    case.run.recipe.write_text("loss: {type: cis")
    assert build(case.root, "s").variants[1].incomparable == ()
    case.run.recipe.unlink()
    assert build(case.root, "s").variants[1].incomparable == ()
    other = next(each for each in ledger.wanted(case.root.sweep("s")) if (each.variant, each.seed) == ("a=1", 1))
    case.root.run(other.run_key).recipe.write_text("loss: {type: cispo}\nevaluation: {prompts: 9}\n")
    assert build(case.root, "s").variants[1].incomparable == ("evaluation.prompts",)


def test_where_no_evaluation_is_left_the_command_fails(case: Case) -> None:
    for each in ledger.wanted(case.root.sweep("s")):
        case.root.run(each.run_key).journal.write_text("?\n?\n")
    result = case.call("report")
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert result.stderr.count("rlsweep: warning: ") == 4
    assert result.stderr.splitlines()[-1].startswith("rlsweep: none of the sweep's evaluations can be read")
    assert "nothing to fit" in (case.root.sweep("s").reports / "report.html").read_text()


def test_a_damaged_description_of_the_sweep_is_told(case: Case) -> None:
    case.root.sweep("s").spec.write_text("recipe: [")
    told = dict(build(case.root, "s").checklist)["Make it again"]
    assert told.startswith("rlsweep report s --axis flops; ") and str(case.root.sweep("s").spec) in told
