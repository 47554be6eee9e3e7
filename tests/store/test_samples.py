"""Sample files: written whole by the owner alone, found by step, read back exactly or refused."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.store import attempts, samples
from rlsweep.store.attempts import Superseded
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.samples import Sample

SAMPLE = Sample(
    step=10,
    purpose="train",
    prompt_index=3,
    rollout=1,
    prompt="4rm    =",
    response="12#a<eos>",
    answer="a",
    reference="b",
    outcome="wrong",
    reward=-1.0,
    finish="stop",
    interrupted=True,
    tokens=5,
    versions=[[8, 0, 3], [9, 3, 5]],
    forced=[[2, 3]],
    advantage=-0.25,
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = Root(tmp_path).run("0123456789ab")
    folder.path.mkdir(parents=True)
    return folder


def test_what_is_written_is_read_again(run: RunFolder) -> None:
    nasty = '\x1b[2J\x9b\n\r\u2028\u2029\x85\x00"\\ é 数 🧮 <script>'
    written = [SAMPLE, replace(SAMPLE, response=nasty, prompt=nasty, answer=None, advantage=None, reward=0.1)]
    samples.write(run, attempts.claim(run), "train", 10, written)
    (file,) = samples.every(run)
    assert (file.path.name, file.step, file.purpose) == ("train-000010.jsonl", 10, "train")
    assert samples.read(file) == written
    lines = file.path.read_text(encoding="utf-8").split("\n")  # readable without this package: a JSON object a line
    assert [json.loads(line) for line in lines[:-1]] == [asdict(sample) for sample in written] and lines[-1] == ""
    assert "\x1b" not in lines[1]


def test_files_are_found_in_the_order_of_steps(run: RunFolder) -> None:
    assert samples.every(run) == [] and samples.newest_evaluation(run) is None
    owner = attempts.claim(run)
    for purpose, step in [("train", 10), ("evaluation", 1000000), ("evaluation", 0), ("evaluation", 10), ("train", 20)]:
        samples.write(run, owner, purpose, step, [])
    for name in (".train-000030.jsonl.1-ab.tmp", "notes.txt", "train-40.jsonl", "evaluation-2000000.jsonl.gz"):
        (run.samples / name).write_text("")
    found = [(file.purpose, file.step) for file in samples.every(run)]
    assert found == [("evaluation", 0), ("train", 10), ("evaluation", 10), ("train", 20), ("evaluation", 1000000)]
    newest = samples.newest_evaluation(run)
    assert newest is not None and newest.step == 1000000


def test_only_the_owner_writes(run: RunFolder) -> None:
    before, after = attempts.claim(run), attempts.claim(run)
    samples.write(run, after, "train", 10, [SAMPLE])
    with pytest.raises(Superseded):
        samples.write(run, before, "train", 10, [])
    assert samples.read(samples.every(run)[0]) == [SAMPLE]


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": 3},
        {"answer": ["a"]},
        {"reward": None},
        {"interrupted": "no"},
        {"versions": [[8, 0]]},
        {"versions": [["8", 0, 3]]},
        {"forced": 2},
        {"forced": [2]},
    ],
)
def test_a_line_that_is_no_sample_is_named(run: RunFolder, change: dict[str, Any]) -> None:
    path = put(run, json.dumps(asdict(SAMPLE)) + "\n" + json.dumps({**asdict(SAMPLE), **change}) + "\n")
    with pytest.raises(RlsweepError, match=r"evaluation-000010.jsonl:2: not a whole sample; the file is damaged"):
        samples.read(samples.every(run)[0])
    put(run, path.read_text().splitlines()[0] + "\n")
    assert samples.read(samples.every(run)[0]) == [SAMPLE]


@pytest.mark.parametrize("text", ['{"step": 1', "[1]\n", "\n", '{"step": 1}\n', "\udcff\n", "nan\n"])
def test_a_file_that_holds_something_else_is_refused(run: RunFolder, text: str) -> None:
    put(run, text)
    with pytest.raises(RlsweepError, match=":1: not a whole sample"):
        samples.read(samples.every(run)[0])


def test_fields_of_a_later_version_are_passed_over(run: RunFolder) -> None:
    put(run, json.dumps({**asdict(SAMPLE), "entropy": 1.5}) + "\n")
    assert samples.read(samples.every(run)[0]) == [SAMPLE]


def test_nothing_that_moves_a_terminal_stays(run: RunFolder) -> None:
    shown = samples.visible("a\x1b[31m\x07\x08\x7f\x9b\t\r\n\u202e\u200b\u00a0é数<b>\ud800")
    assert shown == "a\\x1b[31m\\x07\\x08\\x7f\\x9b\\t\\r\n\\u202e\\u200b\\xa0é数<b>\\ud800"
    every = "".join(map(chr, range(0x10000)))
    assert all(char.isprintable() or char == "\n" for char in samples.visible(every))


def put(run: RunFolder, text: str) -> Path:
    run.samples.mkdir(exist_ok=True)
    path = run.samples / "evaluation-000010.jsonl"
    path.write_bytes(text.encode(errors="surrogateescape"))
    return path
