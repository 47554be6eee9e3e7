"""Every knob of a recipe, driven through real runs: what it should change changes, by the amount its formula says.

`drives` enters a test into the table of knobs, and the first test holds the table against the schema: a knob that is
added to a recipe needs a test here.
"""

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3ForCausalLM

from rlsweep.errors import RecipeError
from rlsweep.model.embedded import new_config
from rlsweep.model.load import load_model
from rlsweep.recipe.batch import Batch
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.check import FieldError
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.evaluation import Evaluation
from rlsweep.recipe.execution import Execution
from rlsweep.recipe.fields import field_types, sections, top_leaves
from rlsweep.recipe.key import NOT_IDENTITY, run_key
from rlsweep.recipe.length import Interrupt, NoLengthControl, Penalty
from rlsweep.recipe.loss import Cispo, Dapo, DrGrpo, Grpo, Gspo
from rlsweep.recipe.model import Embedded, Pretrained
from rlsweep.recipe.off_policy import Pipeline, Ppo
from rlsweep.recipe.optimizer import Optimizer
from rlsweep.recipe.reward import Reward
from rlsweep.recipe.sampling import Sampling
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Math, Registers
from rlsweep.rollout.protocol import Group, Request, Rollout
from rlsweep.store import attempts, checkpoints
from rlsweep.store.layout import Root
from rlsweep.store.outcome import Outcome
from rlsweep.tasks.registers import ALPHABET, RegisterTask
from rlsweep.train import warm_start
from rlsweep.train.loop import train
from rlsweep.train.state import State, build

TABLE: dict[str, str] = {}
"""The test that drives each knob, or each choice of a knob that is a list of choices."""

NOT_DRIVEN = {
    "task[math]": "this version can plan it but not train it",
    "task[math].dataset": "this version can plan it but not train it",
    "task[math].revision": "this version can plan it but not train it",
    "model[pretrained].revision": "names a commit on a hub, and tests have none",
}
"""Knobs that no run in this process can show, and why. What is checked before a run is tested all the same."""


def drives(*knobs: str) -> Callable[[Any], Any]:
    def enter(test: Any) -> Any:
        for knob in knobs:
            assert knob not in TABLE, knob
            TABLE[knob] = test.__name__
        return test

    return enter


def schema_knobs() -> set[str]:
    """Each leaf of each type of each section that enters a run's key, by choices where it has them."""

    def named(path: str, hint: Any) -> set[str]:
        choices = [str(word) for option in (hint, *get_args(hint)) for word in literals(option)]
        return {f"{path}[{word}]" for word in choices} or {path}

    def literals(hint: Any) -> Sequence[Any]:
        return get_args(hint) if get_origin(hint) is Literal else ()

    found: set[str] = set()
    for name, hint in top_leaves().items():
        found |= named(name, hint) if name not in NOT_IDENTITY else set()
    for name, section in sections().items():
        for tag, section_type in section.types.items() if name not in NOT_IDENTITY else ():
            of = f"{name}[{tag}]" if tag else name
            found |= {of} if tag else set()
            for leaf, hint in field_types(section_type).items():
                found |= named(f"{of}.{leaf}", hint) if leaf != "type" else set()
    return found


def test_every_knob_of_the_schema_is_driven() -> None:
    assert len(schema_knobs()) > 60
    assert schema_knobs() - set(TABLE) - set(NOT_DRIVEN) == set(), "these need a test here"
    assert (set(TABLE) | set(NOT_DRIVEN)) - schema_knobs() == set(), "these are no knobs of the schema"
    assert not set(TABLE) & set(NOT_DRIVEN)


# --- runs ------------------------------------------------------------------------------------------------------------

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


class Lab:
    """Runs recipes in this process, each once."""

    def __init__(self, place: Path):
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
        state, length = build(recipe, folder, attempts.claim(folder), lambda: source, time.monotonic())
        engine = Watched(state.engine, script)
        state.engine = engine
        weights: list[dict[str, Tensor]] = []
        gradients: dict[int, Tensor] = {}
        moments: list[dict[Any, Tensor]] = []

        def look() -> bool:
            weights.append({name: value.clone() for name, value in state.model.state_dict().items()})
            held = state.optimizer.optimizer.state.items()
            moments.append({(p, name): value.clone() for p, s in held for name, value in s.items()})
            after_step(state)
            return False

        def before_step(*_: Any) -> None:
            gradients[len(weights) - 1] = torch.cat([p.grad.flatten() for p in state.model.parameters()])

        look()
        state.optimizer.optimizer.register_step_pre_hook(before_step)
        outcome = train(state, length, look, lambda line: None)
        return Run(recipe, state, engine, weights, gradients, moments, outcome)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


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


def apart(one: Tensor, other: Tensor) -> float:
    """Distance of two gradients or weights, relative to the first."""
    return float((one - other).norm() / one.norm())


# --- model -----------------------------------------------------------------------------------------------------------


@drives(
    "model[embedded]",
    "model[embedded].width",
    "model[embedded].layers",
    "model[embedded].heads",
    "model[embedded].kv_heads",
    "model[embedded].feed_forward",
)
@pytest.mark.parametrize(
    "change",
    [{}, {"width": 48}, {"layers": 2}, {"heads": 4}, {"heads": 4, "kv_heads": 2}, {"feed_forward": 96}],
    ids=str,
)
def test_the_size_of_the_model(lab: Lab, change: dict[str, int]) -> None:
    section = replace(BASE.model, warm_start_steps=1, **change)
    run = lab.run(replace(BASE, model=section, budget=Budget(steps=1)))
    assert isinstance(section, Embedded)
    w, heads, kv = section.width, section.heads * 32, section.kv_heads * 32
    block = w * heads + 2 * w * kv + heads * w + 3 * w * section.feed_forward + 2 * w + 2 * 32
    parameters = len(ALPHABET) * w + section.layers * block + w
    assert len(run.flat(0)) == parameters
    tokens = sum(len(r.tokens) + 8 for b in (0, 1) for g in run.batch(b) for r in g.rollouts)
    trained = sum(len(r.tokens) + 8 for g in run.batch(0) if 0 < g.outcomes.count("correct") < 12 for r in g.rollouts)
    assert run.steps[0]["clock/flops"] == parameters * (2 * tokens + 6 * trained)


@drives("model[embedded].warm_start_steps")
def test_warm_start_steps(lab: Lab) -> None:
    """AdamW's first step moves every weight that has a gradient by the rate, the second by half of it at most."""
    section = replace(BASE.model, warm_start_steps=1)
    runs = [lab.run(replace(BASE, model=replace(section, warm_start_steps=n), budget=Budget(steps=1))) for n in (1, 2)]
    with torch.random.fork_rng():
        torch.manual_seed(BASE.task.table_seed)
        fresh = Qwen3ForCausalLM(new_config(section, len(ALPHABET)))
    start = torch.cat([p.detach().flatten() for p in fresh.parameters()])
    one, two = ((run.flat(0) - start).abs() for run in runs)
    rate, decay = 4e-3, 4e-3 * 0.01 * start.abs()
    assert (one <= rate * 1.001 + decay).all() and float(one.median()) == pytest.approx(rate, rel=0.05)
    assert (two <= rate * 1.6 + 2 * decay).all() and float(two.max()) > 1.4 * rate


@drives(
    "model[embedded].dtype[float32]",
    "model[embedded].dtype[bfloat16]",
    "model[embedded].head_dtype[float32]",
    "model[embedded].head_dtype[bfloat16]",
    "model[pretrained].dtype[float32]",
    "model[pretrained].dtype[bfloat16]",
    "model[pretrained].head_dtype[float32]",
    "model[pretrained].head_dtype[bfloat16]",
)
@pytest.mark.parametrize("pretrained", [False, True])
@pytest.mark.parametrize(("dtype", "head"), [("float32", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16")])
def test_precision(lab: Lab, written_out: Any, pretrained: bool, dtype: Any, head: Any) -> None:
    """What the engine records is the log-probability in the recipe's precision, off float32's by the size of bfloat16's
    rounding; the trainer computes in the same, so that ratios of a batch without lag stay near 1."""
    section: Any = Pretrained(path=source(lab)) if pretrained else BASE.model
    recipe = replace(BASE, model=replace(section, dtype=dtype, head_dtype=head), budget=Budget(steps=1))
    run = lab.run(recipe)
    model, exact = run.model(0), replace(recipe, model=replace(section, dtype="float32", head_dtype="float32"))
    same, off, bound = [], [], []
    for group in run.batch(0)[:3]:
        for rollout in group.rollouts:
            recorded, rows = torch.tensor(rollout.logprobs), range(len(rollout.tokens))
            with torch.no_grad():
                logs, reference = (
                    written_out.distributions(each, model, group.prompt, rollout.tokens) for each in (recipe, exact)
                )
                hidden = model.model(input_ids=torch.tensor([[*group.prompt, *rollout.tokens]])).last_hidden_state[0]
                largest = (hidden[len(group.prompt) - 1 : -1].abs() @ model.lm_head.weight.abs().T).max(-1).values
            same += (recorded - logs[rows, rollout.tokens]).abs().tolist()
            off += (recorded - reference[rows, rollout.tokens]).abs().tolist()
            # A logit is off by at most three roundings of 2^-8 (input, weight, result), a log-probability by two such.
            bound += (2 * 3 * 2**-8 * largest).tolist()
    mismatch = run.steps[0]["train/mismatch_mean"]
    if (dtype, head) == ("float32", "float32"):
        assert max(off) < 1e-4 and mismatch < 1e-5
        return
    mean = sum(off) / len(off)
    if head == "bfloat16":
        assert all(gap <= most for gap, most in zip(off, bound, strict=True))
    assert 2**-10 < mean < 2**-4
    # Kernels sum in different orders, and a sum on the edge of two bfloat16 numbers goes either way.
    assert sum(same) / len(same) < mean / 4 and mismatch < mean / 2


@drives("model[pretrained]", "model[pretrained].path")
def test_a_run_starts_from_the_folder_it_names(lab: Lab, random_model_folder: str) -> None:
    folders = [source(lab), random_model_folder]
    for folder in folders:
        recipe = replace(BASE, model=Pretrained(path=folder, dtype="float32"), budget=Budget(steps=1))
        run = lab.run(recipe)
        stored = load_file(Path(folder) / "model.safetensors")
        assert all(torch.equal(run.weights[0][name], value) for name, value in stored.items())
    assert lab.run(recipe).engine.groups[0] != lab.run(replace(BASE, budget=Budget(steps=1))).engine.groups[0]


def source(lab: Lab) -> str:
    """Folder of the base recipe's initial model."""
    return warm_start.model_source(BASE, lab.models)[0]


def test_a_revision_is_handed_to_the_hub_and_part_of_the_key(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> None:
    asked: list[tuple[Any, Any]] = []

    def refuse(name: Any, *, revision: Any, **_: Any) -> Any:
        asked.append((name, revision))
        raise OSError("no hub here")

    monkeypatch.setattr("rlsweep.model.load.AutoTokenizer.from_pretrained", refuse)
    keys = set()
    for revision in ("abc", "def"):
        recipe = replace(BASE, model=Pretrained(path="some/model", revision=revision))
        keys.add(run_key(recipe))
        with pytest.raises(RecipeError, match="no hub here"):
            load_model(*warm_start.model_source(recipe, lab.models))
    assert asked == [("some/model", "abc"), ("some/model", "def")] and len(keys) == 2


# --- task, batch, sampling -------------------------------------------------------------------------------------------


@drives("task[registers]", "task[registers].prompts")
def test_the_pool(lab: Lab) -> None:
    """An epoch asks each prompt of the pool once, so a pool of 6 ends with each batch of 6; a pool grows at its end."""
    small, large = (
        lab.run(replace(BASE, task=Registers(prompts=n), off_policy=Pipeline(k=0), budget=Budget(steps=3)))
        for n in (6, 12)
    )
    assert [row["curriculum/epoch"] for row in small.steps] == [0, 1, 2]
    assert [row["curriculum/epoch"] for row in large.steps] == [0, 0, 1]
    pool = [RegisterTask(Registers(prompts=12)).prompt(i).text for i in range(12)]
    for number in range(3):
        assert sorted(text(g.prompt) for g in small.batch(number)) == sorted(pool[:6])
    assert sorted(text(g.prompt) for n in (0, 1) for g in large.batch(n)) == sorted(pool)


@drives("task[registers].table_seed")
def test_the_table(lab: Lab) -> None:
    """The prompts, the right answers and the initial model are the table's own."""
    runs = []
    for seed in (10, 11):
        recipe = replace(BASE, task=replace(BASE.task, table_seed=seed), budget=Budget(steps=1))
        run = lab.run(replace(recipe, model=replace(BASE.model, warm_start_steps=1)))
        runs.append(run)
        task = RegisterTask(Registers(table_seed=seed, prompts=24))
        for group in run.batch(0):
            question = text(group.prompt)
            state = int(question[0], 16)
            for letter in question[1:7].strip():
                state = int(task.table["ghijklmn".index(letter), state])
            for rollout, outcome in zip(group.rollouts, group.outcomes, strict=True):
                right = rollout.finish == "stop" and text(rollout.tokens).endswith(f"#{state:x}^")
                assert (outcome == "correct") == right
    one, two = runs
    assert {text(g.prompt) for g in one.batch(0)} != {text(g.prompt) for g in two.batch(0)}
    assert apart(one.flat(0), two.flat(0)) > 0.1
    assert not (RegisterTask(Registers(table_seed=10)).table == RegisterTask(Registers(table_seed=11)).table).all()


def test_what_cannot_be_trained_here_is_checked_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="dataset: '' is not valid"):
        Math()
    recipe = replace(BASE, model=Pretrained(path="some/model"), task=Math(dataset="some/data"))
    with pytest.raises(FieldError, match="only knows the task registers, not math"):
        replace(recipe, model=BASE.model)
    folder = Root(tmp_path).run("0123456789ab")
    folder.path.mkdir(parents=True)
    with pytest.raises(RecipeError, match="'math' can be planned but not trained"):
        build(recipe, folder, attempts.claim(folder), lambda: ("", None), time.monotonic())
    others = [Math(dataset="some/data", revision="1"), Math(dataset="other/data")]
    assert len({run_key(recipe), *(run_key(replace(recipe, task=each)) for each in others)}) == 3


@drives("batch.prompts", "batch.rollouts")
@pytest.mark.parametrize(("prompts", "rollouts"), [(6, 12), (3, 12), (6, 4)])
def test_the_size_of_a_batch(lab: Lab, prompts: int, rollouts: int) -> None:
    run = lab.run(replace(BASE, batch=Batch(prompts=prompts, rollouts=rollouts)))
    assert len(run.engine.requests) == 3 * prompts  # one batch is on its way when the second step is made
    assert all(len(group.rollouts) == rollouts for group in run.engine.groups.values())
    for number, row in enumerate(run.steps):
        assert row["train/groups_generated"] == prompts
        assert row["clock/samples"] == (number + 2) * prompts * rollouts


@drives("sampling.temperature")
def test_temperature(lab: Lab, learned: Any, written_out: Any) -> None:
    """Tokens are drawn from softmax(logits / T) and recorded so; the trainer computes the same: ratios are 1."""
    entropies = []
    for temperature in (0.5, 1.0, 1.7):
        run = lab.run(replace(BASE, sampling=Sampling(max_tokens=12, temperature=temperature)))
        model = run.model(0)
        for group in run.batch(0):
            for rollout in group.rollouts[:3]:
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([[*group.prompt, *rollout.tokens]])).logits[0, 7:-1]
                expected = torch.log_softmax(logits / temperature, -1)[range(len(rollout.tokens)), rollout.tokens]
                assert (torch.tensor(rollout.logprobs) - expected).abs().max() < 1e-4
        assert run.steps[0]["train/mismatch_max"] < 1e-4
        learned(run, 1)
        entropies.append(run.steps[0]["train/entropy"])
        # What is drawn has the surprise that its distribution predicts.
        values = [
            v for g in run.batch(0) if 0 < g.outcomes.count("correct") < 12 for r in g.rollouts for v in r.logprobs
        ]
        assert -sum(values) / len(values) == pytest.approx(entropies[-1], rel=0.15)
    assert entropies == sorted(entropies)


@drives("sampling.max_tokens")
def test_the_token_limit(lab: Lab, learned: Any) -> None:
    """No response is longer, those that get there say so, and `constant` divides by rollouts x limit."""
    gradients = []
    for limit in (6, 12):
        recipe = replace(BASE, sampling=Sampling(max_tokens=limit), aggregation="constant")
        run = lab.run(recipe)
        rollouts = [r for g in run.engine.groups.values() for r in g.rollouts]
        assert max(len(r.tokens) for r in rollouts) == limit
        for rollout in rollouts:
            at_limit = len(rollout.tokens) == limit and rollout.tokens[-1] != 1
            assert (rollout.finish == "length") == at_limit
        expected = learned(run, 0)
        gradients.append(expected.gradient)
        first = [r for g in run.batch(0) for r in g.rollouts]
        assert run.steps[0]["train/truncated"] == sum(r.finish == "length" for r in first) / len(first)
    assert apart(*gradients) > 0.1


# --- rewards and filters ---------------------------------------------------------------------------------------------


@drives("reward.correct", "reward.wrong", "reward.truncated", "reward.unparseable")
@pytest.mark.parametrize("name", ["correct", "wrong", "truncated", "unparseable"])
def test_rewards(lab: Lab, learned: Any, name: str) -> None:
    """The mean reward moves by the share of the outcome times the change; advantages and gradient follow; the same
    groups are kept."""
    recipe = replace(BASE, sampling=Sampling(max_tokens=8, temperature=1.3), batch=Batch(prompts=6, rollouts=24))
    before, after = lab.run(recipe), lab.run(replace(recipe, reward=replace(recipe.reward, **{name: 0.25})))
    old, new = learned(before, 0), learned(after, 0)
    outcomes = [outcome for group in before.batch(0) for outcome in group.outcomes]
    assert before.batch(0) == after.batch(0)
    share = outcomes.count(name) / len(outcomes)
    assert share > 0
    moved = after.steps[0]["train/reward"] - before.steps[0]["train/reward"]
    assert moved == pytest.approx(share * (0.25 - getattr(recipe.reward, name)))
    assert old.kept == new.kept
    # Right and not right are all that rewards of +-1 tell apart, and a batch's deviation undoes their scale.
    assert (apart(old.gradient, new.gradient) > 1e-3) == (name != "correct")


@drives("curriculum.zero_variance[drop]", "curriculum.zero_variance[keep]")
def test_zero_variance(lab: Lab, learned: Any) -> None:
    """A group of one reward has no gradient; kept it is counted in the divisors and in the batch's deviation."""
    dropped = lab.run(BASE)
    kept = lab.run(replace(BASE, curriculum=replace(BASE.curriculum, zero_variance="keep")))
    assert dropped.batch(0) == kept.batch(0)
    mixed = [len({outcome == "correct" for outcome in group.outcomes}) == 2 for group in dropped.batch(0)]
    assert 0 < sum(mixed) < 6
    assert learned(dropped, 0).kept == mixed and learned(kept, 0).kept == [True] * 6
    assert dropped.steps[0]["train/groups_trained"] == sum(mixed) and kept.steps[0]["train/groups_trained"] == 6
    assert kept.steps[0]["train/groups_zero_variance"] == 6 - sum(mixed)
    # 1/P of 6 prompts instead of those mixed, and a deviation over 6 groups instead of those mixed.
    share = sum(mixed) / 6
    assert apart(kept.gradients[0], dropped.gradients[0] * share / math.sqrt(share)) < 1e-3


def right(request: Request, group: Group) -> Group:
    """The group, with the right answer in the place of each response."""
    task = RegisterTask(BASE.task)
    answer = {task.prompt(i).text: task.prompt(i).answer for i in range(task.size)}[text(request.prompt)]
    tokens = (ALPHABET.index("#"), ALPHABET.index(answer), 1)
    rollout = Rollout(tokens, (-0.5,) * 3, (False,) * 3, ((group.rollouts[0].versions[0][0], 0, 3),), "stop")
    return Group(group.id, (rollout,) * len(group.rollouts))


def test_a_batch_that_is_filtered_away_is_a_step_that_changes_nothing(lab: Lab) -> None:
    """The second of three batches is all right: weights and moments stay, bit for bit; the step counts."""
    recipe = replace(BASE, budget=Budget(steps=3), optimizer=replace(BASE.optimizer, warmup_steps=4, weight_decay=0.5))

    def script(request: Request, group: Group) -> Group:
        return right(request, group) if 6 <= group.id < 12 else group

    run = lab.run(recipe, script)
    assert run.outcome == Outcome("finished", 3, "reached its budget")
    assert sorted(run.gradients) == [0, 2]
    assert torch.equal(run.flat(1), run.flat(2)) and not torch.equal(run.flat(0), run.flat(1))
    assert run.moments[1] and run.moments[1].keys() == run.moments[2].keys()
    assert all(torch.equal(value, run.moments[2][name]) for name, value in run.moments[1].items())
    assert [row["train/groups_trained"] for row in run.steps][1] == 0
    assert [row["train/lr"] for row in run.steps] == pytest.approx([0.25 * 2e-3, 0.5 * 2e-3, 0.75 * 2e-3])
    assert [row["step"] for row in run.rows("step")] == [1, 2, 3]


@drives("curriculum.no_positive_resampling")
def test_no_positive_resampling(lab: Lab) -> None:
    """An epoch asks the prompts whose pooled pass rate lay below the threshold when its first prompt was asked. What
    had been trained by then follows from admission: batch b + 2 is asked once batch b is trained."""
    recipe = replace(BASE, task=Registers(prompts=8), batch=Batch(prompts=4, rollouts=24), budget=Budget(steps=8))
    excluded_in_all = []
    for threshold in (None, 0.08, 0.03):
        run = lab.run(replace(recipe, curriculum=Curriculum(no_positive_resampling=threshold)))
        pool = {text(run.engine.requests[i].prompt) for i in range(8)}
        assert len(pool) == 8
        passed, total = dict.fromkeys(pool, 0), dict.fromkeys(pool, 0)
        left, excluded, epoch, asked = set(pool), set[str](), 0, 0
        for version, row in enumerate(run.steps):
            while asked < 4 * (version + 2):
                if not left:
                    excluded = {p for p in pool if threshold is not None and passed[p] >= threshold * max(total[p], 1)}
                    left, epoch = pool - excluded, epoch + 1
                assert text(run.engine.requests[asked].prompt) in left
                left.remove(text(run.engine.requests[asked].prompt))
                asked += 1
            for group in run.batch(version):
                passed[text(group.prompt)] += group.outcomes.count("correct")
                total[text(group.prompt)] += 24
            assert (row["curriculum/epoch"], row["curriculum/excluded_prompts"]) == (epoch, len(excluded))
        assert epoch > 2
        excluded_in_all.append(sum(row["curriculum/excluded_prompts"] for row in run.steps))
    assert 0 == excluded_in_all[0] < excluded_in_all[1] < excluded_in_all[2]


@pytest.mark.timeout(60)  # a stream over an empty pool would look for a prompt for ever
def test_the_pool_cannot_be_emptied(lab: Lab) -> None:
    """Every answer is right, so every prompt reaches the threshold: all are asked again, and the journal says so."""
    recipe = replace(
        BASE, task=Registers(prompts=6), curriculum=Curriculum(no_positive_resampling=0.9), budget=Budget(steps=5)
    )
    run = lab.run(recipe, right)
    assert run.outcome.state == "finished" and run.gradients == {}
    assert [row["curriculum/exclusion_lifted"] for row in run.steps] == [0, 1, 1, 1, 1]
    assert all(row["curriculum/excluded_prompts"] == 0 for row in run.steps)
    assert torch.equal(run.flat(0), run.flat(5))


# --- loss, aggregation, normalization --------------------------------------------------------------------------------


@drives(
    "loss[cispo]",
    "loss[cispo].eps_max",
    "loss[dapo]",
    "loss[dapo].eps_low",
    "loss[dapo].eps_high",
    "loss[gspo]",
    "loss[gspo].eps_low",
    "loss[gspo].eps_high",
    "loss[grpo]",
    "loss[grpo].eps",
    "loss[dr_grpo]",
    "loss[dr_grpo].eps",
)
@pytest.mark.parametrize(
    ("loss", "change"),
    [
        (Cispo(eps_max=1.1), {"eps_max": 1.3}),
        (Dapo(eps_low=0.1, eps_high=0.1), {"eps_low": 0.2}),
        (Dapo(eps_low=0.1, eps_high=0.1), {"eps_high": 0.2}),
        (Gspo(eps_low=0.02, eps_high=0.02), {"eps_low": 0.2}),
        (Gspo(eps_low=0.02, eps_high=0.02), {"eps_high": 0.2}),
        (Grpo(eps=0.1), {"eps": 0.2}),
        (DrGrpo(eps=0.1), {"eps": 0.2}),
    ],
    ids=str,
)
def test_which_tokens_a_loss_cuts(lab: Lab, learned: Any, loss: Any, change: dict[str, float]) -> None:
    """The second batch is off-policy: the gradient is the formula's, and a wider interval cuts fewer tokens, just those
    whose ratio lies outside of it on the side that is widened."""
    kind: Any = ("constant", "none") if isinstance(loss, DrGrpo) else ("sample", "batch")
    recipe = replace(BASE, loss=loss, aggregation=kind[0], normalization=kind[1], batch=Batch(prompts=4, rollouts=24))
    # Rewards that make advantages of either sign frequent.
    recipe = replace(recipe, reward=Reward(correct=0.0, wrong=0.5, truncated=-1.0, unparseable=-1.0))
    narrow, wide = lab.run(recipe), lab.run(replace(recipe, loss=replace(loss, **change)))
    assert torch.equal(narrow.flat(1), wide.flat(1))  # the first batch has ratios of 1
    before, after = learned(narrow, 1), learned(wide, 1)
    assert before.ratios == after.ratios and before.clipped > after.clipped > 0
    assert apart(before.gradient, after.gradient) > 1e-3
    if isinstance(loss, Cispo):
        assert before.clipped == sum(ratio > 1.1 for ratio in before.ratios)
        assert after.clipped == sum(ratio > 1.3 for ratio in before.ratios)


@drives(
    "aggregation[sample]",
    "aggregation[prompt]",
    "aggregation[token]",
    "aggregation[constant]",
    "normalization[prompt]",
    "normalization[batch]",
    "normalization[none]",
)
def test_aggregation_and_normalization(lab: Lab, learned: Any) -> None:
    recipe = replace(BASE, batch=Batch(prompts=6, rollouts=24), budget=Budget(steps=1))
    recipe = replace(recipe, reward=Reward(correct=1.0, wrong=-1.0, truncated=0.5, unparseable=0.0))
    gradients = {}
    kinds = [(kind, "batch") for kind in ("sample", "prompt", "token", "constant")]
    for aggregation, normalization in (*kinds, ("prompt", "prompt"), ("prompt", "none")):
        run = lab.run(replace(recipe, aggregation=aggregation, normalization=normalization))
        gradients[aggregation, normalization] = learned(run, 0).gradient
    directions = {names: gradient / gradient.norm() for names, gradient in gradients.items()}
    names = list(directions)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            # Within one batch token and constant differ by a factor, as do batch and none; the others point elsewhere.
            scaled = {one[0], other[0]} == {"token", "constant"} or {one[1], other[1]} == {"batch", "none"}
            scaled &= one[0] == other[0] or one[1] == other[1]
            assert (apart(directions[one], directions[other]) < 1e-4) == scaled, (one, other)
            assert apart(gradients[one], gradients[other]) > 1e-2, (one, other)


# --- staleness, length, seed -----------------------------------------------------------------------------------------


@drives("off_policy[pipeline]", "off_policy[pipeline].k", "off_policy[ppo]", "off_policy[ppo].k")
@pytest.mark.parametrize(
    ("scheme", "lags", "sampled_by_then"),
    [
        (Pipeline(k=0), [0, 0, 0, 0, 0], [1, 2, 3, 4, 5]),
        (Pipeline(k=2), [0, 1, 2, 2, 2], [3, 4, 5, 6, 7]),
        (Ppo(k=1), [0, 0, 0, 0, 0], [1, 2, 3, 4, 5]),
        (Ppo(k=3), [0, 1, 2, 0, 1], [3, 3, 3, 6, 6]),
    ],
    ids=str,
)
def test_the_lag_of_every_token(
    lab: Lab, written_out: Any, scheme: Any, lags: list[int], sampled_by_then: list[int]
) -> None:
    """The weights of the version that a token names give the log-probability recorded for it, and no others do; so
    many batches are sampled before each step."""
    run = lab.run(replace(BASE, off_policy=scheme, curriculum=Curriculum(zero_variance="keep"), budget=Budget(steps=5)))
    assert [row["clock/samples"] / (6 * 12) for row in run.steps] == sampled_by_then
    for number, lag in enumerate(lags):
        assert run.steps[number]["train/lag_mean"] == run.steps[number]["train/lag_max"] == lag
        sampled = number - lag
        model, newer = run.model(sampled), run.model(sampled + 1)
        for group in run.batch(number):
            assert all(r.versions == ((sampled, 0, len(r.tokens)),) for r in group.rollouts)
            rollout = group.rollouts[0]
            with torch.no_grad():
                mine, others = (
                    written_out.distributions(run.recipe, each, group.prompt, rollout.tokens) for each in (model, newer)
                )
            recorded, rows = torch.tensor(rollout.logprobs), range(len(rollout.tokens))
            assert (mine[rows, rollout.tokens] - recorded).abs().max() < 1e-4
            assert (others[rows, rollout.tokens] - recorded).abs().max() > 1e-3


@drives("length[none]", "length[interrupt]", "length[interrupt].earliest", "length[interrupt].latest")
def test_where_responses_are_interrupted(lab: Lab, learned: Any) -> None:
    """Evenly between the two positions, both included; whoever has ended thinking or stopped by then goes on alone."""
    plain = lab.run(BASE)
    assert not any(True in r.forced for g in plain.engine.groups.values() for r in g.rollouts)
    for earliest, latest in ((2, 2), (2, 5), (4, 5)):
        length = Interrupt(earliest=earliest, latest=latest, phrase="!#", end="#")
        run = lab.run(replace(BASE, length=length, batch=Batch(prompts=6, rollouts=24)))
        starts = []
        for id_, group in run.engine.groups.items():
            positions = run.engine.requests[id_].interrupt_at
            for at, rollout in zip(positions, group.rollouts, strict=True):
                places = [place for place, forced in enumerate(rollout.forced) if forced]
                response = text(rollout.tokens)
                due = len(response) > at and "#" not in response[:at]
                assert places == ([at, at + 1] if due else [])
                assert all(rollout.logprobs[place] == 0 for place in places)
                assert not due or response[at : at + 2] == "!#"
                starts += places[:1]
        assert set(starts) == set(range(earliest, latest + 1)) and len(starts) > 40
        first = [r for g in run.batch(0) for r in g.rollouts]
        assert run.steps[0]["train/interrupted"] == sum(True in r.forced for r in first) / len(first)
        expected = learned(run, 1)
        trained = [g for g, kept in zip(run.batch(1), expected.kept, strict=True) if kept]
        assert expected.tokens == sum(r.forced.count(False) for g in trained for r in g.rollouts)
        assert any(True in r.forced for g in trained for r in g.rollouts)


@drives("length[interrupt].phrase", "length[interrupt].end")
def test_what_interrupts_and_what_ends_thinking(lab: Lab) -> None:
    """`phrase` is what is forced. `end` decides who is spared: those who have written it by then, and hardly one of
    them has written '='."""
    spared = []
    for phrase, end in (("#", "#"), ("so#", "#"), ("so=", "=")):
        length = Interrupt(earliest=5, latest=5, phrase=phrase, end=end)
        run = lab.run(replace(BASE, length=length, budget=Budget(steps=1)))
        spared.append(0)
        for group in run.engine.groups.values():
            for rollout in group.rollouts:
                response = text(rollout.tokens[:5])
                due = len(rollout.tokens) > 5 and end not in response
                forced = [ALPHABET[t] for t, f in zip(rollout.tokens, rollout.forced, strict=True) if f]
                assert "".join(forced) == (phrase if due else "")
                spared[-1] += len(rollout.tokens) > 5 and not due
    assert spared[0] == spared[1] > 10 * spared[2]


@drives("length[penalty]", "length[penalty].limit", "length[penalty].ramp")
def test_the_penalty(lab: Lab, learned: Any) -> None:
    """Right answers of T tokens lose clip((T - limit + ramp) / ramp, 0, 1); the same groups are kept."""
    recipe = replace(BASE, batch=Batch(prompts=6, rollouts=32), budget=Budget(steps=1))
    plain = lab.run(recipe)
    kept, means = learned(plain, 0).kept, set()
    for limit, ramp in ((8, 4), (8, 8), (10, 4)):
        run = lab.run(replace(recipe, length=Penalty(limit=limit, ramp=ramp)))
        assert run.batch(0) == plain.batch(0)
        expected = learned(run, 0)
        assert expected.kept == kept
        lost = 0.0
        for group in run.batch(0):
            for rollout, outcome in zip(group.rollouts, group.outcomes, strict=True):
                if outcome == "correct":
                    lost += min(1.0, max(0.0, (len(rollout.tokens) - limit + ramp) / ramp))
        assert lost > 0
        moved = plain.steps[0]["train/reward"] - run.steps[0]["train/reward"]
        assert moved == pytest.approx(lost / (6 * 32))
        means.add(round(moved, 9))
        assert apart(plain.gradients[0], run.gradients[0]) > 1e-3
    assert len(means) == 3


@drives("seed")
def test_the_seed(lab: Lab) -> None:
    """Order and tokens are the seed's; the pool, the initial model and what is evaluated are not."""
    one, two = (lab.run(replace(BASE, seed=seed, budget=Budget(steps=3))) for seed in (0, 1))
    again = lab.start(replace(BASE, seed=1, budget=Budget(steps=3)))
    assert torch.equal(again.flat(3), two.flat(3)) and again.engine.groups == two.engine.groups
    assert torch.equal(one.flat(0), two.flat(0)) and not torch.equal(one.flat(3), two.flat(3))
    orders = [[text(run.engine.requests[i].prompt) for i in range(24)] for run in (one, two)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    asked = [[r.prompt for r in run.engine.evaluations[0][1].values()] for run in (one, two)]
    assert asked[0] == asked[1]
    assert one.engine.evaluations[0][2] != two.engine.evaluations[0][2]
    # Every group has tokens of its own, whatever its number.
    tokens = [tuple(r.tokens for r in g.rollouts) for run in (one, two) for g in run.engine.groups.values()]
    assert len(set(tokens)) == len(tokens)


# --- optimizer -------------------------------------------------------------------------------------------------------


def adamw(options: Optimizer, start: Tensor, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Weights after each step, in double precision."""
    weights, first, second, found = start.double(), 0.0, 0.0, []
    for step, gradient in enumerate((g.double() for g in gradients), 1):
        rate = options.lr * min(1.0, step / max(options.warmup_steps, 1))
        first = options.beta1 * first + (1 - options.beta1) * gradient
        second = options.beta2 * second + (1 - options.beta2) * gradient**2
        ahead = first / (1 - options.beta1**step)
        spread = (second / (1 - options.beta2**step)) ** 0.5
        weights = weights - rate * options.weight_decay * weights - rate * ahead / (spread + options.eps)
        found.append(weights)
    return found


OPTIMIZERS = {
    "lr": (1e-3, 2e-3),
    "warmup_steps": (0, 4),
    "weight_decay": (0.0, 0.5),
    "beta1": (0.9, 0.5),
    "beta2": (0.95, 0.5),
    "eps": (1e-8, 1e-3),
    "grad_clip": (1e9, 0.05),
}


@drives(*(f"optimizer.{name}" for name in OPTIMIZERS))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer(lab: Lab, learned: Any, name: str) -> None:
    """Three updates are AdamW's, written out, from gradients after clipping; and each knob moves them its own way."""
    recipe = replace(BASE, optimizer=replace(BASE.optimizer, lr=1e-3, grad_clip=1e9), budget=Budget(steps=3))
    runs = [
        lab.run(replace(recipe, optimizer=replace(recipe.optimizer, **{name: value}))) for value in OPTIMIZERS[name]
    ]
    for run in runs:
        options = run.recipe.optimizer
        expected = adamw(options, run.flat(0), [run.gradients[v] for v in range(3)])
        for version, weights in enumerate(expected):
            moved = weights - run.flat(0)
            assert apart(moved, run.flat(version + 1).double() - run.flat(0)) < 1e-3
            rate = options.lr * min(1.0, (version + 1) / max(options.warmup_steps, 1))
            assert run.steps[version]["train/lr"] == pytest.approx(rate)
            assert float(run.gradients[version].norm()) <= options.grad_clip * 1.0001
    one, two = runs
    start, (first, second) = one.flat(0), ([run.flat(1) for run in runs])
    assert torch.equal(start, two.flat(0))
    if name == "lr":
        assert apart((first - start) * 2, second - start) < 1e-3
    elif name == "warmup_steps":
        assert apart((first - start) / 4, second - start) < 1e-3
    elif name == "weight_decay":
        assert apart(1e-3 * 0.5 * start, first - second) < 1e-3
    elif name == "eps":
        gradient = one.gradients[0].double()
        assert apart(-1e-3 * gradient / (gradient.abs() + 1e-3) - 1e-5 * start, second - start) < 1e-3
        assert apart(first - start, second - start) > 0.1
    elif name == "grad_clip":
        learned(two, 0)
        assert float(two.gradients[0].norm()) == pytest.approx(0.05, rel=1e-3)
        assert apart(one.gradients[0] * 0.05 / one.gradients[0].norm(), two.gradients[0]) < 1e-3
        # The journal tells the norm before clipping.
        assert two.steps[0]["train/grad_norm"] == pytest.approx(float(one.gradients[0].norm()), rel=1e-4)
    else:
        # The first update doesn't know the moments' decay, up to the bias correction's rounding.
        assert apart(first - start, second - start) < 1e-3
        assert apart(one.flat(2) - start, two.flat(2) - start) > 1e-2


# --- evaluation ------------------------------------------------------------------------------------------------------


@drives("evaluation.every", "evaluation.prompts", "evaluation.samples", "evaluation.temperature")
@pytest.mark.parametrize("scheme", [Pipeline(k=1), Ppo(k=3)], ids=str)
def test_evaluation(lab: Lab, scheme: Any) -> None:
    """Rows stand where `every` says and hold what the others say; how a policy is measured never changes it."""
    recipe = replace(BASE, off_policy=scheme, budget=Budget(steps=5))
    evaluations = [
        Evaluation(every=2, prompts=3, samples=4, temperature=1.0),
        Evaluation(every=3, prompts=5, samples=2, temperature=0.5),
    ]
    runs = [lab.run(replace(recipe, evaluation=each)) for each in evaluations]
    assert torch.equal(runs[0].flat(5), runs[1].flat(5)) and runs[0].engine.groups == runs[1].engine.groups
    for run, options, steps in zip(runs, evaluations, ([0, 2, 4, 5], [0, 3, 5]), strict=True):
        assert [row["step"] for row in run.rows("evaluation")] == steps
        assert [row.get("off_schedule", False) for row in run.rows("evaluation")] == [step == 5 for step in steps]
        held_out = [prompt.text for prompt in run.state.task.held_out(options.prompts)]
        for row, (version, requests, groups) in zip(run.rows("evaluation"), run.engine.evaluations, strict=True):
            assert version == row["step"] and row["samples"] == options.samples
            assert [text(request.prompt) for request in requests.values()] == held_out
            asked = [run.asked(requests[i], groups[i]) for i in requests]
            assert row["counts"] == [each.outcomes.count("correct") for each in asked]
            rate = sum(row["counts"]) / (options.prompts * options.samples)
            assert row["metrics"]["evaluation/pass_rate"] == pytest.approx(rate)
            assert len(row["counts"]) == options.prompts
            model = run.model(version)
            for each in asked:
                assert len(each.rollouts) == options.samples
                rollout = each.rollouts[0]
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([[*each.prompt, *rollout.tokens]])).logits[0, 7:-1]
                expected = torch.log_softmax(logits / options.temperature, -1)[
                    range(len(rollout.tokens)), rollout.tokens
                ]
                assert (torch.tensor(rollout.logprobs) - expected).abs().max() < 1e-4


# --- divergence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["sampler", "trainer"])
def test_a_run_that_diverges_keeps_its_last_good_checkpoint(lab: Lab, broken: str) -> None:
    """Log-probabilities, a loss or a gradient that is not finite ends the run before any weight is touched."""
    recipe = replace(
        BASE,
        curriculum=Curriculum(zero_variance="keep", no_positive_resampling=None),
        execution=replace(BASE.execution, checkpoint_every=2),
        budget=Budget(steps=5),
    )

    def script(request: Request, group: Group) -> Group:
        if broken != "sampler" or group.id != 3 * 6 + 2:
            return group
        first = group.rollouts[0]
        nan = replace(first, logprobs=(*first.logprobs[:-1], math.nan))
        return Group(group.id, (nan, *group.rollouts[1:]))

    def break_trainer(state: State) -> None:
        if broken == "trainer" and state.step == 3:
            with torch.no_grad():
                next(state.model.parameters())[10, 0] = math.inf

    run = lab.start(recipe, script, break_trainer)
    assert (run.outcome.state, run.outcome.step) == ("diverged", 3)
    assert [row["step"] for row in run.rows("step")] == [1, 2, 3]
    assert sorted(run.gradients) == [0, 1, 2]
    newest = checkpoints.newest(run.state.run)
    assert newest is not None and newest.step == 2
    stored = load_file(newest.path / "model" / "model.safetensors")
    assert all(torch.equal(run.weights[2][name], value) for name, value in stored.items())
