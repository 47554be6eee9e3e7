"""Curves of other people's runs: a table in CSV, JSONL or Parquet, one row an evaluation; also run folders and
MLflow."""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rlsweep.curves.axis import default_axis
from rlsweep.curves.journal import from_run
from rlsweep.errors import UsageError
from rlsweep.law.curve import Curve
from rlsweep.store import provenance
from rlsweep.store.layout import RunFolder, find_root

_PASS_RATE = ("value", "pass_rate")
_COMPUTE = {"compute": None, "gpu_hours": "device_hours", "device_hours": "device_hours", "flops": "flops"}
_LAYOUT = "run_id, recipe, pass_rate (or value), gpu_hours (or compute, with compute_unit), n_eval"
_MLFLOW = "mlflow:"

T = TypeVar("T")
Row = dict[str, Any]


@dataclass(frozen=True)
class _Point:
    compute: float
    pass_rate: float
    variance: float
    step: float | None


def read_curves(
    source: str | Path, *, recipe: str | None = None, metric: str | None = None, unit: str | None = None
) -> list[Curve]:
    """Curves by run, in the order they appear in.

    source  a .csv, .jsonl or .parquet file with the columns run_id, recipe, pass_rate or value (a fraction), gpu_hours,
            device_hours, flops or compute, n_eval (samples behind a pass rate; may be empty); further compute_unit,
            metric, seed, step. Rows need no order. Or a run folder or its metrics.jsonl; or "mlflow:NAME", a sweep or
            run in MLflow
    recipe  only the runs of this recipe; where the file has no such column, what its runs are called
    metric  which of the file's metrics, where it has several
    unit    unit of a compute column that has no compute_unit; the clock of a run folder

    Raises UsageError with file, line and column for what can't be read or isn't a curve."""
    if isinstance(source, str) and source.startswith(_MLFLOW):
        from rlsweep.curves.mlflow import from_mlflow

        return _only(from_mlflow(source.removeprefix(_MLFLOW), find_root(None), unit=unit), recipe, str(source))
    path = Path(source)
    if not path.exists():
        raise UsageError(f"{path}: no such file")
    folder = path if path.is_dir() else path.parent
    if path.is_dir() or path.name == RunFolder(folder).journal.name:
        return [_journal(RunFolder(folder), recipe, unit)]
    return _table(path, list(_rows(path)), recipe, metric, unit)


def _journal(run: RunFolder, recipe: str | None, unit: str | None) -> Curve:
    if not run.journal.exists():
        raise UsageError(f"{run.path}: not a run folder, it has no {run.journal.name}")
    if unit is None:
        unit = default_axis([provenance.device_kind(provenance.read(run))])
    return from_run(run, recipe or run.path.resolve().name, None, unit)


def _only(curves: list[Curve], recipe: str | None, where: str) -> list[Curve]:
    found = [curve for curve in curves if recipe in (None, curve.name)]
    if not found:
        names = ", ".join(sorted({curve.name for curve in curves})) or "none"
        raise UsageError(f"{where}: no run of recipe {recipe!r}; there are: {names}")
    return found


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Each row with the place it stands at."""
    reader = {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path}: curves are read from .csv, .jsonl and .parquet files and from run folders")
    try:
        yield from reader(path)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a UTF-8 text file") from error
    except csv.Error as error:
        raise UsageError(f"{path}: not a CSV file: {error}") from error


def _csv_rows(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if None in row or None in row.values():
                raise UsageError(f"{where}: has not as many cells as the header has columns")
            yield where, row


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{path}:{number}: not a JSON object: {error}") from error
            if not isinstance(row, dict):
                raise UsageError(f"{path}:{number}: not a JSON object")
            yield f"{path}:{number}", row


def _parquet_rows(path: Path) -> Iterator[tuple[str, Row]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            f"{path}: reading Parquet needs pyarrow (pip install pyarrow), or convert the file to CSV"
        ) from error
    try:
        rows: list[Row] = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise UsageError(f"{path}: not a Parquet file: {error}") from error
    for number, row in enumerate(rows, start=1):
        yield f"{path}: row {number}", row


def _table(
    path: Path, rows: list[tuple[str, Row]], recipe: str | None, metric: str | None, unit: str | None
) -> list[Curve]:
    rows = _of_metric(path, rows, metric)
    if not rows:
        raise UsageError(f"{path}: has no rows; its columns should be {_LAYOUT}")
    runs: dict[str, list[tuple[str, Row]]] = {}
    for where, row in rows:
        runs.setdefault(_text(where, row, "run_id"), []).append((where, row))
    return _only([_curve(run_id, own, recipe, unit) for run_id, own in runs.items()], recipe, str(path))


def _of_metric(path: Path, rows: list[tuple[str, Row]], metric: str | None) -> list[tuple[str, Row]]:
    names = sorted({str(row["metric"]) for _, row in rows if row.get("metric") not in (None, "")})
    if metric is None and len(names) > 1:
        raise UsageError(f"{path}: has several metrics, choose one: {', '.join(names)}")
    if metric is not None and metric not in names:
        raise UsageError(f"{path}: no metric {metric!r}; there are: {', '.join(names) or 'none (no metric column)'}")
    return rows if metric is None else [(where, row) for where, row in rows if str(row.get("metric")) == metric]


def _curve(run_id: str, rows: list[tuple[str, Row]], recipe: str | None, unit: str | None) -> Curve:
    default = recipe or run_id
    name = _same(run_id, [(where, str(_cell(row, "recipe") or default)) for where, row in rows], "recipe")
    seeds = [(where, None if _cell(row, "seed") is None else int(_number(where, row, "seed"))) for where, row in rows]
    units = [(where, _unit(where, row, unit)) for where, row in rows]
    points = sorted((_point(where, row) for where, row in rows), key=lambda point: (point.compute, point.step or 0.0))
    steps = [point.step for point in points]
    return Curve(
        name=name,
        seed=_same(run_id, seeds, "seed"),
        unit=_same(run_id, units, "unit of compute"),
        compute=np.array([point.compute for point in points]),
        pass_rate=np.array([point.pass_rate for point in points]),
        variance=np.array([point.variance for point in points]),
        steps=None if None in steps else np.array(steps, dtype=float),
    )


def _same(run_id: str, values: list[tuple[str, T]], what: str) -> T:
    """What all rows of a run say."""
    for where, value in values:
        if value != values[0][1]:
            raise UsageError(f"{where}: run {run_id!r} has more than one {what}: {values[0][1]!r} and {value!r}")
    return values[0][1]


def _unit(where: str, row: Row, unit: str | None) -> str:
    column = _column(where, row, tuple(_COMPUTE), "compute")
    known = _COMPUTE[column] or _cell(row, "compute_unit") or unit
    if known is None:
        raise UsageError(f"{where}: column {column} has no unit; add a column compute_unit, or give the unit")
    return _COMPUTE.get(str(known)) or str(known)


def _point(where: str, row: Row) -> _Point:
    column = _column(where, row, _PASS_RATE, "pass rate")
    rate = _number(where, row, column)
    if not 0 <= rate <= 1:
        hint = "; it looks like percent: divide by 100" if 1 < rate <= 100 else ""
        raise UsageError(f"{where}, column {column}: a pass rate is a fraction from 0 to 1, got {rate:g}{hint}")
    column = _column(where, row, tuple(_COMPUTE), "compute")
    compute = _number(where, row, column)
    if not 0 <= compute <= 1e300:
        raise UsageError(f"{where}, column {column}: compute must be >= 0, got {compute:g}")
    n = math.nan if _cell(row, "n_eval") is None else _number(where, row, "n_eval")
    # one success and one failure more, so that 0 of n and n of n are not without error
    smooth = (rate * n + 1) / (n + 2) if n > 0 else math.nan
    step = None if _cell(row, "step") is None else _number(where, row, "step")
    return _Point(compute, rate, smooth * (1 - smooth) / n if n > 0 else math.nan, step)


def _cell(row: Row, column: str) -> Any:
    """The cell, None where there is none or it is empty or nan."""
    value = row.get(column)
    empty = (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    )
    return None if empty else value


def _column(where: str, row: Row, names: tuple[str, ...], what: str) -> str:
    found = [name for name in names if name in row]
    if len(found) != 1:
        problem = f"has {' and '.join(found)}" if found else "has none"
        raise UsageError(
            f"{where}: needs one column of {what} ({' or '.join(names)}), {problem}; the layout is {_LAYOUT}"
        )
    return found[0]


def _text(where: str, row: Row, column: str) -> str:
    value = _cell(row, column)
    if value is None:
        raise UsageError(f"{where}: no {column}; the layout is {_LAYOUT}")
    return str(value)


def _number(where: str, row: Row, column: str) -> float:
    value = row[column]
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{where}, column {column}: not a number: {value!r}")
    return number
