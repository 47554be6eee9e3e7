import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console

from rlsweep.cli.samples import show
from rlsweep.store import attempts, ledger, samples
from rlsweep.store.layout import Root
from rlsweep.store.samples import Purpose, Sample

Call = Callable[..., Result]
KEY = "abcd11111111"


def sample(outcome: str = "correct", **change: object) -> Sample:
    base = Sample(
        step=0,
        purpose="evaluation",
        prompt_index=0,
        rollout=0,
        prompt="4rm    =",
        response="1#a<eos>",
        answer=None if outcome == "unparseable" else "a",
        reference="a",
        outcome=outcome,
        reward=1.0,
        finish="length" if outcome == "truncated" else "stop",
        interrupted=False,
        tokens=4,
        versions=[[0, 0, 4]],
        forced=[],
        advantage=None,
    )
    return replace(base, **change)


MIXED = [
    sample("correct", prompt_index=0),
    sample("wrong", prompt_index=1),
    sample("unparseable", prompt_index=2, interrupted=True, forced=[[1, 2]]),
    sample("truncated", prompt_index=3, interrupted=True, forced=[[1, 2]]),
    sample("truncated", prompt_index=4),
    sample("correct", prompt_index=5, interrupted=True, forced=[[1, 2]]),
]


def put(root: Path, purpose: Purpose, step: int, found: list[Sample], key: str = KEY) -> None:
    run = Root(root).run(key)
    run.path.mkdir(parents=True, exist_ok=True)
    written = [replace(each, step=step, purpose=purpose) for each in found]
    samples.write(run, attempts.newest(run) or attempts.claim(run), purpose, step, written)


def lines(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_by_default_the_newest_evaluation_a_line_of_json_a_rollout(root: Path, call: Call) -> None:
    for step in (0, 10):
        put(root, "evaluation", step, MIXED)
    put(root, "train", 20, MIXED)
    result = call("samples", "abcd1")
    assert lines(result) == [asdict(replace(each, step=10)) for each in MIXED]
    path = Root(root).run(KEY).samples / "evaluation-000010.jsonl"
    assert result.stderr == f"run {KEY}, evaluation of step 10: {path}\n"


def test_a_step_may_have_samples_of_both_kinds(root: Path, call: Call) -> None:
    put(root, "train", 10, MIXED[:2])
    put(root, "evaluation", 10, MIXED[2:4])
    result = call("samples", KEY, "--step", "10")
    found = [(each["purpose"], each["prompt_index"]) for each in lines(result)]
    assert found == [("train", 0), ("train", 1), ("evaluation", 2), ("evaluation", 3)]
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        f"run {KEY}, training of step 10",
        f"run {KEY}, evaluation of step 10",
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--wrong",), [1, 2]),
        (("--truncated",), [3, 4]),
        (("--interrupted",), [2, 3, 5]),
        (("--wrong", "--truncated"), [1, 2, 3, 4]),
        (("--wrong", "--interrupted"), [2]),
        (("--truncated", "--interrupted"), [3]),
        (("--wrong", "--truncated", "--interrupted"), [2, 3]),
    ],
)
def test_filters(root: Path, call: Call, options: tuple[str, ...], expected: list[int]) -> None:
    put(root, "evaluation", 0, MIXED)
    assert [each["prompt_index"] for each in lines(call("samples", KEY, *options))] == expected


def test_where_none_matches_it_is_said_aside(root: Path, call: Call) -> None:
    put(root, "evaluation", 0, MIXED[:2])
    result = call("samples", KEY, "--truncated")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "none of these 2 samples matches" in result.stderr
    result = call("samples", KEY, "--truncated", "--json")
    assert json.loads(result.stdout)["samples"] == [] and result.stderr == ""


def test_one_document_of_all_that_was_found(root: Path, call: Call) -> None:
    put(root, "evaluation", 0, MIXED)
    result = call("samples", KEY, "--wrong", "--json")
    assert result.stderr == ""
    path = Root(root).run(KEY).samples / "evaluation-000000.jsonl"
    expected = {"run_key": KEY, "paths": [str(path)], "samples": [asdict(each) for each in MIXED[1:3]]}
    assert json.loads(result.stdout) == expected


def test_what_is_not_there_is_told_with_what_is(root: Path, call: Call) -> None:
    place = Root(root)
    keys = [KEY, "bcde11111111"]
    intents = [
        {"kind": "intent", "time": 1.0, "run_key": key, "variant": "base", "variant_key": "V", "seed": seed}
        | {"difference": {}, "steps": 10}
        for seed, key in enumerate(keys)
    ]
    ledger.append(place.sweep("s"), intents)
    for step in (10, 20, 30):
        put(root, "evaluation", step, MIXED)
    put(root, "train", 20, MIXED)
    for arguments, message in {
        (KEY, "--step", "21"): f"run {KEY} has no samples of step 21; the nearest that has some: 20 and 30",
        (KEY, "--step", "0"): "of step 0; the nearest that has some: 10",
        (KEY, "--step", "99"): "of step 99; the nearest that has some: 30",
        (KEY, "--step", "-1"): "-1 is not in the range x>=0",
        ("base:1",): "run bcde11111111 has no samples yet",
        ("base",): f"'base' means 2 runs: {KEY} (base:0), bcde11111111 (base:1); give one of them",
        ("nope",): "'nope' is not a run",
    }.items():
        result = call("samples", *arguments)
        assert result.exit_code == 2 and message in result.stderr and result.stdout == "", arguments
    assert len(lines(call("samples", "base:0"))) == 6


def test_a_damaged_file_is_one_message(root: Path, call: Call) -> None:
    put(root, "evaluation", 0, MIXED)
    path = Root(root).run(KEY).samples / "evaluation-000000.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    result = call("samples", KEY)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"rlsweep: {path}:6: not a whole sample; the file is damaged\n"


ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eabc\r\n\tend é数"


def test_what_a_model_wrote_never_reaches_a_terminal_as_commands(root: Path, call: Call) -> None:
    hostile = sample("wrong", response=ATTACK, prompt=ATTACK, answer=ATTACK, reference=ATTACK)
    put(root, "evaluation", 0, [hostile])
    piped = call("samples", KEY)
    assert lines(piped)[0]["response"] == ATTACK
    document = call("samples", KEY, "--json")
    assert json.loads(document.stdout)["samples"][0]["answer"] == ATTACK
    on_terminal = shown([hostile], 80)
    for text in (piped.stdout, document.stdout, on_terminal):
        assert all(char.isprintable() or char == "\n" for char in text)
    assert "response   \\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\x7f\\u202eabc\\r\n           \\tend é数\n" in on_terminal


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_blocks_fold_to_the_terminal_and_lose_nothing(width: int) -> None:
    text = "Let me see: 12 + 30 = 42, " * 9 + "数" * 50 + "x" * 300 + "<eos>"
    on_terminal = shown([sample("wrong", response=text, reward=-0.5, purpose="train", advantage=-1.25)], width)
    rows = on_terminal.splitlines()
    assert all(len(row) + row.count("数") <= width for row in rows)  # those are two columns wide
    start = next(index for index, row in enumerate(rows) if row.startswith("response "))
    end = next(index for index, row in enumerate(rows) if row.startswith("answer "))
    found = "".join(row[11:] for row in rows[start:end])
    assert found.replace(" ", "") == text.replace(" ", "")


def test_a_block_says_it_all() -> None:
    trained = replace(MIXED[3], purpose="train", step=10, reward=-0.5, advantage=-1.25, versions=[[7, 0, 3], [8, 3, 4]])
    filtered = replace(MIXED[2], purpose="train", step=10, forced=[[0, 3]])
    assert shown([trained, filtered], 100).splitlines() == [
        "",
        "training of step 10, prompt 3, rollout 0: truncated",
        "prompt     4rm    =",
        "response   1#a<eos>",
        "answer     a",
        "reference  a",
        "reward     -0.5, advantage -1.25",
        "tokens     4, cut at the token limit; policy version 7, 8; interrupted, forced: 1",
        "",
        "training of step 10, prompt 2, rollout 0: unparseable",
        "prompt     4rm    =",
        "response   1#a<eos>",
        "answer     none found",
        "reference  a",
        "reward     1, not trained on: its group was filtered",
        "tokens     4, stopped; policy version 0; interrupted, forced: 0 to 2",
    ]


def shown(found: list[Sample], width: int) -> str:
    out = io.StringIO()
    show(found, Console(file=out, width=width, color_system=None))
    return out.getvalue()
