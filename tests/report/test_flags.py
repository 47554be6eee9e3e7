from typing import Any

import numpy as np

from rlsweep.law.curve import Curve
from rlsweep.report import flags
from rlsweep.report.rows import RunRow


def run(
    seed: int = 0,
    steps: int = 3,
    wanted: int = 20,
    end: float = 1e9,
    truncated: float | None = None,
    state: str = "finished",
    most_truncated: float | None = None,
    errors: int = 0,
    marks: dict[int, int] | None = None,
    damage: tuple[str, ...] = (),
) -> RunRow:
    at = np.arange(steps) * 10
    compute = np.linspace(0, end, steps)
    return RunRow(
        key="k", variant="v", seed=seed, state=state, reason="loss is nan.", step=int(at[-1]) if steps else 0,
        wanted_steps=20, attempts=1, curve=Curve("v", seed, "flops", compute, np.full(steps, 0.5), compute * 0, at),
        compute=end, lost=0.0, sizes=(), truncated=truncated, interrupted=None, most_truncated=most_truncated,
        verifier_errors=errors, marks=marks or {}, damage=damage,
    )  # fmt: skip


def test_a_clean_variant_raises_nothing() -> None:
    assert flags.of_runs([run(0), run(1, truncated=0.1)], 20) == []
    assert flags.against_base([run(end=1e9)], 20, [run(end=1.2e9)], 20, "flops") == []


def test_truncation_above_ten_percent() -> None:
    assert flags.of_runs([run(0, truncated=0.02), run(1, truncated=0.12)], 20) == [
        "12% of responses hit the token limit; above 10% runs tend to become unstable."
    ]


def test_truncation_that_came_and_went() -> None:
    assert flags.of_runs([run(0, truncated=0.02, most_truncated=0.1)], 20) == []
    assert flags.of_runs(
        [run(0, truncated=0.02, most_truncated=0.31), run(1, truncated=0.04, most_truncated=0.2)], 20
    ) == [
        "Up to 31% of responses hit the token limit on the way, 4% by the end; above 10% runs tend to become unstable."
    ]
    now = flags.of_runs([run(0, truncated=0.12, most_truncated=0.31)], 20)
    assert len(now) == 1 and now[0].startswith("12% of responses")


def test_verifiers_that_failed() -> None:
    assert flags.of_runs([run(0, errors=1), run(1)], 20) == [
        "Seed 0: the verifier raised, hung or returned no outcome on 1 response; it counts as unparseable."
    ]
    assert flags.of_runs([run(0, errors=1), run(2, errors=6)], 20) == [
        "Seeds 0 and 2: the verifier raised, hung or returned no outcome on 7 responses; they count as unparseable."
    ]


def test_damaged_files_come_first() -> None:
    found = flags.of_runs([run(0), run(1, steps=0, damage=("a.json: not JSON", "b: empty"))], 20)
    assert found == [
        "Seed 1 has a damaged file, a.json: not JSON.",
        "Seed 1 has a damaged file, b: empty.",
        "Only 1 of 2 seeds has an evaluation.",
    ]


def test_variants_that_differ_in_nothing_they_did() -> None:
    """Seeds that both have must agree wherever both were measured, once after the start at least."""

    def same(ours: list[dict[int, int]], theirs: list[dict[int, int]]) -> bool:
        one, other = ([run(seed, marks=marks) for seed, marks in enumerate(each)] for each in (ours, theirs))
        return bool(flags.of_the_same(one, {"x": other}))

    assert same([{0: 5, 10: 6}], [{0: 5, 10: 6}])
    assert same([{0: 5, 10: 6, 20: 7}], [{0: 5, 10: 6}])  # further, and the same so far
    assert same([{10: 6}, {10: 8}], [{10: 6}])
    assert not same([{0: 5}], [{0: 5}])  # before any training
    assert not same([{0: 5, 10: 6}], [{0: 5, 10: 7}])
    assert not same([{0: 5, 10: 6}], [{0: 4, 10: 6}])
    assert not same([{10: 6}, {10: 8}], [{10: 6}, {10: 9}])
    assert not same([{10: 6}], [{20: 6}])
    assert not same([{10: 6}], [])
    others = {"a\n|b": [run(0, marks={10: 6}), run(3, marks={10: 7})], "c": [run(0, marks={10: 6})], "d": [run(1)]}
    end = "the difference changed nothing in these runs."
    assert flags.of_the_same([run(0, marks={10: 6}), run(3, marks={10: 7})], others) == [
        f"Its evaluations are those of a |b, prompt for prompt (seeds 0 and 3): {end}",
        f"Its evaluations are those of c, prompt for prompt (seed 0): {end}",
    ]


def test_seeds_that_are_missing_behind_or_broken_are_named() -> None:
    assert flags.of_runs([run(0), run(1, steps=0, state="waiting")], 20) == ["Only 1 of 2 seeds has an evaluation."]
    assert flags.of_runs([run(0), run(1, steps=2, state="running")], 10) == [
        "Seed 1 not at the wanted number of steps yet: all numbers are of what is there.",
        "Seeds end at different steps: the final pass rate is of step 10, the last they share.",
    ]
    assert flags.of_runs([run(0, state="diverged"), run(2, state="diverged")], 20) == [
        "Seeds 0 and 2 diverged at step 20: loss is nan."
    ]


def test_other_windows_and_steps_than_the_base() -> None:
    assert flags.against_base([run(end=1e9)], 20, [run(end=2e9)], 10, "flops") == [
        "Measured at step 20, the base at step 10: final pass rates are not like for like.",
        "Fitted up to 1.00e9 FLOPs, the base up to 2.00e9 FLOPs.",
    ]


def test_other_machines_matter_for_device_hours_and_other_commits_always() -> None:
    ours, base = (
        [{"devices": {"kind": "cuda", "name": name}, "git": {"commit": name * 10}}] for name in ("A100", "H200")
    )
    by_hours = flags.of_machines(ours, base, "device_hours")
    assert by_hours[0] == "Ran on unlike devices (A100 and H200): device-hours are not one quantity."
    assert flags.of_machines(ours, base, "flops") == by_hours[1:]
    assert "different commits" in by_hours[1]
    assert flags.of_machines([{}], base, "device_hours") == []


def test_a_run_that_went_on_with_other_code_or_devices_is_named() -> None:
    def made(commit: str | None, torch: str, kind: str, numpy: str = "2") -> dict[str, Any]:
        packages = {"torch": torch, "numpy": numpy, "rlsweep": "0.1"}
        return {"git": {"commit": commit}, "packages": packages, "devices": {"kind": kind, "name": numpy}}

    runs = [run(0), run(1), run(2), run(3)]
    attempts = [
        [made("a", "1", "cpu"), made("b", "2", "cuda"), made("a", "2", "cuda")],
        [made("a", "1", "cpu"), made("a", "1", "cpu", numpy="3"), made(None, "1", "cpu"), {}],
        [],
        [made("a", "1", "cpu"), made("b", "2", "cuda")],
    ]
    assert flags.of_attempts(runs, attempts) == [
        "Seeds 0 and 3 went on with another commit (a, then b), another torch (1, then 2) and another kind of device "
        "(cpu, then cuda)."
    ]
