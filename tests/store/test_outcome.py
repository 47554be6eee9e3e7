from pathlib import Path

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.store import attempts, checkpoints, outcome
from rlsweep.store.attempts import Superseded
from rlsweep.store.files import write_json
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return Root(tmp_path / "dossier à moi").run("0123456789ab")


def test_an_outcome_comes_back_with_the_attempt_it_is_of(run: RunFolder) -> None:
    assert outcome.read(run) is None
    attempts.claim(run)
    attempts.claim(run)
    outcome.write(run, Outcome("interrupted", 12, "arrêté: SIGTERM"))
    assert outcome.read(run) == Outcome("interrupted", 12, "arrêté: SIGTERM", attempt=2)
    outcome.write(run, Outcome("finished", 20, "budget reached", attempt=2))
    assert outcome.read(run) == Outcome("finished", 20, "budget reached", attempt=2)


def test_an_attempt_that_lost_the_run_has_no_outcome(run: RunFolder) -> None:
    attempts.claim(run, 2)
    with pytest.raises(Superseded):
        outcome.write(run, Outcome("failed", 1, "late", attempt=1))
    assert outcome.read(run) is None


@pytest.mark.parametrize("damaged", [{"state": "finished"}, {"state": "done", "step": 1, "reason": ""}, []])
def test_a_damaged_outcome_is_named(run: RunFolder, damaged: object) -> None:
    run.path.mkdir(parents=True)
    write_json(run.outcome, damaged)
    with pytest.raises(RlsweepError, match=r"outcome\.json"):
        outcome.read(run)


def test_an_attempt_that_slept_while_it_wrote_its_outcome_changes_nothing(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, replaced = attempts.claim(run), Path.replace

    def slept(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replaced)
        second = attempts.claim(run)
        checkpoints.take_over(run, second)
        outcome.write(run, Outcome("finished", 20, "budget reached", second.number))
        return replaced(path, target)

    monkeypatch.setattr(Path, "replace", slept)
    with pytest.raises(Superseded):
        outcome.write(run, Outcome("failed", 6, "disk", first.number))
    assert outcome.read(run) == Outcome("finished", 20, "budget reached", 2)
    assert not list(run.path.glob(".*"))
