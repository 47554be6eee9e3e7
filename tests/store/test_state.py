"""The state of a run when one of its small files is damaged: told, and never an end to looking at the others."""

import os
from pathlib import Path

import pytest

from rlsweep.store import attempts, outcome
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome
from rlsweep.store.state import look


@pytest.fixture()
def run(tmp_path: Path) -> RunFolder:
    found = Root(tmp_path).run("0123456789ab")
    found.path.mkdir(parents=True)
    return found


@pytest.mark.parametrize("text", ["{", "[]", '{"pid": "x", "host": 3}', ""])
def test_of_a_damaged_process_file_nobody_can_tell_so_silence_decides(run: RunFolder, text: str) -> None:
    """A trainer that lives must not be taken for dead, nor one that is dead be waited for without end."""
    attempt = attempts.claim(run)
    attempts.record_process(attempt)
    assert look(run).state == "running" and look(run).host == os.uname().nodename
    attempt.process.write_text(text)
    assert (look(run).state, look(run).host) == ("running", None)
    assert "process.json is damaged" in look(run).reason
    os.utime(attempt.process, (1e9, 1e9))
    assert look(run).state == "lost"


@pytest.mark.parametrize("text", ["{", "[]", '{"state": "happy", "step": 1, "reason": ""}'])
def test_a_damaged_outcome_is_told_and_the_run_can_go_on(run: RunFolder, text: str) -> None:
    attempt = attempts.claim(run)
    attempt.process.write_text("{}")
    outcome.write(run, Outcome("finished", 7, "done"))
    assert (look(run).state, look(run).step) == ("finished", 7)
    run.outcome.write_text(text)
    seen = look(run)
    assert seen.state == "lost" and "outcome.json" in seen.reason
