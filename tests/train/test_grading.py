"""Verifiers that raise, hang or return nonsense: alone, in a whole run, and in a real trainer process."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlsweep.errors import RlsweepError
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Registers
from rlsweep.store import attempts, checkpoints, outcome
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import Root, RunFolder
from rlsweep.tasks.protocol import Prompt
from rlsweep.tasks.registers import RegisterTask
from rlsweep.train import grading, state
from rlsweep.train.grading import Failures, Verifier
from rlsweep.train.loop import train

PROMPT = Prompt("4rm\n  =", "a")


class Faulty(RegisterTask):
    """The embedded task with another verifier."""

    def __init__(self, grade: Callable[..., Any], section: Registers | None = None):
        super().__init__(section or Registers(prompts=32))
        self._grade = grade

    def grade(self, prompt: Prompt, response: str, *, stopped: bool) -> Any:
        return self._grade(prompt, response, stopped, super().grade)


def graded(body: Callable[[], Any], said: list[str] | None = None, failures: Failures | None = None) -> str:
    task = Faulty(lambda prompt, response, stopped, right: body())
    verifier = Verifier(task, [].append if said is None else said.append)
    return verifier.grade(PROMPT, "#a", stopped=True, failures=failures or Failures("step", 100))


class Leaving(Exception):
    def __str__(self) -> str:
        sys.exit(0)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise OSError


def fail(error: BaseException) -> Callable[[], Any]:
    def body() -> Any:
        raise error

    return body


def spin() -> str:
    while True:
        pass


def swallow(error: type[BaseException]) -> Callable[[], str]:
    """A verifier that takes whatever happens for a wrong answer."""

    def body() -> str:
        with suppress(error):
            time.sleep(60)
        return "wrong"

    return body


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (fail(ValueError("no\nnumber")), "raised ValueError: no,"),
        (fail(KeyError()), "raised KeyError: no message,"),
        (fail(RecursionError("deep")), "raised RecursionError: deep,"),
        (fail(Unprintable()), "raised Unprintable: no message,"),
        (fail(Leaving()), "raised Leaving: no message,"),
        (fail(SystemExit(3)), "raised SystemExit: 3,"),
        (lambda: sys.exit(), "raised SystemExit: no message,"),
        (fail(asyncio.CancelledError("late")), "raised CancelledError: late,"),
        (fail(ValueError("\ud800\x1b[2J")), "raised ValueError: \\ud800\\x1b[2J,"),
        (lambda: None, "returned None (valid: correct, wrong, truncated, unparseable),"),
        (lambda: "maybe\n", "returned 'maybe\\n' (valid: "),
        (lambda: True, "returned True (valid: "),
        (lambda: np.array(["correct", "wrong"]), "returned array(["),
        (lambda: ["correct"], "returned ['correct'] (valid: "),
        (lambda: "correct" * 500, "returned 'correct"),
        (lambda: time.sleep(60), "gave no answer within 0.05 s,"),
        (spin, "gave no answer within 0.05 s,"),
        (lambda: re.match(r"(a+)+$", "a" * 60 + "b"), "gave no answer within 0.05 s,"),
        (swallow(Exception), "gave no answer within 0.05 s,"),
        (swallow(BaseException), "gave no answer within 0.05 s,"),
    ],
)
def test_whatever_a_verifier_does_the_response_is_unparseable_and_counted(
    body: Callable[[], Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "VERIFIER_SECONDS", 0.05)
    monkeypatch.setattr(grading, "_AGAIN_S", 0.05)
    said: list[str] = []
    failures = Failures("step", 100)
    assert graded(body, said, failures) == "unparseable" and failures.count == 1
    assert len(said) == 1 and said[0].startswith(f"the verifier {told}") and "'4rm\\n  ='" in said[0]
    assert said[0].isprintable() and len(said[0]) < 500


@pytest.mark.parametrize(("caught", "tries"), [(Exception, 1), (BaseException, 3)])
def test_a_verifier_that_catches_is_interrupted_again_and_again(
    caught: type[BaseException], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alarm is no Exception, so that it gets through at once; where it doesn't, it comes back."""
    monkeypatch.setattr(grading, "VERIFIER_SECONDS", 0.05)
    monkeypatch.setattr(grading, "_AGAIN_S", 0.05)
    begun, slept = 0, 0

    def body() -> str:
        nonlocal begun, slept
        for _ in range(3):
            begun += 1
            with suppress(caught):
                time.sleep(5)
                slept += 1
        return "wrong"

    assert graded(body) == "unparseable" and (begun, slept) == (tries, 0)


@pytest.mark.parametrize("body", [lambda: "correct", fail(ValueError()), lambda: time.sleep(60)])
def test_the_alarm_of_others_is_given_back(body: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler, and what is left of its time."""
    monkeypatch.setattr(grading, "VERIFIER_SECONDS", 0.05)
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    held, interval = signal.setitimer(signal.ITIMER_REAL, 30.0, 7.0)
    try:
        graded(body)
        left, every = signal.setitimer(signal.ITIMER_REAL, 0)
        assert 20 < left < 30 and every == 7.0 and not rung
        graded(body)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        signal.raise_signal(signal.SIGALRM)
        assert rung == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, held, interval)


def test_other_signals_are_handled_while_a_verifier_works() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))

    def body() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return f"{'correct' if received else 'wrong'}"

    try:
        assert graded(body) == "correct" and received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_there_is_no_limit_and_no_error() -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend([graded(lambda: "wrong"), graded(fail(ValueError()))]))
    thread.start()
    thread.join()
    assert found == ["wrong", "unparseable"]


def test_an_exit_is_not_the_verifiers_failure() -> None:
    with pytest.raises(KeyboardInterrupt):
        graded(fail(KeyboardInterrupt()))


def test_each_kind_is_told_once() -> None:
    answers = iter([None, "maybe", ValueError("a"), ValueError("b"), KeyError("c"), "wrong", None])

    def grade(*_: Any) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    said: list[str] = []
    verifier, failures = Verifier(Faulty(grade), said.append), Failures("step", 100)
    outcomes = [verifier.grade(PROMPT, "", stopped=True, failures=failures) for _ in range(7)]
    assert outcomes.count("wrong") == 1 and failures.count == 6
    assert [re.sub(r"[,:(].*", "", line) for line in said] == [
        "the verifier returned None ",
        "the verifier raised ValueError",
        "the verifier raised KeyError",
    ]


@pytest.mark.parametrize(("responses", "most"), [(1, 1), (8, 1), (19, 1), (20, 2), (35, 3), (12288, 1228)])
def test_more_than_a_tenth_is_too_much_but_one_never_is(responses: int, most: int) -> None:
    failures = Failures("evaluation", responses)
    for _ in range(most):
        graded(fail(ValueError("first")), failures=failures)
    with pytest.raises(RlsweepError) as error:
        graded(lambda: None, failures=failures)
    assert f"failed on {most + 1} of the {responses} responses of one evaluation, more than a tenth" in str(error.value)
    assert "the first time it raised ValueError: first" in str(error.value) and "\n" not in str(error.value)


def test_an_answer_for_people_is_guarded_too() -> None:
    class Answers(RegisterTask):
        def answer(self, response: str) -> Any:
            return {"#a": "a", "": None}.get(response, 3) if response != "!" else {}["x"]

    verifier = Verifier(Answers(Registers(prompts=1)), [].append)
    assert [verifier.answer(response) for response in ("#a", "", "?", "!")] == ["a", None, None, None]


def now_and_then(prompt: Prompt, response: str, stopped: bool, right: Any) -> Any:
    """Fails on one response in eight, always on the same ones, in three ways."""
    draw = sha256(f"{prompt.text}{response}".encode()).digest()[0]
    if draw < 16:
        raise ValueError("x")
    return [None, True, right(prompt, response, stopped=stopped)][min(2, max(0, draw // 8 - 2))]


def ends(run: RunFolder, recipe: Recipe, folder: str) -> outcome.Outcome:
    built = state.build(recipe, run, attempts.claim(run), lambda: (folder, None), time.monotonic())
    return train(built, lambda text: None)


def rows(run: RunFolder) -> list[dict[str, Any]]:
    """The journal without what depends on the wall clock."""
    found = read_rows(run.journal)
    for row in found:
        del row["time"]
        row["metrics"] = {k: v for k, v in row["metrics"].items() if not k.startswith("time/") and "hours" not in k}
    return found


def test_a_whole_run_with_a_verifier_that_fails_now_and_then(
    small_recipe: Recipe,
    tmp_path: Path,
    model_folder: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    after_each_step: Any,
) -> None:
    """It ends, every row tells the count, the log each kind once; interrupted and resumed it is the same run."""
    monkeypatch.setattr(grading, "TOLERATED", 2)
    failed: list[bool] = []

    def noted(*arguments: Any) -> Any:
        failed.append(True)  # until it turns out to be fine
        found = now_and_then(*arguments)
        failed[-1] = found in (None, True)
        return found

    monkeypatch.setattr(state, "make_task", lambda section: Faulty(noted, section))
    run, again = Root(tmp_path).run("a" * 12), Root(tmp_path).run("b" * 12)
    run.path.mkdir(parents=True)
    again.path.mkdir()
    assert ends(run, small_recipe, model_folder).state == "finished"
    said = capsys.readouterr().out
    assert said.count("the verifier raised ValueError: x") == 1 and said.count("the verifier returned ") == 1
    found = rows(run)
    names = [f"{'train' if row['kind'] == 'step' else 'evaluation'}/verifier_errors" for row in found]
    counts = [row["metrics"][name] for row, name in zip(found, names, strict=True)]
    # 16 responses a row, in the order they were graded.
    assert counts == [sum(failed[16 * n : 16 * n + 16]) for n in range(len(found))]
    assert 0 < sum(counts) < len(failed) == 16 * len(found)

    steps = iter([False, False, False, True])
    with after_each_step(lambda: next(steps)):
        assert ends(again, small_recipe, model_folder).state == "interrupted"
    assert ends(again, small_recipe, model_folder).state == "finished"
    assert rows(again) == found


TRAINER = """
import sys, time
from rlsweep.tasks.registers import RegisterTask
from rlsweep.train import grading, state
from rlsweep.train.__main__ import main

class Faulty(RegisterTask):
    calls = 0
    def grade(self, prompt, response, *, stopped):
        Faulty.calls += 1
        {body}
        return super().grade(prompt, response, stopped=stopped)

state.make_task = Faulty
grading.VERIFIER_SECONDS = 1.0
sys.exit(main())
"""


def trainer(run: RunFolder, body: str) -> subprocess.Popen[str]:
    """A real trainer process whose task does `body` before it grades."""
    return subprocess.Popen(
        [sys.executable, "-c", TRAINER.format(body=body), str(run.path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture()
def run(tmp_path: Path, models: Path, model_folder: str, small_recipe: Recipe) -> RunFolder:
    """A run folder, not begun, under a root whose model is made already."""
    (tmp_path / "models").symlink_to(models)
    folder = Root(tmp_path).run("0123456789ab")
    folder.path.mkdir(parents=True)
    folder.recipe.write_text(dump(small_recipe))
    return folder


def test_a_verifier_that_exits_fails_the_run(run: RunFolder) -> None:
    process = trainer(run, "if self.calls > 20: sys.exit()")
    said, _ = process.communicate(timeout=200)
    ended = outcome.read(run)
    assert process.returncode == 1 and ended is not None and ended.state == "failed"
    assert "the first time it raised SystemExit" in ended.reason and "Traceback" not in said


def test_a_verifier_that_breaks_fails_the_run_and_mended_it_goes_on(
    run: RunFolder, small_recipe: Recipe, model_folder: str, tmp_path: Path
) -> None:
    """From the evaluation after step 4 on it raises: one sentence, and the checkpoint of step 3 is what is left."""
    process = trainer(run, "if self.calls > 80: raise FileNotFoundError('answers.txt')")
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 1 and "Traceback" not in said
    expected = "failed on 2 of the 16 responses of one evaluation, more than a tenth; the first time it raised File"
    assert said.count("rlsweep: the verifier has") == 1 and expected in said and "answers.txt" in said
    ended, saved = outcome.read(run), checkpoints.newest(run)
    assert ended is not None and (ended.state, ended.step) == ("failed", 3) and expected in ended.reason
    assert saved is not None and saved.step == 3
    assert [row["step"] for row in read_rows(run.journal)] == [0, 1, 2, 3, 4]
    process = trainer(run, "pass")
    assert process.wait(timeout=200) == 0, process.communicate()[0]
    other = Root(tmp_path).run("b" * 12)
    other.path.mkdir()
    assert ends(other, small_recipe, model_folder).state == "finished"
    assert rows(run) == rows(other)


def test_asked_to_stop_while_a_verifier_hangs_it_saves(run: RunFolder, small_recipe: Recipe) -> None:
    process = trainer(run, "if self.calls == 40: print('hanging', flush=True); time.sleep(600)")
    assert process.stdout is not None
    heard = []
    for line in process.stdout:
        heard.append(line)
        if line == "hanging\n":
            process.terminate()
    assert process.wait(timeout=100) == 75, heard
    assert sum("gave no answer within 1 s" in line for line in heard) == 1
    ended, found = outcome.read(run), read_rows(run.journal)
    assert ended is not None and (ended.state, ended.step) == ("interrupted", 1)
    # The step that it hung in was given up.
    errors = [row["metrics"].get("train/verifier_errors") for row in found]
    assert errors == [None, 0] and found[0]["metrics"]["evaluation/verifier_errors"] == 0
