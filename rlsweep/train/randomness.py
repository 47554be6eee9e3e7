"""Randomness is derived, not carried: a stream depends on its purpose and a counter, never on what was drawn before."""

import hashlib

import numpy as np


def generator(seed: int, purpose: str, counter: int) -> np.random.Generator:
    """The stream of `purpose` ("curriculum", ...) at its `counter`-th use in a run with `seed`, both 0 or more.

    Streams of different arguments are independent; the same arguments give the same numbers in every process.
    """
    digest = int.from_bytes(hashlib.sha256(purpose.encode()).digest(), "big")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, digest, counter])))
