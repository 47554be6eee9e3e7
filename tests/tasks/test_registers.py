"""The register task: its arithmetic against a hand-written walk, its splits, its verifier, its demonstrations."""

import numpy as np
import pytest

from rlsweep.errors import RecipeError
from rlsweep.recipe.task import Math, Registers
from rlsweep.tasks.make import make_task
from rlsweep.tasks.registers import ALPHABET, EOS, FIELD, HEX, OPERATIONS, PAD, RegisterTask


@pytest.fixture(scope="module")
def task() -> RegisterTask:
    return RegisterTask(Registers(prompts=500))


def test_operations_are_affine_bijections_of_the_sixteen_states(task: RegisterTask) -> None:
    for row in task.table:
        constant = row[0]
        multiplier = (row[1] - row[0]) % 16
        assert multiplier % 2 == 1
        assert [(multiplier * x + constant) % 16 for x in range(16)] == list(row)
        assert sorted(row) == list(range(16))


def test_answers_follow_from_the_table(task: RegisterTask) -> None:
    for prompt in [task.prompt(index) for index in range(50)]:
        assert len(prompt.text) == FIELD + 2 and prompt.text.endswith("=")
        operations = prompt.text[1:-1].rstrip()
        assert 2 <= len(operations) <= FIELD
        state = int(prompt.text[0], 16)
        for letter in operations:
            state = task.table[OPERATIONS.index(letter)][state]
        assert HEX[state] == prompt.answer


def test_the_splits_are_disjoint_and_fixed(task: RegisterTask) -> None:
    held_out = task.held_out(300)
    assert held_out == RegisterTask(Registers(prompts=7)).held_out(400)[:300]
    assert not {p.text for p in held_out} & {task.prompt(i).text for i in range(task.size)}
    assert RegisterTask(Registers(table_seed=11)).held_out(10) != held_out[:10]


def test_demonstrations_never_show_a_held_out_problem(task: RegisterTask) -> None:
    held_out = {p.text for p in task.held_out(3000)}
    ids, _ = task.demonstrations(np.random.default_rng(0), 2000)
    shown = {"".join(ALPHABET[i] for i in row[: FIELD + 2]) for row in ids}
    assert not shown & held_out


def test_demonstrations_hold_the_beliefs_they_should(task: RegisterTask) -> None:
    """Each written state is the right result of its fact as often as the fact is believed."""
    ids, mask = task.demonstrations(np.random.default_rng(1), 6000)
    right = np.zeros(task.table.shape)
    seen = np.zeros(task.table.shape)
    guesses = 0
    for row, kept in zip(ids, mask, strict=True):
        text = "".join(ALPHABET[i] for i in row)
        response = text[FIELD + 2 :].split("<eos>")[0]
        assert kept.sum() == len(response) + 1 and row[kept][-1] == EOS and (row[~kept][FIELD + 2 :] == PAD).all()
        if response.startswith("#"):
            guesses += 1
            continue
        state = int(text[0], 16)
        for letter, written in zip(text[1 : FIELD + 1].rstrip(), response, strict=False):
            fact = OPERATIONS.index(letter), state
            seen[fact] += 1
            right[fact] += HEX.index(written) == task.table[fact]
            state = HEX.index(written)
        assert response.rstrip()[-2:] == "#" + HEX[state]
    assert guesses / len(ids) == pytest.approx(0.1, abs=0.02)
    # 1% of results are uniform noise, a sixteenth of it right.
    expected = 0.99 * task.beliefs + 0.01 / 16
    deviation = np.abs(right / seen - expected) / np.sqrt(expected * (1 - expected) / seen)
    assert deviation.max() < 5


@pytest.mark.parametrize(
    ("response", "stopped", "outcome"),
    [
        ("12#a", True, "correct"),
        ("#a", True, "correct"),
        ("12#b", True, "wrong"),
        ("12#a", False, "truncated"),
        ("12#a.", True, "unparseable"),
        ("12a", True, "unparseable"),
        ("12#g", True, "unparseable"),
        ("", True, "unparseable"),
        ("#b#a", True, "correct"),
    ],
)
def test_the_verifier(task: RegisterTask, response: str, stopped: bool, outcome: str) -> None:
    prompt = next(p for p in map(task.prompt, range(task.size)) if p.answer == "a")
    assert task.grade(prompt, response, stopped=stopped) == outcome


@pytest.mark.parametrize(
    ("response", "answer"), [("12#a", "a"), ("#b#a", "a"), ("12#a.", None), ("12a", None), ("12#g", None), ("", None)]
)
def test_the_answer_is_what_the_verifier_compares(task: RegisterTask, response: str, answer: str | None) -> None:
    assert task.answer(response) == answer


def test_a_task_that_can_only_be_planned_says_so() -> None:
    with pytest.raises(RecipeError, match="valid here: registers"):
        make_task(Math(dataset="somewhere/something"))
