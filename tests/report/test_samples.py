"""What a report shows of the samples: a few of them, powerless, and where the others are."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlsweep.report.build import build
from rlsweep.report.html import to_html
from rlsweep.report.markdown import to_markdown
from rlsweep.report.samples import shown
from rlsweep.store import attempts, samples
from rlsweep.store.layout import Root, RunFolder, SweepFolder
from rlsweep.store.samples import Sample

Make = Callable[..., SweepFolder]
RIGHT = Sample(
    20, "evaluation", 0, 0, "4rm    =", "<b>12</b>#a<eos>", "a", "a", "correct", 1.0, "stop", False, 5, [], [], None
)
WRONG = replace(RIGHT, rollout=1, response="7#b<eos>", answer="b", outcome="wrong")
CUT = replace(RIGHT, rollout=2, response="7777", answer=None, outcome="truncated", finish="length")
ATTACK = "<script>alert(1)</script>&amp;\x1b[2J\u202e{{ 7 * 7 }}</pre>"


@pytest.fixture
def root(tmp_path: Path, make_sweep: Make, fake: Any) -> Root:
    """A base with two seeds, a variant with one; without samples yet."""
    place = Root(tmp_path)
    make_sweep(place, "s", {"base": fake(points=3), "loss=dapo": fake(points=3, seeds=(0,))})
    return place


def runs(root: Root) -> list[list[RunFolder]]:
    return [[root.run(run.key) for run in row.runs] for row in build(root, "s").variants]


def put(run: RunFolder, step: int, found: list[Sample]) -> None:
    owner = attempts.newest(run)
    assert owner is not None
    samples.write(run, owner, "evaluation", step, found)


def test_one_of_each_kind_with_the_way_to_the_others(root: Root) -> None:
    (first, second), _ = runs(root)
    put(first, 10, [replace(RIGHT, response="too early")])
    put(first, 20, [replace(RIGHT, response="12#a<eos>"), RIGHT, WRONG, replace(WRONG, response="another"), CUT])
    put(second, 20, [replace(RIGHT, response="of another seed")])
    samples.write(first, attempts.newest(first), "train", 20, [replace(RIGHT, response="of training")])
    report = build(root, "s")
    found = report.variants[0].samples
    assert found is not None and report.variants[1].samples is None
    assert [each.response for each in found.samples] == ["12#a<eos>", "7#b<eos>", "7777"]
    assert (root.path / found.path).is_file() and not Path(found.path).is_absolute()
    assert found.command == f"rlsweep samples {first.key} --step 20"
    page, markdown = to_html(report), to_markdown(report)
    for text in ("12#a&lt;eos&gt;", "7#b&lt;eos&gt;", "7777", found.path, found.command, "no answer found"):
        assert text in page
    for text in ("too early", "of another seed", "of training", ">another<"):
        assert text not in page
    assert f"- base: `{found.command}`, in {found.path}\n" in markdown
    assert "loss=dapo: `" not in markdown and "7777" not in markdown


def test_a_rollout_of_two_kinds_is_shown_once(root: Root) -> None:
    (first, _), _ = runs(root)
    both = replace(RIGHT, interrupted=True, forced=[[0, 1]])
    put(first, 20, [both])
    found = build(root, "s").variants[0].samples
    assert found is not None and found.samples == (both,)
    put(first, 20, [both, replace(both, rollout=7)])
    found = build(root, "s").variants[0].samples
    assert found is not None and [each.rollout for each in found.samples] == [0, 7]


def test_runs_without_samples_change_nothing(root: Root) -> None:
    page, markdown = to_html(build(root, "s")), to_markdown(build(root, "s"))
    assert "What the models wrote" not in page and "What the models wrote" not in markdown
    (_, second), _ = runs(root)
    put(second, 20, [RIGHT])  # the first seed was trained by a version that wrote none
    found = build(root, "s").variants[0].samples
    assert found is not None and found.run_key == second.key


def test_damaged_samples_leave_the_report_whole(root: Root) -> None:
    (first, _), _ = runs(root)
    put(first, 20, [RIGHT])
    file = samples.every(first)[0].path
    file.write_bytes(file.read_bytes()[:-9])
    report = build(root, "s")
    assert report.variants[0].samples is not None and report.variants[0].samples.samples == ()
    assert "None that can be shown" in to_html(report) and report.variants[0].samples.command in to_markdown(report)


def test_a_models_text_has_no_power(root: Root) -> None:
    (first, _), _ = runs(root)
    put(first, 20, [replace(RIGHT, prompt=ATTACK, response=ATTACK, answer=ATTACK, reference=ATTACK)])
    page = to_html(build(root, "s"))
    assert "<script" not in page and "\x1b" not in page and "\u202e" not in page
    written = "&lt;script&gt;alert(1)&lt;/script&gt;&amp;amp;\\x1b[2J\\u202e{{ 7 * 7 }}&lt;/pre&gt;"
    assert page.count(written) == 4  # prompt, response, answer, reference
    assert len(re.findall("</pre>", page)) == 1
    assert "alert" not in to_markdown(build(root, "s"))


def test_of_a_long_text_the_middle_is_left_out() -> None:
    text = "".join(f"{number:05d}" for number in range(400))
    found = shown(text)
    assert found == text[:500] + "\n[1000 characters left out]\n" + text[-500:]
    assert shown(text[:1000]) == text[:1000]
