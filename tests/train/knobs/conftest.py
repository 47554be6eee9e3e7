"""Every knob of a recipe, driven through real runs: what it should change changes, by the amount its formula says.

A test that drives knobs is marked `drives` with their names; `test_table.py` holds all marks against the schema.
"""

import copy
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlsweep.recipe.batch import Batch
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.evaluation import Evaluation
from rlsweep.recipe.execution import Execution
from rlsweep.recipe.length import NoLengthControl
from rlsweep.recipe.loss import Cispo
from rlsweep.recipe.model import Embedded
from rlsweep.recipe.off_policy import Pipeline
from rlsweep.recipe.optimizer import Optimizer
from rlsweep.recipe.sampling import Sampling
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Registers
from rlsweep.rollout.protocol import Group, Request, Rollout
from rlsweep.store import attempts
from rlsweep.store.layout import Root
from rlsweep.store.outcome import Outcome
from rlsweep.tasks.registers import ALPHABET
from rlsweep.train import warm_start
from rlsweep.train.loop import train
from rlsweep.train.state import State, build


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "drives(*knobs): the test drives these leaves of the schema through a run")


BASE = Recipe(
    name="knobs",
    model=Embedded(width=32, layers=1, heads=2, kv_heads=1, feed_forward=64, warm_start_steps=100),
    task=Registers(prompts=24),
    sampling=Sampling(max_tokens=12),
    batch=Batch(prompts=6, rollouts=12),
    loss=Cispo(eps_max=1.1),
    curriculum=Curriculum(no_positive_resampling=None),
    off_policy=Pipeline(k=1),
    length=NoLengthControl(),
    optimizer=Optimizer(lr=2e-3, warmup_steps=0, eps=1e-8),
    evaluation=Evaluation(every=100, prompts=2, samples=2),
    budget=Budget(steps=2),
    execution=Execution(engine="local", device="cpu", devices=1, microbatch_tokens=512, checkpoint_every=100),
)
"""Two steps on an ordinary pass rate; the second trains on what the policy before the first sampled."""


MODELS: dict[bytes, Any] = {}


@dataclass(frozen=True)
class Asked:
    """One group of a run: its prompt, its rollouts, and what the verifier says of them."""

    prompt: tuple[int, ...]
    rollouts: tuple[Rollout, ...]
    outcomes: tuple[str, ...]


@dataclass
class Watched:
    """The run's own engine, with all that passes by. `script` may put another group in the place of a finished one."""

    engine: Any
    script: Callable[[Request, Group], Group] | None = None
    version: int = 0
    requests: dict[int, Request] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    evaluations: list[tuple[int, dict[int, Request], dict[int, Group]]] = field(default_factory=list)

    def submit(self, requests: Sequence[Request]) -> None:
        if requests and requests[0].id < 0:
            self.evaluations.append((self.version, {r.id: r for r in requests}, {}))
        else:
            self.requests |= {r.id: r for r in requests}
        self.engine.submit(requests)

    def collect(self, *, wait: bool) -> list[Group]:
        finished: list[Group] = self.engine.collect(wait=wait)
        if self.script is not None:
            finished = [self.script(self.requests[g.id], g) if g.id >= 0 else g for g in finished]
        for group in finished:
            (self.groups if group.id >= 0 else self.evaluations[-1][2])[group.id] = group
        return finished

    def publish(self, version: int, model: Any) -> None:
        self.version = version
        self.engine.publish(version, model)

    def busy(self) -> float:
        return float(self.engine.busy())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@dataclass
class Run:
    """A run that is over. Weights and gradients are flat and by the version they belong to."""

    recipe: Recipe
    state: State
    engine: Watched
    weights: list[dict[str, Tensor]]
    gradients: dict[int, Tensor]
    """At the optimizer's step, so after clipping; none where no step was made."""
    moments: list[dict[Any, Tensor]]
    outcome: Outcome

    @property
    def steps(self) -> list[dict[str, float]]:
        return [row["metrics"] for row in self.rows("step")]

    def rows(self, kind: str) -> list[Any]:
        rows = map(json.loads, self.state.run.journal.read_text().splitlines())
        return [row for row in rows if row["kind"] == kind]

    def model(self, version: int) -> Any:
        """The model after `version` steps; the same object wherever the weights are the same."""
        made: Any = copy.deepcopy(self.state.accelerator.unwrap_model(self.state.model))
        made.load_state_dict(self.weights[version])
        digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in self.weights[version].values()))
        return MODELS.setdefault(digest.digest(), made)

    def flat(self, version: int) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model(version).parameters()])

    def batch(self, number: int) -> list[Asked]:
        size = self.recipe.batch.prompts
        return [
            self.asked(self.engine.requests[i], self.engine.groups[i])
            for i in range(number * size, (number + 1) * size)
        ]

    def asked(self, request: Request, group: Group) -> Asked:
        task = self.state.task
        pool = [*map(task.prompt, range(task.size)), *task.held_out(self.recipe.evaluation.prompts)]
        prompt = {each.text: each for each in pool}[text(request.prompt)]
        outcomes = tuple(
            task.grade(prompt, text(r.tokens).removesuffix("^"), stopped=r.finish == "stop") for r in group.rollouts
        )
        return Asked(request.prompt, group.rollouts, outcomes)


def text(tokens: Sequence[int]) -> str:
    """One character a token: padding is '~' and the end of sequence '^'."""
    return "".join(("~", "^", *ALPHABET[2:])[token] for token in tokens)


def apart(one: Tensor, other: Tensor) -> float:
    """Distance of two gradients or weights, relative to the first."""
    return float((one - other).norm() / one.norm())


class Lab:
    """Runs recipes in this process, each once, with what tests of runs have in common."""

    base = BASE
    text = staticmethod(text)
    apart = staticmethod(apart)

    def __init__(self, place: Path, after_each_step: Callable[..., Any]):
        self._after_each_step = after_each_step
        self.models = place / "models"
        self._place = place
        self._made = 0
        self.run = cache(self.start)

    def start(
        self,
        recipe: Recipe,
        script: Callable[[Request, Group], Group] | None = None,
        after_step: Callable[[State], None] = lambda state: None,
    ) -> Run:
        self._made += 1
        folder = Root(self._place / str(self._made)).run("0123456789ab")
        folder.path.mkdir(parents=True)
        source = warm_start.model_source(recipe, self.models)
        state = build(recipe, folder, attempts.claim(folder), lambda: source, time.monotonic())
        engine = Watched(state.engine, script)
        state.engine = engine
        weights: list[dict[str, Tensor]] = []
        gradients: dict[int, Tensor] = {}
        moments: list[dict[Any, Tensor]] = []

        def look() -> None:
            weights.append({name: value.clone() for name, value in state.model.state_dict().items()})
            held = state.optimizer.optimizer.state.items()
            moments.append({(p, name): value.clone() for p, s in held for name, value in s.items()})
            after_step(state)

        def before_step(*_: Any) -> None:
            gradients[len(weights) - 1] = torch.cat([p.grad.flatten() for p in state.model.parameters()])

        look()
        state.optimizer.optimizer.register_step_pre_hook(before_step)
        with self._after_each_step(look):
            outcome = train(state, lambda line: None)
        return Run(recipe, state, engine, weights, gradients, moments, outcome)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, after_each_step: Callable[..., Any]) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"), after_each_step)


@pytest.fixture
def learned(written_out: Any) -> Callable[[Run, int], Any]:
    """Hold one update of a run against the step written out, which is returned."""

    def compare(run: Run, version: int) -> Any:
        expected = written_out(run.recipe, run.model(version), run.batch(version))
        norm = float(expected.gradient.norm())
        clipped = expected.gradient * min(1.0, run.recipe.optimizer.grad_clip / (norm + 1e-6))
        assert float((run.gradients[version] - clipped).norm()) < 1e-3 * float(clipped.norm()), "gradient"
        found = run.steps[version]
        assert {n: found[n] for n in expected.metrics} == pytest.approx(expected.metrics, rel=2e-3, abs=1e-5)
        return expected

    return compare
