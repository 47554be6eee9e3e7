"""Stands in for the trainer: writes a run folder through the store as the trainer does, and fails as it is told to.

It is told by the file `behaviour` under the root, a word a line: `<run_key or *> <word> [attempt]`.
"""

import os
import signal
import sys
import time
from pathlib import Path

from rlsweep.recipe.resolved import read_resolved
from rlsweep.store import attempts, checkpoints, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import write_json, write_text
from rlsweep.store.journal import Journal, rewind
from rlsweep.store.layout import RunFolder
from rlsweep.store.outcome import Outcome


def main() -> int:
    if sys.argv[1] == "--prepare":
        return prepare(RunFolder(Path(sys.argv[2])))
    run = RunFolder(Path(sys.argv[1]))
    attempt = Attempt(run, int(sys.argv[3]))
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    attempts.record_process(attempt)
    steps = read_resolved(run.recipe).budget.steps
    words = behaviour(run, attempt.number)
    print(f"attempt {attempt.number} of {run.key}, threads {os.environ['OMP_NUM_THREADS']}", flush=True)
    if "deaf" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "crash" in words:
        print("ValueError: no such thing", file=sys.stderr, flush=True)
        return 1
    if "killed" in words:
        os.kill(os.getpid(), signal.SIGKILL)
    if "stops" in words:
        return end(attempt, "interrupted", 0, "preempted", 75)
    if "diverges" in words:
        return end(attempt, "diverged", 3, "loss is not finite", 76)
    saved = checkpoints.resumable(run)
    first = saved.step if saved else 0
    rewind(run, attempt, int((saved.path / "length").read_text()) if saved else 0)
    with Journal(run, attempt) as journal:
        for step in range(first + 1, steps + 1):
            while "slow" in words and not (run.path / "go").exists() and not asked and step > 2:
                time.sleep(0.02)
            row = {"step": step, "time": time.time()}
            journal.append({**row, "kind": "step", "metrics": {"train/loss": 1.0}})
            rate = {"evaluation/pass_rate": step / 10}
            journal.append({**row, "kind": "evaluation", "metrics": rate, "counts": [1], "samples": 2})
            if step % 2 == 0 or asked:
                journal.sync()
                with checkpoints.writing(run, attempt, step) as folder:
                    (folder / "resume").mkdir()
                    write_text(folder / "length", str(journal.length))
            if asked:
                return end(attempt, "interrupted", step, "asked to stop", 75)
    return end(attempt, "finished", steps, "budget reached", 0)


def end(attempt: Attempt, state: str, step: int, reason: str, code: int) -> int:
    outcome.write(attempt.run, Outcome(state, step, reason, attempt.number))
    return code


def behaviour(run: RunFolder, attempt: int) -> set[str]:
    """Words for this run and attempt."""
    path = run.path.parent.parent / "behaviour"
    found = set()
    for line in path.read_text().splitlines() if path.exists() else []:
        key, word, *numbers = line.split()
        if key in ("*", run.key) and (not numbers or str(attempt) in numbers):
            found.add(word)
    return found


def prepare(run: RunFolder) -> int:
    with open(run.path.parent.parent / "prepared", "a") as file:
        file.write(run.key + "\n")
    if "unmakeable" in behaviour(run, 0):
        print("no model for you")
        return 1
    write_json(run.path.parent.parent / "made.json", {})
    return 0


sys.exit(main())
