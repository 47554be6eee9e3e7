"""`python -m rlsweep.train RUN_DIR [--attempt N]`: train the run of a folder, from its newest checkpoint if it has one.

Exit codes: 0 done; 2 a recipe that can't be trained; 75 asked to stop by SIGTERM or SIGINT, or left by another rank,
saved, wants to go on; 76 diverged; 1 any other error. `--prepare` only makes the embedded model that the run starts
from, so that runs started together share it.

Several processes train one run together where each is started with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT, as torchrun sets them. Rank 0 alone writes to the run folder.
"""

import argparse
import os
import sys
import time
import traceback
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from rlsweep.errors import RlsweepError, UsageError
from rlsweep.recipe.resolved import read_resolved
from rlsweep.recipe.schema import Recipe
from rlsweep.store import attempts, checkpoints, outcome
from rlsweep.store.attempts import Attempt, Superseded
from rlsweep.store.files import describe, disk_fault, read_json, write_json
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import DIVERGED, SAVED, Outcome
from rlsweep.train.asked import Asked, Stop
from rlsweep.train.ranks import Lost, Ranks, ranks_of


def main() -> int:
    """Parse, train, write the outcome."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m rlsweep.train", description="Train the run of a folder.")
    parser.add_argument("run", type=Path, help="folder of the run: ROOT/runs/KEY, with its recipe.yaml")
    parser.add_argument("--attempt", type=int, help="attempt that the launcher has claimed; default: claim the next")
    parser.add_argument("--prepare", action="store_true", help="only make the model that the run starts from")
    arguments = parser.parse_args()
    run = RunFolder(arguments.run.resolve())
    try:
        if arguments.prepare:
            _source(read_resolved(run.recipe), run)
            return 0
        stop = Stop()
        stop.listen()
        recipe = read_resolved(run.recipe)
        ranks = ranks_of(os.environ, stop)
        if ranks.world > 1 and arguments.attempt is None:
            raise UsageError("several ranks need --attempt: one claims an attempt for all of them")
        attempt = Attempt(run, arguments.attempt) if arguments.attempt else attempts.claim(run)
        attempt.require_owner()
        if ranks.leads:
            attempts.record_process(attempt)
        return _train(recipe, run, attempt, ranks, started)
    except Superseded as error:
        _say(f"rlsweep: {error}", sys.stderr)
        return 1
    except RlsweepError as error:
        _say(f"rlsweep: {error}", sys.stderr)
        return error.exit_code
    except Exception as error:
        fault = disk_fault(error)
        if fault is None:
            raise
        _say(f"rlsweep: {fault}", sys.stderr)
        return 1


def _train(recipe: Recipe, run: RunFolder, attempt: Attempt, ranks: Ranks, started: float) -> int:
    try:
        if ranks.leads:
            run.outcome.unlink(missing_ok=True)
        ended = _run(recipe, run, attempt, ranks, started)
    except Superseded as error:
        ranks.tell(str(error))
        raise
    except Asked:  # while it was loading: nothing is lost
        ended = _stopped(run, "asked to stop before its first step")
    except Lost as error:
        ended = _stopped(run, str(error))
    except Exception as error:
        # Whatever it was, the folder must say that this attempt has failed and why; the traceback is in its log.
        told = disk_fault(error) or (str(error) if isinstance(error, RlsweepError) else None)
        reason = (told or f"{type(error).__name__}: {error}").splitlines()[0]
        ranks.tell(reason)
        if ranks.leads:
            try:
                outcome.write(run, replace(_stopped(run, reason), state="failed", attempt=attempt.number))
            except OSError as unwritten:
                _say(f"rlsweep: that this attempt failed could not be noted: {describe(unwritten)}", sys.stderr)
        if told:
            raise
        traceback.print_exc()
        return 1
    if ranks.leads:
        outcome.write(run, replace(ended, attempt=attempt.number))
    _say(f"{ended.state} at step {ended.step}: {ended.reason}")
    return {"finished": 0, "interrupted": SAVED, "diverged": DIVERGED}[ended.state]


def _run(recipe: Recipe, run: RunFolder, attempt: Attempt, ranks: Ranks, started: float) -> Outcome:
    # Several ranks agree on whether to stop, while they load as well as later.
    with ranks.stop.at_once() if ranks.world == 1 else nullcontext():
        import torch

        from rlsweep.train.loop import train
        from rlsweep.train.provenance import collect
        from rlsweep.train.state import build

        _quieten()
        threads = _threads(recipe, run)
        torch.set_num_threads(threads)
        if ranks.leads:
            made_with = collect(threads, recipe.execution.device)
            write_json(run.provenance, made_with)
            write_json(attempt.provenance, made_with)  # a run may go on with other code, on another machine
        state = build(recipe, run, attempt, lambda: _source(recipe, run), started, _say, ranks)
    who = "one process" if ranks.world == 1 else f"rank {ranks.rank} of {ranks.world}"
    how = f"{who}, {state.accelerator.distributed_type}, {state.accelerator.device}, {threads} thread(s)"
    _say(f"attempt {attempt.number} from step {state.step}: {how}")
    try:
        ended = train(state, _say)
        ranks.part()
        return ended
    finally:
        state.engine.close()


def _stopped(run: RunFolder, reason: str) -> Outcome:
    """An end at the step that a run can go on from."""
    reached = checkpoints.resumable(run)
    return Outcome("interrupted", reached.step if reached else 0, reason)


def _threads(recipe: Recipe, run: RunFolder) -> int:
    """The thread count belongs to the run, not to the attempt: sums depend on it in their last bits."""
    for path in (run.provenance, *(earlier.provenance for earlier in reversed(attempts.every(run)))):
        try:
            return int(read_json(path)["threads"])
        except FileNotFoundError:
            continue
        except (RlsweepError, KeyError, TypeError, ValueError):
            _say(f"warning: {path} is damaged; how many threads the run has is taken from elsewhere")
    return recipe.execution.threads


def _say(text: str, stream: TextIO | None = None) -> None:
    """A line of the log. A run doesn't end because the disk that its log is on is full."""
    with suppress(OSError):
        print(text, file=stream, flush=True)


def _quieten() -> None:
    """No progress bars in the log, no warnings about forks."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.disable_progress_bar()


def _source(recipe: Recipe, run: RunFolder) -> tuple[str, str | None]:
    from rlsweep.train.warm_start import model_source

    _quieten()
    return model_source(recipe, Root(run.path.parent.parent).models)


if __name__ == "__main__":
    sys.exit(main())
