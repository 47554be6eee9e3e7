"""Stands in for the trainer of one of several ranks: waits, and ends with the exit code in the file `ends-RANK` of the
run's folder (negative: by that signal), or with 75 when it is asked to. Rank 0 says in the outcome how it ended."""

import os
import signal
import sys
import time
from pathlib import Path

from rlsweep.store import attempts, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.layout import RunFolder
from rlsweep.store.outcome import Outcome

rank = int(os.environ["RANK"])
run = RunFolder(Path(sys.argv[1]))
attempt = Attempt(run, int(sys.argv[3]))
asked: list[int] = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
if rank == 0:
    attempts.record_process(attempt)
print(f"rank {rank} of {os.environ['WORLD_SIZE']}", flush=True)
ends = run.path / f"ends-{rank}"
while not asked and not (ends.exists() and ends.read_text()):
    time.sleep(0.02)
code = 75 if asked else int(ends.read_text())
if code < 0:
    os.kill(os.getpid(), -code)
if rank == 0:
    state = {0: "finished", 75: "interrupted"}.get(code, "failed")
    outcome.write(run, Outcome(state, 6, f"said rank 0: {code}", attempt.number))
sys.exit(code)
