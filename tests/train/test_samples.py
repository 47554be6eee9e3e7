"""Samples of training: rows worked out by hand, which rollouts are taken, the files of real runs, killed ones too."""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from rlsweep.model.embedded import new_tokenizer
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.key import run_key
from rlsweep.recipe.length import Penalty
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.reward import Reward
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import Rollout
from rlsweep.store import attempts, samples
from rlsweep.store.journal import Journal, read_rows
from rlsweep.store.layout import Root, RunFolder
from rlsweep.tasks.make import make_task
from rlsweep.tasks.protocol import Prompt
from rlsweep.tasks.registers import ALPHABET, RegisterTask
from rlsweep.train.intake import Graded, Tokens
from rlsweep.train.loop import train
from rlsweep.train.samples import choose
from rlsweep.train.state import build

FORCED, FREE = True, False


def ids(*tokens: str) -> tuple[int, ...]:
    return tuple(map(ALPHABET.index, tokens))


def rollout(tokens: tuple[int, ...], forced: tuple[bool, ...], finish: Any, *spans: tuple[int, int, int]) -> Rollout:
    return Rollout(tokens, (0.0,) * len(tokens), forced, spans, finish)


def test_rows_worked_out_by_hand(small_recipe: Recipe) -> None:
    recipe = replace(
        small_recipe, reward=Reward(correct=2.0, wrong=-3.0, truncated=-4.0), length=Penalty(limit=10, ramp=8)
    )
    tokens = Tokens(new_tokenizer(ALPHABET), make_task(recipe.task))
    right = rollout(
        ids("1", "f", ".", "#", "a", "<eos>"),
        (FREE, FREE, FORCED, FORCED, FREE, FREE),
        "stop",
        (8, 0, 4),
        (9, 4, 6),
    )
    cut = rollout(ids("<pad>", "\n", "#", "c"), (FORCED, FREE, FREE, FORCED), "length", (8, 0, 4))
    group = Graded(17, ids(*"4nm    ="), (right, cut), ("correct", "truncated"))
    found = choose(recipe, tokens, "train", 10, [group], [Prompt("4nm    =", "a")], {id(right): 0.5})
    same = {"step": 10, "purpose": "train", "prompt_index": 17, "prompt": "4nm    =", "reference": "a"}
    assert [asdict(sample) for sample in found] == [
        {
            **same,
            "rollout": 0,
            "response": "1f.#a<eos>",
            "answer": "a",
            "outcome": "correct",
            "reward": 1.5,  # 2 less a penalty of (10 - 6) / 8 - 1
            "finish": "stop",
            "interrupted": True,
            "tokens": 6,
            "versions": [[8, 0, 4], [9, 4, 6]],
            "forced": [[2, 4]],
            "advantage": 0.5,
        },
        {
            **same,
            "rollout": 1,
            "response": "<pad>\n#c",
            "answer": "c",
            "outcome": "truncated",
            "reward": -4.0,
            "finish": "length",
            "interrupted": True,
            "tokens": 4,
            "versions": [[8, 0, 4]],
            "forced": [[0, 1], [3, 4]],
            "advantage": None,
        },
    ]


def test_text_that_utf_8_cannot_hold_is_written_as_an_escape(small_recipe: Recipe, tmp_path: Path) -> None:
    class Odd(RegisterTask):
        def answer(self, response: str) -> str | None:
            return "\udfff" + response

    class OddTokenizer:
        def decode(self, ids: Any) -> str:
            return f"é\n\\ud800\ud800{len(ids)}"

    tokens = Tokens(new_tokenizer(ALPHABET), Odd(small_recipe.task))
    tokens.tokenizer = OddTokenizer()
    run = Root(tmp_path).run("0123456789ab")
    run.path.mkdir(parents=True)
    one = rollout(ids("a", "<eos>"), (FREE,) * 2, "stop", (0, 0, 2))
    group = Graded(0, ids("="), (one,), ("wrong",))
    found = choose(small_recipe, tokens, "train", 10, [group], [Prompt("=", "b\udc80")], {})
    owner = attempts.claim(run)
    samples.write(run, owner, "train", 10, found)
    (file,) = samples.every(run)
    before = file.path.read_bytes()
    (sample,) = samples.read(file)
    assert (sample.prompt, sample.response) == ("é\n\\ud800\\ud8001", "é\n\\ud800\\ud8002")
    assert sample.answer is not None and sample.answer.startswith("\\udfff")
    assert (sample.reference, sample.outcome, sample.tokens) == ("b\\udc80", "wrong", 2)
    samples.write(run, owner, "train", 10, found)
    assert file.path.read_bytes() == before


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([3] * 20, [(group, 0) for group in range(20)] + [(group, 1) for group in range(12)]),
        ([2] * 40, [(group, 0) for group in range(32)]),
        ([1, 3, 2], [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]),
    ],
)
def test_groups_take_turns(small_recipe: Recipe, sizes: list[int], expected: list[tuple[int, int]]) -> None:
    tokens = Tokens(new_tokenizer(ALPHABET), make_task(small_recipe.task))
    one = rollout(ids("#", "a", "<eos>"), (FREE,) * 3, "stop", (0, 0, 3))
    groups = [Graded(100 + n, ids("="), (one,) * size, ("wrong",) * size) for n, size in enumerate(sizes)]
    found = choose(small_recipe, tokens, "evaluation", 0, groups, [Prompt("=", "b")] * len(groups), {})
    assert [(sample.prompt_index - 100, sample.rollout) for sample in found] == expected


@pytest.fixture(scope="module")
def recipe(small_recipe: Recipe) -> Recipe:
    return replace(small_recipe, budget=Budget(steps=11))


def go(recipe: Recipe, root: Path, model_folder: str) -> RunFolder:
    """One attempt at the run of a recipe, in this process."""
    run = Root(root).run(run_key(recipe))
    run.path.mkdir(parents=True, exist_ok=True)
    run.recipe.write_text(dump(recipe))
    state = build(recipe, run, attempts.claim(run), lambda: (model_folder, None), time.monotonic())
    train(state, lambda text: None)
    return run


def content(run: RunFolder) -> dict[str, bytes]:
    return {file.path.name: file.path.read_bytes() for file in samples.every(run)}


@pytest.fixture(scope="module")
def undisturbed(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory, model_folder: str) -> RunFolder:
    torch.set_num_threads(1)
    return go(recipe, tmp_path_factory.mktemp("undisturbed"), model_folder)


def test_a_run_writes_each_evaluation_and_every_tenth_step(recipe: Recipe, undisturbed: RunFolder) -> None:
    assert sorted(content(undisturbed)) == [
        *(f"evaluation-{step:06d}.jsonl" for step in (0, 4, 8, 11)),
        "train-000010.jsonl",
    ]
    task = RegisterTask(recipe.task)
    for file in samples.every(undisturbed):
        for sample in samples.read(file):
            prompts = task.held_out(8) if file.purpose == "evaluation" else list(map(task.prompt, range(task.size)))
            prompt = prompts[sample.prompt_index]
            assert (sample.step, sample.purpose) == (file.step, file.purpose)
            assert (sample.prompt, sample.reference) == (prompt.text, prompt.answer)
            assert sample.response.endswith("<eos>") == (sample.finish == "stop")
            assert sample.outcome == task.grade(
                prompt, sample.response.removesuffix("<eos>"), stopped=sample.finish == "stop"
            )


def test_samples_of_whole_batches_say_what_the_journal_says(undisturbed: RunFolder) -> None:
    """Batches of 16 rollouts are written whole, so counts and means follow from either."""
    journal = {(row["kind"], row["step"]): row for row in read_rows(undisturbed.journal)}
    for file in samples.every(undisturbed):
        found = samples.read(file)
        row = journal["step" if file.purpose == "train" else "evaluation", file.step]
        metrics = row["metrics"]
        assert fmean(sample.tokens for sample in found) == metrics[f"{file.purpose}/response_tokens"]
        assert fmean(sample.finish == "length" for sample in found) == metrics[f"{file.purpose}/truncated"]
        assert fmean(sample.interrupted for sample in found) == metrics[f"{file.purpose}/interrupted"]
        assert all(sample.interrupted == bool(sample.forced) for sample in found)
        if file.purpose == "evaluation":
            right = Counter(sample.prompt_index for sample in found if sample.outcome == "correct")
            assert [right[place] for place in range(8)] == row["counts"]
            assert {tuple(map(tuple, sample.versions)) for sample in found} == {
                ((file.step, 0, sample.tokens),) for sample in found
            }
            assert all(sample.advantage is None for sample in found)
        else:
            assert fmean(sample.reward for sample in found) == metrics["train/reward"]
            assert fmean(sample.outcome == "correct" for sample in found) == metrics["train/pass_rate"]
            trained = {sample.prompt_index for sample in found if sample.advantage is not None}
            assert len(trained) == metrics["train/groups_trained"] and 0 < len(trained) < 4  # some, not all
            for sample in found:
                assert (sample.advantage is not None) == (sample.prompt_index in trained)
                assert sample.advantage is None or (sample.advantage > 0) == (sample.outcome == "correct")
            assert max(9 - sample.versions[0][0] for sample in found) == metrics["train/lag_max"] == 2


class Killed(BaseException):
    """Ends an attempt without any of its own handling."""


@pytest.mark.parametrize(
    ("purpose", "step", "moment"),
    [
        ("train", 10, "before the file"),
        ("train", 10, "before the row"),
        ("evaluation", 8, "before the row"),
        ("evaluation", 8, "after the row"),
    ],
)
def test_what_is_done_again_is_written_again_the_same(
    recipe: Recipe,
    undisturbed: RunFolder,
    tmp_path: Path,
    model_folder: str,
    monkeypatch: pytest.MonkeyPatch,
    purpose: str,
    step: int,
    moment: str,
) -> None:
    """Ended around a write; what is there then is spoiled, since it belongs to no checkpoint."""
    append, write = Journal.append, samples.write

    def fatal_append(journal: Journal, row: dict[str, Any]) -> None:
        it = row["step"] == step and row["kind"] == {"train": "step"}.get(purpose, purpose)
        if it and moment == "before the row":
            raise Killed
        append(journal, row)
        if it and moment == "after the row":
            raise Killed

    def fatal_write(run: RunFolder, attempt: Any, kind: Any, at: int, found: Any) -> None:
        if (kind, at) == (purpose, step) and moment == "before the file":
            raise Killed
        write(run, attempt, kind, at, found)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", fatal_append)
        patched.setattr(samples, "write", fatal_write)
        with pytest.raises(Killed):
            go(recipe, tmp_path, model_folder)
    run = Root(tmp_path).run(run_key(recipe))
    written = run.samples / f"{purpose}-{step:06d}.jsonl"
    assert written.exists() == (moment != "before the file")
    written.write_text("not what it was")
    go(recipe, tmp_path, model_folder)
    assert content(run) == content(undisturbed)


def test_a_full_disk_ends_the_run_and_it_goes_on_once_there_is_room(
    recipe: Recipe, undisturbed: RunFolder, tmp_path: Path, model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file: Callable[..., Path] = Path.replace

    def full(path: Path, target: Path) -> Path:
        if target.name == "train-000010.jsonl":
            raise OSError(28, "No space left on device", str(target))
        return replace_file(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left on device"):
            go(recipe, tmp_path, model_folder)
    run = Root(tmp_path).run(run_key(recipe))
    assert sorted(path.name for path in run.samples.iterdir()) == [
        f"evaluation-{step:06d}.jsonl" for step in (0, 4, 8)
    ]  # no half-written file, no temporary one
    go(recipe, tmp_path, model_folder)
    assert content(run) == content(undisturbed)
    assert json.loads(content(run)["train-000010.jsonl"].splitlines()[0])["step"] == 10
