"""Sweeps whose journals were written by no trainer: the law with binomial noise, through the store."""

import hashlib
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlsweep.report.build import build
from rlsweep.report.rows import Report
from rlsweep.report.write import write
from rlsweep.store import attempts, ledger, outcome
from rlsweep.store.files import write_json
from rlsweep.store.journal import Journal
from rlsweep.store.layout import Root, SweepFolder


@dataclass(frozen=True)
class Fake:
    """One variant to simulate: the law's A, C_mid (FLOPs) and where it ends; `points` evaluations up to `end`."""

    A: float = 0.8
    C_mid: float = 1e11
    end: float = 5e11
    points: int = 13
    seeds: Sequence[int] = (0, 1)
    difference: Mapping[str, Any] = field(default_factory=dict)
    state: outcome.State = "finished"
    reason: str = ""
    truncated: float = 0.01
    device: tuple[str, str] = ("cpu", "Some CPU")
    recipe: str = ""


def make(root: Root, name: str, variants: Mapping[str, Fake], prompts: int = 300, samples: int = 4) -> SweepFolder:
    rows = []
    for variant, fake in variants.items():
        for seed in fake.seeds:
            key = _hex(name, variant, seed)
            rows.append(
                {
                    "kind": "intent",
                    "time": 1.0,
                    "run_key": key,
                    "variant": variant,
                    "variant_key": _hex(name, variant),
                    "seed": seed,
                    "difference": dict(fake.difference),
                    "steps": 10 * max(1, fake.points - 1),
                }
            )
            _run(root, key, fake, seed, prompts, samples)
    ledger.append(root.sweep(name), rows)
    return root.sweep(name)


def _run(root: Root, key: str, fake: Fake, seed: int, prompts: int, samples: int) -> None:
    run = root.run(key)
    run.path.mkdir(parents=True)
    if fake.recipe:
        run.recipe.write_text(fake.recipe)
    if not fake.points:
        return
    rng = np.random.default_rng([int(key, 16), seed])
    attempt = attempts.claim(run)
    gone = {"pid": 1, "start_ticks": 1, "boot": "another", "host": socket.gethostname(), "started": 1.0}
    write_json(attempt.process, gone)
    with Journal(run, attempt) as journal:
        for index in range(fake.points):
            step, compute = 10 * index, fake.end * index / max(1, fake.points - 1)
            share = 1 / (1 + (fake.C_mid / compute) ** 1.6) if compute else 0.0
            counts = rng.binomial(samples, 0.2 + (fake.A - 0.2) * share, prompts)
            clocks = {"clock/flops": compute, "clock/samples": 64 * step, "clock/device_hours": compute / 1e12}
            if index:
                metrics = {**clocks, "train/truncated": fake.truncated}
                journal.append({"kind": "step", "step": step, "time": 1.0, "metrics": metrics})
            metrics = {**clocks, "evaluation/pass_rate": float(counts.mean() / samples), "evaluation/interrupted": 0.05}
            journal.append(
                {
                    "kind": "evaluation",
                    "step": step,
                    "time": 1.0,
                    "metrics": metrics,
                    "counts": counts.tolist(),
                    "samples": samples,
                }
            )
    kind, device = fake.device
    write_json(
        run.provenance,
        {
            "git": {"commit": "a" * 40},
            "packages": {"torch": "2"},
            "devices": {"kind": kind, "name": device, "count": 1},
        },
    )
    outcome.write(run, outcome.Outcome(fake.state, 10 * (fake.points - 1), fake.reason))


def _hex(*words: object) -> str:
    return hashlib.sha256(repr(words).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Written:
    """A report with its files."""

    root: Root
    folder: SweepFolder
    report: Report

    def text(self, ending: str) -> str:
        return (self.folder.reports / f"report.{ending}").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def fake() -> type[Fake]:
    return Fake


@pytest.fixture(scope="session")
def make_sweep() -> Callable[..., SweepFolder]:
    return make


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A base, a weaker and slower variant, one that has barely begun, one with a hostile name measured otherwise."""
    root = Root(Path(tmp_path_factory.mktemp("root")))
    folder = make(
        root,
        "study",
        {
            "base": Fake(points=31, end=1e12),
            "loss=dapo": Fake(A=0.7, C_mid=1.6e11, points=31, end=1e12, difference={"loss.type": "dapo"}),
            "loss=gspo": Fake(C_mid=6e11, points=6, end=2e11, difference={"loss.type": "gspo"}),
            HOSTILE: Fake(
                points=12,
                seeds=(3,),
                difference={"task.type": "<img src=http://x.example>"},
                state="diverged",
                reason="a|b",
            ),
        },
    )
    report = build(root, "study")
    write(report, folder)
    return Written(root, folder, report)


HOSTILE = "name=<script>alert('1')</script>|`$x$`\n# [b](javascript:c)"


@pytest.fixture(scope="session")
def hostile() -> str:
    return HOSTILE
