"""The machinery of `make bench`: who is measured when, what a ratio is, and that the document is the numbers'."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Scripts import each other by their bare names, as when they are run."""
    monkeypatch.syspath_prepend(HERE)
    before = set(sys.modules)

    yield import_module
    for name in set(sys.modules) - before:
        if (HERE / f"{name}.py").exists():
            del sys.modules[name]


RACER = """
import sys, time
sys.path.insert(0, {here!r})
from race import Turns
turns, name, steps = Turns(), sys.argv[1], 0
print("noise that is no answer")
while turns.wait({{"step": steps}}):
    steps += 1
    with open({log!r}, "a") as log:
        log.write(name + " begins\\n"); log.flush()
        time.sleep(0.01)
        log.write(name + " ends\\n")
    if name == "mortal":
        sys.exit(7)
"""


def test_racers_take_turns_and_their_first_steps_are_left_out(
    load: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    log = tmp_path / "turns"
    code = RACER.format(here=str(HERE), log=str(log))
    commands = {name: [sys.executable, "-c", code, name] for name in ("a", "b", "c")}
    answers = load("race").race(commands, rounds=3, warm_up=1, log=tmp_path / "log")
    assert {name: [each["step"] for each in found] for name, found in answers.items()} == {
        name: [2, 3, 4] for name in ("a", "b", "c")
    }
    assert all(each["wall_s"] >= 0.01 for found in answers.values() for each in found)  # they sleep so long
    # Each round another begins, and nobody begins before the one before has ended.
    assert log.read_text().split("\n")[:-1] == [
        f"{name} {word}" for name in "abcbcacababc" for word in ("begins", "ends")
    ]


def test_a_racer_that_dies_is_named(load: Callable[[str], ModuleType], tmp_path: Path) -> None:
    code = RACER.format(here=str(HERE), log=str(tmp_path / "turns"))
    commands = {name: [sys.executable, "-c", code, name] for name in ("a", "mortal")}
    with pytest.raises(SystemExit, match="mortal has ended with exit code 7"):
        load("race").race(commands, rounds=3, warm_up=0, log=tmp_path / "log")


MEASURE = """
import json, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from commands import measured
small = measured([sys.executable, "-c", "print('x'); print('{{\\"a\\": 1}}')"], Path({log!r}))
large = measured([sys.executable, "-c", "b = b'x' * (200 << 20); print(b[0])"], Path({log!r}))
print(json.dumps([small, large]))
"""


def test_a_command_is_measured_with_its_memory(tmp_path: Path) -> None:
    """From a process that is small itself: no child's peak is below its parent's."""
    code = MEASURE.format(here=str(HERE), log=str(tmp_path / "log"))
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    small, large = json.loads(printed.stdout)
    assert small["told"] == {"a": 1} and "told" not in large
    assert small["peak_mib"] < 100 and 200 < large["peak_mib"] < 300


def test_a_command_that_fails_ends_the_run(load: Callable[[str], ModuleType], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="exit code 3; see"):
        load("commands").measured([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log")


def test_a_ratio_is_that_of_a_round(load: Callable[[str], ModuleType]) -> None:
    render = load("render")
    ours = [{"cpu_s": 1.0}, {"cpu_s": 10.0}, {"cpu_s": 2.0}]
    theirs = [{"cpu_s": 2.0}, {"cpu_s": 10.0}, {"cpu_s": 8.0}]
    assert render.ratios(theirs, ours) == [2.0, 1.0, 4.0]  # of the medians: 8 / 2 = 4
    assert render._spread(render.ratios(theirs, ours), 2) == "2.00 [1.00, 4.00]"


def test_the_rest_is_what_no_phase_has(load: Callable[[str], ModuleType]) -> None:
    answers = [{"cpu_s": 1.0, "phases": {"forward": 0.25, "backward": 0.5}}]
    assert load("render")._phase(answers, "the rest") == 0.25


def test_the_document_is_made_of_the_results(load: Callable[[str], ModuleType]) -> None:
    """`python tests/bench/render.py` writes it again."""
    results = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    document = (HERE.parent.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert load("render").render(results) == document
