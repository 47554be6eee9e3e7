"""The embedded task: a register machine with misconceptions, learnable by a tiny model in a minute.

A prompt names a state (a hex digit) and 2 to 6 operations, each an affine map modulo 16: `4rm    =`. The operations
stand left-aligned in a field of fixed width, so that the token that applies operation i stands at a constant distance
from it: a two-layer model learns that in a few hundred steps. The response may write the intermediate states and
filler, and ends with `#` and the final state.

Demonstrations, from which the model is warm-started, hold misconceptions: for each pair of operation and state (a
fact) a fixed belief is the probability that a demonstration applies it rightly. RL corrects the facts it samples now
and then, so the pass rate rises like a sigmoid to a ceiling below 1: facts that are never believed are rarely found.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from rlsweep.recipe.task import Registers
from rlsweep.tasks.protocol import Outcome, Prompt

HEX = "0123456789abcdef"
OPERATIONS = "ghijklmn"
FIELD = 6
PAD, EOS = 0, 1
ALPHABET = ("<pad>", "<eos>", *"0123456789", *"abcdefghijklmnopqrstuvwxyz", *" =#.\n+-*/(),:;?!")
"""The tokens of the embedded model, one character each; a token's id is its place."""

BELIEFS = (0.95, 0.45, 0.25, 0.0)
BELIEF_SHARES = (0.45, 0.37, 0.12, 0.06)
GUESS_SHARE = 0.10
NOISE_SHARE = 0.01
FILLER_CONTINUES = (0.0, 0.5, 0.8)
FILLER_SHARES = (0.5, 0.3, 0.2)
LONGEST_FILLER = 10
HELD_OUT_SHARE = 5
"""One problem in so many, chosen by its hash, is held out for evaluation."""

_ANSWER = re.compile(rf"#([{HEX}])$")


class RegisterTask:
    """Prompts, verifier and demonstrations of the recipe section `Registers`."""

    def __init__(self, section: Registers):
        self.section = section
        rng = np.random.default_rng([section.table_seed, 0])
        multiplier = rng.choice(np.arange(1, 16, 2), size=(len(OPERATIONS), 1))
        constant = rng.integers(16, size=(len(OPERATIONS), 1))
        self._held_out: list[Prompt] = []
        self.table = (multiplier * np.arange(16) + constant) % 16
        """Result of each operation on each state, [8, 16]."""
        facts = self.table.size
        shares = np.repeat(BELIEFS, np.diff(np.round(np.cumsum((0, *BELIEF_SHARES)) * facts).astype(int)))
        self.beliefs = rng.permutation(shares).reshape(self.table.shape)
        """Probability that a demonstration applies a fact rightly, [8, 16]."""
        offsets = np.stack([rng.choice(np.arange(1, 16), 2, replace=False) for _ in range(facts)])
        self.mistakes = (self.table[..., None] + offsets.reshape(*self.table.shape, 2)) % 16
        """The two wrong results that demonstrations show instead, [8, 16, 2]."""

    @property
    def size(self) -> int:
        """Number of training prompts."""
        return self.section.prompts

    def prompt(self, index: int) -> Prompt:
        """Training prompt `index`."""
        return self._pool[index]

    def held_out(self, count: int) -> Sequence[Prompt]:
        """The first `count` evaluation prompts, the same for every run on this table."""
        if len(self._held_out) < count:
            rng = np.random.default_rng([self.section.table_seed, 2])
            self._held_out = self._draw(rng, count, held_out=True)
        return self._held_out[:count]

    def answer(self, response: str) -> str | None:
        """The state after the `#` that a response ends with."""
        found = _ANSWER.search(response)
        return found[1] if found else None

    def grade(self, prompt: Prompt, response: str, *, stopped: bool) -> Outcome:
        """A response is right if it stops after `#` and the final state."""
        if not stopped:
            return "truncated"
        answer = self.answer(response)
        if answer is None:
            return "unparseable"
        return "correct" if answer == prompt.answer else "wrong"

    def demonstrations(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Warm-start examples: token ids [count, L] padded on the right, and the mask [count, L] of response tokens.

        Problems that are held out for evaluation never appear.
        """
        prompts = self._draw(rng, count, held_out=False)
        rows = [self._demonstrate(rng, prompt.text) for prompt in prompts]
        start = FIELD + 2
        length = start + max(map(len, rows)) + 1
        ids = np.full((count, length), PAD)
        mask = np.zeros((count, length), bool)
        for row, (prompt, response) in enumerate(zip(prompts, rows, strict=True)):
            text = prompt.text + response
            ids[row, : len(text) + 1] = [*map(ALPHABET.index, text), EOS]
            mask[row, start : len(text) + 1] = True
        return ids, mask

    @cached_property
    def _pool(self) -> list[Prompt]:
        rng = np.random.default_rng([self.section.table_seed, 1])
        return self._draw(rng, self.section.prompts, held_out=False)

    def _draw(self, rng: np.random.Generator, count: int, *, held_out: bool) -> list[Prompt]:
        """`count` random problems of one split."""
        prompts: list[Prompt] = []
        while len(prompts) < count:
            state = int(rng.integers(16))
            operations = rng.integers(len(OPERATIONS), size=rng.integers(2, FIELD + 1))
            text = HEX[state] + "".join(OPERATIONS[o] for o in operations).ljust(FIELD) + "="
            if (hashlib.sha256(text.encode()).digest()[0] % HELD_OUT_SHARE == 0) != held_out:
                continue
            for operation in operations:
                state = int(self.table[operation, state])
            prompts.append(Prompt(text, HEX[state]))
        return prompts

    def _demonstrate(self, rng: np.random.Generator, text: str) -> str:
        """A response as the demonstrations hold it, misconceptions included."""
        if rng.random() < GUESS_SHARE:
            return "#" + HEX[rng.integers(16)]
        state = HEX.index(text[0])
        states = []
        for letter in text[1 : FIELD + 1].rstrip():
            operation = OPERATIONS.index(letter)
            draw, pick = rng.random(2)
            if draw < NOISE_SHARE:
                state = int(pick * 16)
            elif rng.random() < self.beliefs[operation, state]:
                state = int(self.table[operation, state])
            else:
                state = int(self.mistakes[operation, state, int(pick * 2)])
            states.append(HEX[state])
        going_on = FILLER_CONTINUES[rng.choice(len(FILLER_CONTINUES), p=FILLER_SHARES)]
        filler = min(int(rng.geometric(1 - going_on)) - 1, LONGEST_FILLER)
        return "".join(states) + "." * filler + "#" + states[-1]
