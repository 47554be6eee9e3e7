"""Rollouts on their way: which batches were admitted, which of their groups are finished, and how they are kept."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rlsweep.recipe.length import Interrupt
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import Group, Request, Rollout, RolloutEngine
from rlsweep.tasks.protocol import Outcome, Prompt, Task
from rlsweep.train.admission import admissible
from rlsweep.train.curriculum import PromptStream
from rlsweep.train.grading import Failures, Verifier
from rlsweep.train.randomness import generator
from rlsweep.train.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Graded:
    """A finished group: the pool's index of its prompt, the prompt's tokens, its rollouts and their outcomes."""

    prompt_index: int
    prompt: tuple[int, ...]
    rollouts: tuple[Rollout, ...]
    outcomes: tuple[Outcome, ...]
    verifier_errors: int = 0
    """Rollouts that are unparseable because the verifier failed on them."""

    @property
    def correct(self) -> int:
        return self.outcomes.count("correct")


class Tokens:
    """Text to token ids and back, as the task and the engine need them."""

    def __init__(self, tokenizer: Any, task: Task):
        self.tokenizer = tokenizer
        self._verifier = Verifier(task, lambda text: print(text, flush=True))
        self.eos: int = tokenizer.eos_token_id
        # A prompt is asked for again when its batch is submitted, counted and graded, and in the next epoch.
        self.encode = lru_cache(maxsize=8192)(self._encode)

    def _encode(self, text: str) -> tuple[int, ...]:
        """Token ids of `text` without special tokens."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def response(self, rollout: Rollout) -> str:
        """What the verifier reads of a rollout: its text without the end-of-sequence token."""
        text: str = self.tokenizer.decode(rollout.tokens[:-1] if rollout.finish == "stop" else rollout.tokens)
        return text

    def grade(self, prompt: Prompt, rollout: Rollout, failures: Failures) -> Outcome:
        """The verifier's outcome of one rollout; where it fails, `failures` count it."""
        text, stopped = self.response(rollout), rollout.finish == "stop"
        return self._verifier.grade(prompt, text, stopped=stopped, failures=failures)

    def answer(self, rollout: Rollout) -> str | None:
        """The answer that the verifier finds in a rollout; None where it finds none or fails."""
        return self._verifier.answer(self.response(rollout))


def requests(
    recipe: Recipe,
    ids: range,
    prompts: list[tuple[int, ...]],
    purpose: str,
    counter: int,
    count: int,
    temperature: float,
) -> list[Request]:
    """One request a prompt, for `count` rollouts; every random number derives from (seed, purpose, counter)."""
    rng = generator(recipe.seed, purpose, counter)
    seeds = rng.integers(2**63, size=len(prompts)).tolist()
    positions: list[tuple[int, ...]] = [()] * len(prompts)
    if isinstance(recipe.length, Interrupt):
        drawn = rng.integers(recipe.length.earliest, recipe.length.latest + 1, size=(len(prompts), count))
        positions = [tuple(row) for row in drawn.tolist()]
    return [
        Request(id_, prompt, count, seed, temperature, recipe.sampling.max_tokens, at)
        for id_, prompt, seed, at in zip(ids, prompts, seeds, positions, strict=True)
    ]


class Intake:
    """Admits batches by the off-policy scheme, submits their prompts and keeps finished groups until they are trained.

    The engine keeps nothing across checkpoints: what was admitted and not finished is submitted again on resuming.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        stream: PromptStream,
        tokens: Tokens,
        count: Callable[[int, int, int], None],
        ranks: Ranks = ALONE,
    ):
        """`count(samples, prompt tokens, response tokens)` is told of every finished group.

        Grading is given up between two prompts when `ranks` are asked to stop.
        """
        self._recipe = recipe
        self._task = task
        self._stream = stream
        self._tokens = tokens
        self._count = count
        self._ranks = ranks
        self._asked: dict[int, list[int]] = {}
        self._groups: dict[int, Group] = {}
        self._admitted = 0

    def admit(self, engine: RolloutEngine, version: int) -> None:
        """Submit every batch that may be sampled now that the policy has reached `version`."""
        while self._admitted < admissible(self._recipe.off_policy, version):
            self._asked[self._admitted] = self._stream.next_batch(self._recipe.batch.prompts)
            engine.submit(self._requests(self._admitted))
            self._admitted += 1
        # An engine that samples at once is emptied at once, so that a checkpoint at any moment holds all it sampled.
        self._keep(engine.collect(wait=False))

    def take(self, engine: RolloutEngine, needed: range, batch: int) -> list[Graded]:
        """Wait until the batches of `needed` are finished, then hand over `batch`, in the order it was asked.

        RlsweepError where the verifier fails on too many of its responses.
        """
        while any(id_ not in self._groups for other in needed for id_ in self._ids(other) if other in self._asked):
            self.collect(engine)
        graded = []
        failures = Failures("step", self._recipe.batch.prompts * self._recipe.batch.rollouts)
        for index, id_ in zip(self._asked.pop(batch), self._ids(batch), strict=True):
            self._ranks.check_sparingly()
            rollouts, before = self._groups.pop(id_).rollouts, failures.count
            outcomes = tuple(self._tokens.grade(self._task.prompt(index), rollout, failures) for rollout in rollouts)
            graded.append(Graded(index, self._prompt(index), rollouts, outcomes, failures.count - before))
        return graded

    def collect(self, engine: RolloutEngine) -> list[Group]:
        """Wait for the engine and keep the groups that were admitted here; the others (negative ids) are returned."""
        finished = engine.collect(wait=True)
        assert finished, "the engine has nothing outstanding, yet groups are missing"
        return self._keep(finished)

    def frozen(self) -> "Intake":
        """A copy that stays as the intake is now, to be saved; what it holds is shared and never changes."""
        twin = copy.copy(self)
        twin._asked, twin._groups = dict(self._asked), dict(self._groups)
        return twin

    def save(self, path: Path) -> None:
        """Write what is on its way as arrays (`.npz`, no pickles)."""
        batches = sorted(self._asked)
        groups = [self._groups[id_] for id_ in sorted(self._groups)]
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        np.savez(
            path,
            admitted=np.array(self._admitted),
            batches=np.array(batches, np.int64),
            asked=np.array([self._asked[batch] for batch in batches], np.int64),
            group_ids=np.array([group.id for group in groups], np.int64),
            lengths=np.array([len(rollout.tokens) for rollout in rollouts], np.int64),
            tokens=np.array([token for rollout in rollouts for token in rollout.tokens], np.int64),
            logprobs=np.array([value for rollout in rollouts for value in rollout.logprobs], np.float64),
            forced=np.array([value for rollout in rollouts for value in rollout.forced], bool),
            stopped=np.array([rollout.finish == "stop" for rollout in rollouts], bool),
            spans=np.array([len(rollout.versions) for rollout in rollouts], np.int64),
            versions=np.array([span for rollout in rollouts for span in rollout.versions], np.int64).reshape(-1, 3),
        )

    def load(self, path: Path, engine: RolloutEngine) -> None:
        """Take up what `save` wrote, and submit again what was not finished."""
        with np.load(path, allow_pickle=False) as saved:
            stored = {name: saved[name].tolist() for name in saved.files}
        self._admitted = stored["admitted"]
        self._asked = dict(zip(stored["batches"], stored["asked"], strict=True))
        rollouts, at, span_at = [], 0, 0
        for length, stopped, spans in zip(stored["lengths"], stored["stopped"], stored["spans"], strict=True):
            rollouts.append(
                Rollout(
                    tuple(stored["tokens"][at : at + length]),
                    tuple(stored["logprobs"][at : at + length]),
                    tuple(stored["forced"][at : at + length]),
                    tuple(tuple(span) for span in stored["versions"][span_at : span_at + spans]),
                    "stop" if stopped else "length",
                )
            )
            at, span_at = at + length, span_at + spans
        size = self._recipe.batch.rollouts
        self._groups = {
            id_: Group(id_, tuple(rollouts[place * size : (place + 1) * size]))
            for place, id_ in enumerate(stored["group_ids"])
        }
        for batch in sorted(self._asked):
            engine.submit([request for request in self._requests(batch) if request.id not in self._groups])

    def _keep(self, finished: list[Group]) -> list[Group]:
        """Keep and count groups of admitted batches; the others."""
        size = self._recipe.batch.prompts
        for group in finished:
            if group.id >= 0:
                self._groups[group.id] = group
                prompt = self._prompt(self._asked[group.id // size][group.id % size])
                responses = sum(len(rollout.tokens) for rollout in group.rollouts)
                self._count(len(group.rollouts), len(prompt) * len(group.rollouts), responses)
        return [group for group in finished if group.id < 0]

    def _requests(self, batch: int) -> list[Request]:
        prompts = [self._prompt(index) for index in self._asked[batch]]
        count, temperature = self._recipe.batch.rollouts, self._recipe.sampling.temperature
        return requests(self._recipe, self._ids(batch), prompts, "rollout", batch, count, temperature)

    def _ids(self, batch: int) -> range:
        return range(batch * self._recipe.batch.prompts, (batch + 1) * self._recipe.batch.prompts)

    def _prompt(self, index: int) -> tuple[int, ...]:
        return self._tokens.encode(self._task.prompt(index).text)
