import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlsweep.curves.journal import from_run, pass_rate_of
from rlsweep.errors import RlsweepError, UsageError
from rlsweep.law.fit import fit
from rlsweep.store.layout import RunFolder


def evaluation(step: int, counts: list[int], samples: int = 4, **clocks: float) -> dict[str, Any]:
    metrics = {"evaluation/pass_rate": sum(counts) / samples / max(len(counts), 1)}
    metrics.update({f"clock/{name}": value for name, value in clocks.items()})
    return {"kind": "evaluation", "step": step, "time": 1.0, "metrics": metrics, "counts": counts, "samples": samples}


def step(number: int, **clocks: float) -> dict[str, Any]:
    metrics = {f"clock/{name}": value for name, value in clocks.items()}
    return {"kind": "step", "step": number, "time": 1.0, "metrics": metrics}


def write(path: Path, rows: list[dict[str, Any]], tail: str = "") -> RunFolder:
    path.mkdir(exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return RunFolder(path)


def test_points_steps_and_the_start_at_zero(tmp_path: Path) -> None:
    rows = [
        evaluation(0, [0, 1, 4], flops=123.0),  # whatever a clock says, no compute has been spent at step 0
        step(5, flops=5e12, device_hours=0.1),
        evaluation(5, [2, 1, 4], flops=5e12, device_hours=0.1),
        evaluation(10, [4, 4, 4], flops=1e13, device_hours=0.2),
    ]
    curve = from_run(write(tmp_path / "run", rows), "loss=dapo", 3, "flops")
    assert (curve.name, curve.seed, curve.unit) == ("loss=dapo", 3, "flops")
    assert curve.compute.tolist() == [0, 5e12, 1e13]
    assert curve.pass_rate == pytest.approx([5 / 12, 7 / 12, 1.0])
    assert curve.steps is not None and curve.steps.tolist() == [0, 5, 10]
    # first point: shares 0, 1/4, 1: 4/3 x (1/4 x 3/4) / (4 x 9)
    # last point: 12 of 12 right is Beta(13, 1), not certainty
    assert curve.variance == pytest.approx(
        [4 / 3 * 3 / 16 / 36, 4 / 3 * (1 / 4 + 3 / 16) / 36, 13 / 14 * (1 / 14) / 15]
    )
    assert from_run(RunFolder(tmp_path / "run"), "x", 0, "device_hours").compute.tolist() == [0, 0.1, 0.2]


def test_variance_is_unbiased() -> None:
    rng = np.random.default_rng(0)
    true = rng.uniform(0, 1, 30)
    rates, variances = zip(*(pass_rate_of(rng.binomial(6, true).tolist(), 6) for _ in range(4000)), strict=True)
    assert np.mean(variances) == pytest.approx(np.var(rates), rel=0.08)
    assert np.mean(variances) == pytest.approx(float((true * (1 - true)).sum() / 6 / 900), rel=0.02)


def test_one_sample_a_prompt_gets_the_binomial_bound() -> None:
    assert pass_rate_of([1, 0, 0, 1], 1) == (0.5, 0.25 / 4)


def test_an_evaluation_off_the_schedule_counts_while_it_is_the_last(tmp_path: Path) -> None:
    off = {**evaluation(15, [1, 2], flops=15.0), "off_schedule": True}
    rows = [evaluation(0, [0, 1]), evaluation(10, [1, 1], flops=10.0), off, step(16, flops=16.0)]
    assert from_run(write(tmp_path / "run", rows), "x", 0, "flops").compute.tolist() == [0, 10, 15]
    rows += [evaluation(20, [2, 2], flops=20.0), {**evaluation(25, [2, 2], flops=25.0), "off_schedule": True}]
    raised = from_run(write(tmp_path / "run", rows), "x", 0, "flops")
    direct = from_run(write(tmp_path / "direct", [row for row in rows if row is not off]), "x", 0, "flops")
    assert raised.compute.tolist() == direct.compute.tolist() == [0, 10, 20, 25]
    assert raised.pass_rate.tolist() == direct.pass_rate.tolist()


def test_a_run_in_progress(tmp_path: Path) -> None:
    none = from_run(RunFolder(tmp_path / "absent"), "x", 0, "flops")
    assert len(none.compute) == 0 and fit(none, draws=50).verdict == "not identified"
    torn = write(tmp_path / "run", [evaluation(0, [1, 2])], tail='{"kind": "evaluation", "st')
    assert len(from_run(torn, "x", 0, "flops").compute) == 1
    with pytest.raises(RlsweepError, match=r"metrics\.jsonl:2"):
        from_run(write(tmp_path / "bad", [], tail='{}\n{"a\n{}\n'), "x", 0, "flops")


def test_names_what_is_missing(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [evaluation(3, [1, 2], flops=1.0)])
    with pytest.raises(UsageError, match="the evaluation at step 3 has no clock/device_hours"):
        from_run(run, "x", 0, "device_hours")
    with pytest.raises(UsageError, match=r"'hours' is not a unit of compute; choose one of .*flops"):
        from_run(run, "x", 0, "hours")
