"""Runs that are killed all the time, from a fixed schedule: asked for again until all are finished, each curve is the
undisturbed one, bit for bit.

Four runs belong to the tests of the scheduler. `make soak` takes 24, and kills nodes and daemons, too.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.recipe.budget import Budget
from rlsweep.store import attempts, outcome
from rlsweep.store.files import read_json
from rlsweep.store.state import look
from rlsweep.sweep.expand import expand

pytestmark = pytest.mark.slurm

AGAIN_S = 60.0
"""So often is the sweep asked for again while it is disturbed: what was lost for good by then starts again."""
NODES = ("n1", "n2", "n3", "n4")


@dataclass
class Soak:
    """A sweep on the cluster, and what is done to it."""

    stage: Any
    runs: list[Any]
    """A stage each."""
    rng: random.Random
    tell: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)
    kills: dict[str, Counter[str]] = field(default_factory=dict)
    """By key of the run, what was done to it; nodes and daemons under their own names."""

    # -- what can be done to a run

    def trainer_killed(self, run: Any) -> None:
        self._signal(run, "process", signal.SIGKILL)

    def trainer_stopped(self, run: Any) -> None:
        self._signal(run, "process", signal.SIGTERM)

    def task_killed(self, run: Any) -> None:
        self._signal(run, "launcher", signal.SIGKILL)

    def notice_given(self, run: Any) -> None:
        self._slurm("scancel", "--signal=USR2", run.submission.job)

    def requeued(self, run: Any) -> None:
        self._slurm("scontrol", "requeue", run.submission.job)

    def cancelled(self, run: Any) -> None:
        self._slurm("scancel", run.submission.job)

    # -- and to the cluster

    def node_lost(self) -> None:
        node = self.rng.choice(NODES)
        self.stage.slurm.kill_node(node)
        time.sleep(5)
        self.stage.slurm.start_node(node)

    def daemon_killed(self) -> None:
        """A daemon alone: jobs go on meanwhile."""
        name = self.rng.choice(["slurmctld", "slurmctld", "slurmdbd", *NODES])
        self._count(name, "killed")
        os.kill(self.stage.slurm.pids()[name], signal.SIGKILL)
        time.sleep(10)
        self.stage.slurm.start()

    # -- the schedule

    def disturb(self, seconds: float, every_s: float, cluster_too: bool) -> None:
        """Do one thing after another, about every so often, until the time is over or all runs are finished."""
        to_runs = [
            *[self.trainer_killed, self.trainer_stopped, self.task_killed],
            *[self.notice_given, self.requeued, self.cancelled],
        ]
        deadline, asked = time.monotonic() + seconds, time.monotonic()
        turn = 0
        deck: list[Callable[[Any], None]] = []
        while time.monotonic() < deadline and not self.finished():
            time.sleep(every_s * self.rng.uniform(0.6, 1.4))
            turn += 1
            if cluster_too and turn % 8 == 0:
                act = self.node_lost if turn % 16 else self.daemon_killed
                self._say(act.__name__)
                self._count("cluster", act.__name__)
                act()
            elif at_work := [run for run in self.runs if self._works(run)]:
                if not deck:
                    deck = self.rng.sample(to_runs, len(to_runs))
                hit = deck.pop()
                run = min(at_work, key=self._spared)
                self._say(f"{run.key} {hit.__name__} at step {run.step()}, attempt {run.count()}")
                self._count(run.key, hit.__name__)
                hit(run)
            if time.monotonic() - asked > AGAIN_S or not self._queued():
                asked = time.monotonic()
                self.ask()

    def ask(self) -> None:
        """The same command, which may find no controller."""
        try:
            self.stage.ablate("--seeds", str(len(self.runs)))
        except AssertionError:
            self._say("ablate: " + self.stage.said[-1].strip().splitlines()[-1])

    def let_finish(self, rounds: int) -> None:
        """Ask again, wait until no job is left, and so on until all are finished."""
        for _ in range(rounds):
            if self.finished():
                return
            self.ask()
            self.stage.until("no job is left", lambda: not self._queued(), 600)

    def finished(self) -> bool:
        return all(_state(run) == "finished" for run in self.runs)

    def table(self, verdicts: dict[str, str]) -> str:
        lines = [f"{'run':14}{'attempts':>9}  {'verdict':24}what was done to it"]
        for run in self.runs:
            done = ", ".join(f"{n} x {what}" for what, n in sorted(self.kills.get(run.key, Counter()).items()))
            lines.append(f"{run.key:14}{run.count():9}  {verdicts[run.key]:24}{done or 'nothing'}")
        for name in sorted(self.kills.keys() - {run.key for run in self.runs}):
            done = ", ".join(f"{n} x {what}" for what, n in sorted(self.kills[name].items()))
            lines.append(f"{name:14}{'':9}  {'':24}{done}")
        total = sum(sum(found.values()) for name, found in self.kills.items() if name in {r.key for r in self.runs})
        lines.append(f"{total} kills of runs in {time.monotonic() - self.began:.0f} s")
        return "\n".join(lines)

    def left(self) -> list[str]:
        """Trainers that nobody ended."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if str(self.stage.root.path) in line and "rlsweep.train" in line:
                    found.append(line)
        return found

    def _works(self, run: Any) -> bool:
        newest = attempts.newest(run.run)
        return newest is not None and newest.process.exists() and _state(run) is None

    def _queued(self) -> bool:
        """Whether the sweep has jobs; taken for granted while nobody can tell."""
        try:
            found = self.stage.slurm.run("squeue", "--noheader", "--format=%j").split()
        except subprocess.SubprocessError:
            return True
        return any(name.startswith("rlsweep:") for name in found)

    def _spared(self, run: Any) -> tuple[int, float]:
        """Least for the run that was hit least often, by lot among equals."""
        return self.kills.get(run.key, Counter()).total(), self.rng.random()

    def _signal(self, run: Any, which: str, number: int) -> None:
        newest = attempts.newest(run.run)
        with suppress(OSError, RlsweepError):  # it has just ended
            process = read_json(getattr(newest, which))
            if attempts.start_ticks(process["pid"]) == process["start_ticks"]:
                os.kill(process["pid"], number)

    def _slurm(self, *command: str) -> None:
        with suppress(subprocess.SubprocessError):  # the job has just ended, or the controller is away
            self.stage.slurm.run(*command)

    def _count(self, name: str, what: str) -> None:
        self.kills.setdefault(name, Counter())[what] += 1

    def _say(self, text: str) -> None:
        states = Counter(_state(run) or look(run.run).state for run in self.runs)
        told = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        self.tell(f"{time.monotonic() - self.began:5.0f} s  {text}  ({told})")


def _state(run: Any) -> str | None:
    """How the newest attempt ended, None where it has not."""
    newest = attempts.newest(run.run)
    try:
        ended = outcome.read(run.run)
    except RlsweepError:
        return None
    return ended.state if ended is not None and newest is not None and ended.attempt == newest.number else None


@pytest.mark.timeout(900)
def test_four_runs_under_kills(
    make_stage: Callable[..., Any], alike: Callable[[Any, Any], bool], capsys: pytest.CaptureFixture[str]
) -> None:
    soak(make_stage, alike, print, "quatre", runs=4, steps=150, seconds=110, every_s=18, cluster_too=False)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_soak(
    make_stage: Callable[..., Any], alike: Callable[[Any, Any], bool], capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)

    soak(make_stage, alike, tell, "vingt-quatre", runs=24, steps=200, seconds=600, every_s=5, cluster_too=True)


def soak(
    make_stage: Callable[..., Any],
    alike: Callable[[Any, Any], bool],
    tell: Callable[[str], None],
    name: str,
    *,
    runs: int,
    steps: int,
    seconds: float,
    every_s: float,
    cluster_too: bool,
) -> None:
    """Train `runs` seeds on this machine alone, then on the cluster under kills for so many seconds, and compare."""
    expected = make_stage(f"{name} tranquilles", budget=Budget(steps=steps))
    expected.rlsweep("ablate", str(expected.recipe), "--seeds", str(runs))
    stage = make_stage(name, budget=Budget(steps=steps))
    keys = [run.key for run in expand(str(stage.recipe), seeds=str(runs)).runs]
    made = Soak(stage, [replace(stage, key=key) for key in keys], random.Random(4), tell)
    made.ask()
    made.disturb(seconds, every_s, cluster_too)
    made.let_finish(rounds=6)
    verdicts = {}
    for run in made.runs:
        state = _state(run)
        same = state == "finished" and alike(run, replace(expected, key=run.key))
        verdicts[run.key] = "the undisturbed curve" if same else f"DIFFERS ({state})"
    tell(made.table(verdicts))
    assert set(verdicts.values()) == {"the undisturbed curve"}, stage.told()
    assert made.left() == []
