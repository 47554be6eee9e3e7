import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlsweep.errors import UsageError
from rlsweep.law.fit import WEAK_WIDTH
from rlsweep.law.plan import TARGET_WIDTH
from rlsweep.report.build import build
from rlsweep.report.data import to_data
from rlsweep.report.html import to_html
from rlsweep.report.markdown import to_markdown
from rlsweep.report.terminal import verdicts
from rlsweep.store import attempts, ledger
from rlsweep.store.files import read_json, write_json
from rlsweep.store.layout import Root, SweepFolder

Make = Callable[..., SweepFolder]


def test_variants_are_pooled_and_compared_with_the_base(written: Any) -> None:
    base, dapo, gspo, other = written.report.variants
    assert written.report.base == "base"
    assert written.report.unit == "flops"
    assert (base.seeds, base.points, base.comparison) == (2, 62, None)
    assert base.fit.A.low < 0.8 < base.fit.A.high
    assert dapo.comparison.base == "base"
    assert dapo.comparison.difference.high < 0
    assert gspo.verdict == "not identified"
    assert any(flag.startswith("Fitted up to 2.00e11 FLOPs") for flag in gspo.flags)
    assert other.incomparable == ("task.type",)
    assert other.comparison is None
    assert any("not comparable" in flag for flag in other.flags)
    assert any(flag.startswith("One seed") for flag in other.flags)
    assert any("diverged at step 110: a|b." in flag for flag in other.flags)


def test_device_hours_where_every_run_that_began_had_accelerators(tmp_path: Path, make_sweep: Make, fake: Any) -> None:
    gpu, cpu, waiting = fake(points=2, seeds=(0,), device=("cuda", "H200")), fake(points=2, seeds=(0,)), fake(points=0)
    make_sweep(Root(tmp_path), "s", {"base": gpu, "a=1": cpu})
    assert build(Root(tmp_path), "s").unit == "flops"
    report = build(Root(tmp_path), "s", unit="device_hours")
    assert any("unlike devices" in flag for flag in report.variants[1].flags)
    assert build(Root(tmp_path), "s", unit="steps").unit == "steps"
    make_sweep(Root(tmp_path), "t", {"base": gpu, "a=1": waiting})
    assert build(Root(tmp_path), "t").unit == "device_hours"


def test_what_every_attempt_was_made_with_is_told(tmp_path: Path, make_sweep: Make, fake: Any) -> None:
    root = Root(tmp_path)
    make_sweep(root, "s", {"base": fake(points=2, seeds=(0,))})
    run = root.run(ledger.wanted(root.sweep("s"))[0].run_key)
    newest = read_json(run.provenance)
    write_json(attempts.claim(run).provenance, {**newest, "git": {"commit": "b" * 40}, "packages": {"torch": "1"}})
    write_json(attempts.claim(run).provenance, newest)
    report = build(root, "s")
    flag = f"Seed 0 went on with another commit ({'b' * 40}, then {'a' * 40}) and another torch (1, then 2)."
    assert flag in report.variants[0].flags
    assert f"torch 1 and 2, commit {'a' * 40}, commit {'b' * 40}" == dict(report.checklist)["Software of the runs"]


@pytest.mark.parametrize(
    ("variants", "base"),
    [
        ({"a=1": {"a": 1}, "base": {}}, "base"),
        ({"a=1": {"a": 1}, "a=2": {}}, "a=2"),
        ({"a=1": {"a": 1}, "a=2": {"a": 2}}, "a=1"),
    ],
)
def test_the_base_is_what_differs_in_nothing(
    tmp_path: Path, make_sweep: Make, fake: Any, variants: dict[str, dict[str, Any]], base: str
) -> None:
    root = Root(tmp_path)
    make_sweep(root, "s", {name: fake(points=0, difference=each) for name, each in variants.items()})
    assert build(root, "s").base == base


def test_a_sweep_without_any_evaluation_says_so(tmp_path: Path, make_sweep: Make, fake: Any) -> None:
    root = Root(tmp_path)
    make_sweep(root, "s", {"base": fake(points=0), "a=1": fake(points=0, difference={"a": 1})})
    report = build(root, "s")
    assert [(row.seeds, row.points, row.fit, row.verdict) for row in report.variants] == [
        (0, 0, None, "not identified")
    ] * 2
    assert "nothing to fit" in to_html(report)
    assert "4 runs, all waiting" in to_markdown(report)


@pytest.mark.parametrize("points", [1, 2])
def test_a_single_point_and_two(tmp_path: Path, make_sweep: Make, fake: Any, points: int) -> None:
    root = Root(tmp_path)
    make_sweep(root, "s", {"base": fake(points=points, seeds=(0,))})
    row = build(root, "s").variants[0]
    assert (row.seeds, row.points, row.verdict) == (1, points, "not identified")
    assert row.pass_rate is not None
    assert (row.fit is None) == (points == 1)
    assert "not identified" in to_html(build(root, "s"))


def test_a_collapsed_run_is_not_believed(tmp_path: Path, make_sweep: Make, fake: Any) -> None:
    """Its law has no number anywhere, nothing is compared with it, and each face of the report says why."""
    root = Root(tmp_path)
    folder = make_sweep(root, "s", {"base": fake(points=31, end=1e12), "a=1": fake(points=31, end=1e12)})
    for each in ledger.wanted(folder):
        journal = root.run(each.run_key).journal
        rows = [json.loads(line) for line in journal.read_text().splitlines()]
        if each.variant == "a=1":
            for row in rows:
                if row["kind"] == "evaluation" and row["step"] >= 200:
                    row["counts"] = [0] * len(row["counts"])
        journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = build(root, "s")
    row = report.variants[1]
    assert (report.variants[0].verdict, row.verdict) == ("identified", "not identified")
    assert row.comparison is not None and row.comparison.ratio is None and not row.comparison.identified
    assert to_data(report)["recipes"][1]["A"]["estimate"] is None
    told = [flag for flag in row.flags if "not to be believed" in flag]
    assert [flag.split(":")[0] for flag in told] == ["Seed 0 collapses", "Seed 1 collapses"]
    for text in (to_html(report), to_markdown(report), "\n".join(verdicts(report, "")), str(to_data(report))):
        assert "the law only rises, so a fit through this is not to be believed" in text


def test_variants_with_the_same_evaluations_say_so(tmp_path: Path, make_sweep: Make, fake: Any) -> None:
    root = Root(tmp_path)
    folder = make_sweep(root, "s", {"base": fake(points=4), "a=1": fake(points=4), "a=2": fake(points=4)})
    keys = {(each.variant, each.seed): each.run_key for each in ledger.wanted(folder)}
    for seed in (0, 1):
        shutil.copy(root.run(keys["base", seed]).journal, root.run(keys["a=2", seed]).journal)
    found = build(root, "s").variants
    told = [[flag for flag in row.flags if flag.endswith("changed nothing in these runs.")] for row in found]
    same = "Its evaluations are those of {}, prompt for prompt (seeds 0 and 1): the difference "
    assert [[flag.removesuffix("changed nothing in these runs.") for flag in flags] for flags in told] == [
        [same.format("a=2")],
        [],
        [same.format("base")],
    ]


def test_what_differs_beyond_the_name_is_found_in_the_recipes(tmp_path: Path, make_sweep: Make, fake: Any) -> None:
    root = Root(tmp_path)
    old = fake(points=0, difference={"loss.type": "dapo"}, recipe="loss: {type: dapo}\nevaluation: {prompts: 9}\n")
    make_sweep(
        root, "s", {"base": fake(points=0, recipe="loss: {type: cispo}\nevaluation: {prompts: 5}\n"), "loss=dapo": old}
    )
    report = build(root, "s")
    assert report.base_values == {"loss.type": "cispo"}
    assert report.variants[1].incomparable == ("evaluation.prompts",)
    assert any("more than its name says: evaluation.prompts" in flag for flag in report.variants[1].flags)


def test_the_checklist_has_the_laws_thresholds(written: Any) -> None:
    told = dict(written.report.checklist)["Verdict"]
    assert [float(word.rstrip(";")) for word in told.split() if word.startswith(".")] == [TARGET_WIDTH, WEAK_WIDTH]


def test_an_unknown_sweep_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'nope' is not a sweep"):
        build(Root(tmp_path), "nope")
