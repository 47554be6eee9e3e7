"""A root with a sweep whose runs are written as the trainer writes them, and an MLflow store made once a session."""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from rlsweep.recipe.budget import Budget
from rlsweep.recipe.key import run_key, variant_key
from rlsweep.recipe.loss import Cispo, Dapo
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.schema import Recipe
from rlsweep.store import attempts, checkpoints, ledger, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import read_json, write_json, write_text
from rlsweep.store.journal import Journal, rewind
from rlsweep.store.layout import Root, RunFolder
from rlsweep.track.connect import connected
from rlsweep.track.where import locate

VARIANTS = {"base": Cispo(), "loss=dapo": Dapo()}
START = 1_700_000_000.0


@dataclass
class Trainer:
    """A run as its trainer would leave it: `step` and `evaluate` write rows, `save` a checkpoint."""

    run: RunFolder
    attempt: Attempt
    clock: float = START
    done: int = 0
    counts: list[int] = field(default_factory=lambda: [1, 0, 2, 4])

    def steps(self, number: int, **extra: float) -> "Trainer":
        with Journal(self.run, self.attempt) as journal:
            for _ in range(number):
                self.done += 1
                self.clock += 0.25
                metrics = {"train/loss": 1 / self.done, "train/reward": self.done / 100, "clock/flops": 3e9 * self.done}
                names = {name.replace("__", "/"): value for name, value in extra.items()}
                journal.append({"kind": "step", "step": self.done, "time": self.clock, "metrics": metrics | names})
        return self

    def evaluate(self, **more: object) -> "Trainer":
        self.counts = [min(count + self.done % 3, 7) for count in self.counts]
        rate = sum(self.counts) / (7 * len(self.counts))
        metrics = {
            "evaluation/pass_rate": rate,
            "clock/flops": 3e9 * self.done,
            "clock/device_hours": 0.1 * self.done,
        }
        row = {"kind": "evaluation", "step": self.done, "time": self.clock + 0.1, "metrics": metrics}
        with Journal(self.run, self.attempt) as journal:
            journal.append({**row, "counts": self.counts, "samples": 7, **more})
        return self

    def save(self) -> "Trainer":
        length = self.run.journal.stat().st_size if self.run.journal.exists() else 0
        with checkpoints.writing(self.run, self.attempt, self.done) as folder:
            (folder / "resume").mkdir()
            write_json(folder / "state.json", {"step": self.done, "journal_length": length})
        return self

    def end(self, state: str, reason: str = "") -> "Trainer":
        outcome.write(self.run, outcome.Outcome(state, self.done, reason))
        return self.die()

    def die(self) -> "Trainer":
        """As after SIGKILL: the process that process.json names is gone."""
        write_json(self.attempt.process, {**read_json(self.attempt.process), "start_ticks": 1})
        return self

    def resume(self) -> "Trainer":
        """A new attempt that goes on from the newest checkpoint."""
        checkpoint = checkpoints.newest(self.run)
        state = read_json(checkpoint.path / "state.json") if checkpoint else {"step": 0, "journal_length": 0}
        attempt = attempts.claim(self.run)
        attempts.record_process(attempt)
        rewind(self.run, attempt, state["journal_length"])
        return replace(self, attempt=attempt, done=state["step"], clock=self.clock + 100)


@dataclass(frozen=True)
class World:
    """A root and one of its sweeps, that of a recipe."""

    root: Root
    sweep: str = "tiny-loss"
    recipe: str = "tiny"

    def want(self, variant: str = "base", seed: int = 0, steps: int = 20) -> RunFolder:
        recipe = Recipe(name=self.recipe, loss=VARIANTS[variant], seed=seed, budget=Budget(steps=steps))
        run = self.root.run(run_key(recipe))
        run.path.mkdir(parents=True, exist_ok=True)
        write_text(run.recipe, dump(recipe))
        intent = {
            "kind": "intent",
            "time": START,
            "recipe_name": self.recipe,
            "run_key": run.key,
            "variant": variant,
            "variant_key": variant_key(recipe),
            "seed": seed,
            "difference": {},
            "steps": steps,
        }
        ledger.append(self.root.sweep(self.sweep), [intent])
        write_text(self.root.sweep(self.sweep).spec, f"recipe: {self.recipe}\n")
        return run

    def begin(self, variant: str = "base", seed: int = 0) -> Trainer:
        run = self.want(variant, seed)
        attempt = attempts.claim(run)
        attempts.record_process(attempt)
        write_text(run.provenance, json.dumps(PROVENANCE))
        return Trainer(run, attempt)


PROVENANCE = {
    "git": {"commit": "c0ffee", "dirty": True, "diff": "--- a/x\n+++ b/x\n+one line\n"},
    "packages": {"torch": "2.13.0", "numpy": "2.3.0"},
    "python": "3.11.7",
    "host": "node7",
    "platform": "Linux",
    "devices": {"kind": "cpu", "name": "some CPU", "count": 2},
    "threads": 1,
    "started": START,
}


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with its tables and nothing else, made as the first sync under a root makes it."""
    folder = tmp_path_factory.mktemp("store")
    with connected(locate(folder, {})):
        pass
    return folder / "mlflow.db"


@pytest.fixture
def world(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """An empty root on the store of its own."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = tmp_path / "out"
    root.mkdir()
    with closing(sqlite3.connect(empty_store)) as source, closing(sqlite3.connect(root / "mlflow.db")) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode=WAL")
    return World(Root(root))
