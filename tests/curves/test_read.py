import json
import sys
from pathlib import Path

import numpy as np
import pytest

from rlsweep.curves.read import read_curves
from rlsweep.errors import UsageError

DATA = Path(__file__).parent.parent / "data"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_papers_curve() -> None:
    (curve,) = read_curves(DATA / "scalerl_8b_dense.csv")
    assert (curve.name, curve.seed, curve.unit, len(curve.compute)) == ("scalerl-8b", None, "device_hours", 34)
    assert (curve.compute[0], curve.pass_rate[-1]) == (1328, 0.6402)
    assert np.sqrt(curve.variance) == pytest.approx(np.full(34, 0.0039), abs=2e-4)


def test_runs_are_sorted_grouped_and_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.csv",
        "run_id,recipe,seed,step,compute,compute_unit,value,n_eval\n"
        "b,dapo,1,10,200,tokens,0.5,\n"
        "a,base,0,0,0,tokens,0,100\n"
        "b,dapo,1,5,100,tokens,0.25,400\n"
        "b,dapo,1,6,100,tokens,0.3,400\n",
    )
    b, a = read_curves(path)
    assert (b.name, b.seed, b.unit, a.name, a.seed) == ("dapo", 1, "tokens", "base", 0)
    assert b.compute.tolist() == [100, 100, 200] and b.pass_rate.tolist() == [0.25, 0.3, 0.5]
    assert b.steps is not None and b.steps.tolist() == [5, 6, 10]
    assert np.isnan(b.variance[2]) and b.variance[0] == pytest.approx(0.25 * 0.75 / 400, rel=0.01)
    assert a.variance[0] > 0  # none of 100 is not without error
    assert [curve.name for curve in read_curves(path, recipe="base")] == ["base"]


def test_jsonl_and_a_name_for_a_file_without_recipes(tmp_path: Path) -> None:
    rows = [{"run_id": 7, "pass_rate": 0.1 * k, "gpu_hours": k} for k in (2, 1)]
    path = write(tmp_path / "c.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    (curve,) = read_curves(path)
    assert (curve.name, curve.unit, curve.compute.tolist(), curve.steps) == ("7", "device_hours", [1, 2], None)
    assert read_curves(str(path), recipe="mine")[0].name == "mine"


def test_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_csv(DATA / "scalerl_8b_dense.csv")
    frame.loc[3, "n_eval"] = np.nan
    frame.to_parquet(tmp_path / "c.parquet")
    (curve,), (text,) = read_curves(tmp_path / "c.parquet"), read_curves(DATA / "scalerl_8b_dense.csv")
    assert (curve.compute == text.compute).all() and (curve.pass_rate == text.pass_rate).all()
    assert np.isnan(curve.variance).tolist() == [k == 3 for k in range(34)]
    with pytest.raises(UsageError, match="not a Parquet file"):
        read_curves(write(tmp_path / "d.parquet", "no"))


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="needs pyarrow"):
        read_curves(write(tmp_path / "c.parquet", ""))


def test_metrics_are_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", "run_id,metric,flops,value\na,math,1,.1\na,code,1,.2\na,math,2,.3\na,code,2,.4\n")
    with pytest.raises(UsageError, match="several metrics, choose one: code, math"):
        read_curves(path)
    assert read_curves(path, metric="code")[0].pass_rate.tolist() == [0.2, 0.4]
    with pytest.raises(UsageError, match="no metric 'art'; there are: code, math"):
        read_curves(path, metric="art")


def test_a_run_folder(tmp_path: Path) -> None:
    row = {"kind": "evaluation", "step": 1, "metrics": {"clock/flops": 5.0, "clock/device_hours": 2.0}}
    row |= {"counts": [1, 2], "samples": 2, "time": 0.0}
    journal = write(tmp_path / "metrics.jsonl", json.dumps(row) + "\n")
    (curve,) = read_curves(tmp_path)
    assert (curve.name, curve.unit, curve.compute.tolist()) == (tmp_path.name, "flops", [5])
    (tmp_path / "provenance.json").write_text('{"devices": {"kind": "cuda"}}')
    assert read_curves(journal)[0].compute.tolist() == [2]
    assert read_curves(journal, unit="flops", recipe="base")[0].name == "base"


HEAD = "run_id,recipe,gpu_hours,pass_rate,n_eval\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD + "a,x,1,0.3,\na,x,2,62.5,\n",
            "c.csv:3, column pass_rate: .* got 62.5; it looks like percent: divide by 100",
        ),
        (HEAD + "a,x,1,-1,\n", "c.csv:2, column pass_rate: a pass rate is a fraction from 0 to 1, got -1$"),
        (HEAD + "a,x,1,high,\n", "c.csv:2, column pass_rate: not a number: 'high'"),
        (HEAD + "a,x,1,nan,\n", "c.csv:2, column pass_rate: not a number: 'nan'"),
        (HEAD + "a,x,,0.1,\n", "c.csv:2, column gpu_hours: not a number: ''"),
        (HEAD + "a,x,-3,0.1,\n", "c.csv:2, column gpu_hours: compute must be >= 0, got -3"),
        (HEAD + "a,x,1,0.1,many\n", "c.csv:2, column n_eval: not a number: 'many'"),
        (HEAD + ",x,1,0.1,\n", "c.csv:2: no run_id"),
        (HEAD + "a,x,1\n", "c.csv:2: has not as many cells"),
        (HEAD + "a,x,1,0.1,5,6\n", "c.csv:2: has not as many cells"),
        (HEAD + "a,x,1,0.1,\na,y,2,0.1,\n", "c.csv:3: run 'a' has more than one recipe: 'x' and 'y'"),
        (HEAD, "has no rows; its columns should be run_id"),
        ("", "has no rows"),
        ("run_id,value\na,0.1\n", r"c.csv:2: needs one column of compute \(compute or gpu_hours .* has none"),
        ("run_id,flops,value,pass_rate\na,1,0.1,0.1\n", "one column of pass rate .* has value and pass_rate"),
        ("run_id,compute,value\na,1,0.1\n", "c.csv:2: column compute has no unit"),
        ('run_id,flops,value\n"a,1,0.1\n', "c.csv: not a CSV file"),
    ],
)
def test_errors_say_where_and_what(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_curves(write(tmp_path / "c.csv", text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_curves(tmp_path / "absent.csv")
    with pytest.raises(UsageError, match=r"are read from \.csv, \.jsonl and \.parquet"):
        read_curves(write(tmp_path / "c.xls", ""))
    with pytest.raises(UsageError, match="not a run folder"):
        read_curves(tmp_path)
    with pytest.raises(UsageError, match=r"c\.jsonl:2: not a JSON object"):
        read_curves(write(tmp_path / "c.jsonl", '{"run_id": 1, "flops": 1, "value": 0.1}\n{"run\n'))
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not a UTF-8"):
        read_curves(tmp_path / "b.csv")
    with pytest.raises(UsageError, match="no run of recipe 'z'; there are: scalerl-8b"):
        read_curves(DATA / "scalerl_8b_dense.csv", recipe="z")


def test_the_unit_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", "run_id,compute,value\na,1,0.1\n")
    assert read_curves(path, unit="tokens")[0].unit == "tokens"
    assert read_curves(path, unit="gpu_hours")[0].unit == "device_hours"
