from pathlib import Path
from typing import Any

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.store import ledger
from rlsweep.store.layout import Root, SweepFolder


@pytest.fixture
def sweep(tmp_path: Path) -> SweepFolder:
    return Root(tmp_path / "dossier à moi").sweep("scalerl tiny é")


def intent(run_key: str, variant: str, variant_key: str, seed: int = 0, steps: int = 10) -> dict[str, Any]:
    return {
        "kind": "intent",
        "time": 1.0,
        "run_key": run_key,
        "variant": variant,
        "variant_key": variant_key,
        "seed": seed,
        "difference": {"loss.type": variant},
        "steps": steps,
    }


def keys(sweep: SweepFolder) -> list[str]:
    return [found.run_key for found in ledger.wanted(sweep)]


def test_rows_are_added_and_read_in_order(sweep: SweepFolder) -> None:
    assert ledger.read(sweep) == [] and ledger.wanted(sweep) == []
    rows = [intent("a", "base", "A"), {"kind": "attempt", "time": 2.0, "run_key": "a", "attempt": 1}]
    ledger.append(sweep, rows[:1])
    ledger.append(sweep, rows[1:])
    ledger.append(sweep, [])
    assert ledger.read(sweep) == rows
    found = ledger.wanted(sweep)[0]
    assert (found.run_key, found.variant, found.seed, found.steps, found.difference) == (
        "a",
        "base",
        0,
        10,
        {"loss.type": "base"},
    )


def test_a_torn_last_row_is_cut_off_by_the_next(sweep: SweepFolder) -> None:
    ledger.append(sweep, [intent("a", "base", "A"), intent("b", "loss=dapo", "B")])
    sweep.ledger.write_bytes(sweep.ledger.read_bytes()[:-5])
    assert keys(sweep) == ["a"]
    ledger.append(sweep, [intent("c", "loss=gspo", "C")])
    assert keys(sweep) == ["a", "c"]


def test_the_newest_intent_of_a_variant_and_seed_counts(sweep: SweepFolder) -> None:
    ledger.append(
        sweep, [intent("a", "base", "A"), intent("b", "base", "A", seed=1), intent("a", "base", "A", steps=99)]
    )
    assert [(found.run_key, found.steps) for found in ledger.wanted(sweep)] == [("a", 99), ("b", 10)]


def test_a_variant_that_came_to_mean_another_recipe_leaves_its_old_runs(sweep: SweepFolder) -> None:
    ledger.append(sweep, [intent("a0", "base", "A"), intent("a1", "base", "A", seed=1), intent("d0", "loss=dapo", "D")])
    ledger.append(sweep, [intent("b0", "base", "B")])
    assert keys(sweep) == ["b0", "d0"]
    ledger.append(sweep, [intent("a0", "base", "A")])
    assert keys(sweep) == ["a0", "a1", "d0"]


def test_a_variant_asked_for_by_another_name_stands_once_under_the_newer(sweep: SweepFolder) -> None:
    ledger.append(sweep, [intent("a0", "base", "A"), intent("a1", "base", "A", seed=1), intent("d0", "loss=dapo", "D")])
    ledger.append(sweep, [intent("a0", "loss=cispo", "A")])
    found = [(each.run_key, each.variant, each.seed) for each in ledger.wanted(sweep)]
    assert found == [("d0", "loss=dapo", 0), ("a0", "loss=cispo", 0), ("a1", "loss=cispo", 1)]
    assert ledger.wanted(sweep)[2].difference == {"loss.type": "loss=cispo"}


def test_the_recipe_a_sweep_was_first_asked_for_with_keeps_its_name(sweep: SweepFolder) -> None:
    assert ledger.recipe_name(sweep) is None
    first = {**intent("a", "base", "A"), "recipe_name": "one"}
    ledger.append(sweep, [first, {**first, "recipe_name": "two", "steps": 20}])
    assert ledger.recipe_name(sweep) == "one"
    assert [each.steps for each in ledger.intents(sweep)] == [10, 20]
    assert [each.steps for each in ledger.wanted(sweep)] == [20]


def test_a_damaged_ledger_is_told_with_the_way_out_and_never_taken_for_an_empty_one(sweep: SweepFolder) -> None:
    ledger.append(sweep, [intent("a", "base", "A"), intent("b", "loss=dapo", "B")])
    good = sweep.ledger.read_text()
    sweep.ledger.write_text("garbage\n" + good)
    with pytest.raises(RlsweepError, match=r"ledger.jsonl:1: not a whole row.* take that line out"):
        ledger.wanted(sweep)
    sweep.ledger.write_text("garbage\n")
    with pytest.raises(RlsweepError, match="no whole row in it; the file is damaged"):
        ledger.wanted(sweep)
    sweep.ledger.write_text("")
    assert ledger.wanted(sweep) == []


def handed(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "time": 1.0, **more}


def test_a_submission_is_as_far_as_its_rows_say(sweep: SweepFolder) -> None:
    assert ledger.submissions(sweep) == []
    ledger.append(sweep, [intent("a", "base", "A"), intent("b", "loss=dapo", "B")])
    for token, runs in (("t1", ["a"]), ("t2", ["b"]), ("t3", ["b"])):
        ledger.append(sweep, [handed("submitting", token=token, cluster="h100", runs=runs)])
    ledger.append(sweep, [handed("submitted", token="t1", job="7", runs=["a"])])
    ledger.append(sweep, [handed("submitted", token="t3", job="8", runs=["b"]), handed("released", tokens=["t1"])])
    assert [(each.token, each.state, each.job, each.runs) for each in ledger.submissions(sweep)] == [
        ("t1", "released", "7", ("a",)),
        ("t2", "submitting", None, ("b",)),
        ("t3", "submitted", "8", ("b",)),
    ]
    assert keys(sweep) == ["a", "b"] and len(ledger.intents(sweep)) == 2


@pytest.mark.parametrize(
    "row",
    [
        handed("submitting", cluster="h100", runs=[]),
        handed("submitted", token="t", job="7", runs=[]),
        handed("released", tokens=["t"]),
        handed("released", tokens=None),
    ],
)
def test_a_submission_s_row_that_lacks_something_is_damage(sweep: SweepFolder, row: dict[str, Any]) -> None:
    ledger.append(sweep, [row])
    with pytest.raises(RlsweepError, match="the file is damaged"):
        ledger.submissions(sweep)


def test_the_newest_cap_holds(sweep: SweepFolder) -> None:
    assert ledger.cap(sweep) is None
    ledger.append(sweep, [intent("a", "base", "A"), handed("cap", max_gpu_hours=7.0)])
    ledger.append(sweep, [handed("cap", max_gpu_hours=5), intent("b", "loss=dapo", "B")])
    assert ledger.cap(sweep) == 5.0 and keys(sweep) == ["a", "b"]
    ledger.append(sweep, [handed("cap", max_gpu_hours=None)])
    with pytest.raises(RlsweepError, match="a row 'cap' is not valid"):
        ledger.cap(sweep)
