"""A run that is killed with SIGKILL at any moment, and started again, ends as the undisturbed one, bit for bit."""

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlsweep.recipe.budget import Budget
from rlsweep.recipe.off_policy import Ppo
from rlsweep.recipe.schema import Recipe
from rlsweep.store import attempts
from rlsweep.store.journal import read_rows

KILLS = [
    *[("prompt", times) for times in (1, 2, 7)],
    *[("generation", times) for times in (1, 60, 120)],
    ("filters", 4),
    ("forward", 3),
    *[("optimizer", times) for times in (1, 5)],
    ("updated", 5),
    ("publish", 4),
    *[("evaluation", times) for times in (1, 2, 3)],
    *[("evaluated", times) for times in (1, 3)],
    *[("row", times) for times in (1, 6, 10)],
    *[("written row", times) for times in (4, 9)],
    ("weights", 2),
    ("moments", 2),
    ("rollouts", 1),
    *[("sync", times) for times in (1, 2)],
    *[("rename", times) for times in (1, 3, 4)],
    *[("renamed", times) for times in (1, 3)],
    ("removal", 1),
    ("pruned", 2),
    ("outcome", 1),
]


@pytest.mark.parametrize(("moment", "times"), KILLS)
def test_killed_at_any_moment_it_ends_the_same(
    forge: Any,
    recipe: Recipe,
    folder: Any,
    undisturbed: dict[str, Any],
    ending: Any,
    same: Any,
    moment: str,
    times: int,
) -> None:
    run = folder(recipe)
    code, said = forge.train(run, moment, times)
    assert code == -9, f"it never came to {moment} for the {times}. time: {code}, {said}"
    code, said = forge.train(run)
    assert code == 0, said
    found = ending(run)
    for part, expected in undisturbed.items():
        assert same(found[part], expected), part
    for row in read_rows(attempts.Attempt(run, 2).discarded):  # what was taken back stands once more
        assert (row["kind"], row["step"]) in {(each["kind"], each["step"]) for each in found["rows"]}


@pytest.mark.parametrize("moment", ["rewind", "rewound", "generation", "renamed"])
def test_killed_again_while_it_resumes_it_ends_the_same(
    forge: Any, recipe: Recipe, folder: Any, undisturbed: dict[str, Any], ending: Any, same: Any, moment: str
) -> None:
    run = folder(recipe)
    assert forge.train(run, "written row", 9)[0] == -9  # step 7's row: 4 to 6 are covered by the checkpoint of 6
    assert forge.train(run, moment, 1)[0] == -9
    code, said = forge.train(run)
    assert code == 0, said
    assert same(ending(run), undisturbed)


def test_killed_at_random_moments_until_it_is_done_it_ends_the_same(
    forge: Any, recipe: Recipe, folder: Any, tmp_path: Path, ending: Any, same: Any
) -> None:
    """`ppo` with its whole phases in flight; each attempt gets a little further, if it can."""
    recipe = replace(recipe, off_policy=Ppo(k=3), budget=Budget(steps=14))
    run = folder(recipe)
    assert forge.train(run)[0] == 0
    expected = ending(run)
    run.path.rename(tmp_path / "undisturbed")
    run = folder(recipe)
    rng = random.Random(5)
    moments = ["generation", "forward", "optimizer", "row", "written row", "moments", "rename", "renamed", "evaluated"]
    killed = 0
    for _ in range(10):
        code, said = forge.train(run, rng.choice(moments), rng.randint(1, 4))
        killed += code == -9
        assert code in (0, -9), said
    code, said = forge.train(run)
    assert code == 0 and killed >= 5, (said, killed)
    assert same(ending(run), expected)


@pytest.mark.parametrize(
    "moment", ["generation", "forward", "row", "written row", "sync", "rename", "renamed", "pruned"]
)
def test_a_zombie_that_wakes_up_writes_nothing_more(
    forge: Any,
    zombies: Any,
    recipe: Recipe,
    folder: Any,
    undisturbed: dict[str, Any],
    ending: Any,
    same: Any,
    moment: str,
) -> None:
    """An attempt stands still for long at some moment, its successor takes over and ends; then it goes on."""
    run = folder(recipe)
    zombies.begin(run, moment, 60 if moment == "generation" else 2, how="wait")
    while not (run.path / "asleep").exists():
        time.sleep(0.01)
    code, said = forge.train(run)
    before = ending(run)
    (run.path / "wake").touch()
    assert code == 0, said
    code, said = zombies.end()
    assert code == 1 and "no longer owns the run" in said and "Traceback" not in said
    found = ending(run)
    assert same(found, before)
    for part, expected in undisturbed.items():
        assert same(found[part], expected), part
