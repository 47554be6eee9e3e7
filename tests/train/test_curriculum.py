"""Epochs over the pool, exclusions frozen at their boundaries, and a state that determines the future."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsweep.errors import RlsweepError
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.train.curriculum import PromptStream
from rlsweep.train.randomness import generator

RESAMPLE = Curriculum(no_positive_resampling=0.9)
UNIFORM = Curriculum(no_positive_resampling=None)


def test_an_epoch_asks_each_prompt_once_in_an_order_of_its_own() -> None:
    stream = PromptStream(UNIFORM, 20, seed=3)
    first, second = stream.next_batch(20), stream.next_batch(20)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert first != PromptStream(UNIFORM, 20, seed=4).next_batch(20)
    assert first == PromptStream(RESAMPLE, 20, seed=3).next_batch(20)


def test_batches_straddle_epochs() -> None:
    whole = PromptStream(UNIFORM, 10, seed=0).next_batch(30)
    stream = PromptStream(UNIFORM, 10, seed=0)
    epochs = []
    parts: list[int] = []
    for _ in range(10):
        parts += stream.next_batch(3)
        epochs.append(stream.epoch)
    assert parts == whole
    assert epochs == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]


def test_a_pool_smaller_than_a_batch_goes_round() -> None:
    batch = PromptStream(UNIFORM, 3, seed=0).next_batch(8)
    assert sorted(batch[:3]) == sorted(batch[3:6]) == [0, 1, 2]
    assert len(batch) == 8
    assert PromptStream(UNIFORM, 1, seed=0).next_batch(4) == [0] * 4


def test_exclusions_are_frozen_until_the_next_epoch() -> None:
    stream = PromptStream(RESAMPLE, 10, seed=1)
    batch = stream.next_batch(6)
    for prompt in range(10):
        stream.observe(prompt, correct=10 if prompt < 4 else 5, total=10)
    # Prompts 0..3 are too easy by now, but this epoch still asks them.
    assert sorted(batch + stream.next_batch(4)) == list(range(10))
    assert stream.excluded == frozenset()
    assert sorted(stream.next_batch(6)) == [4, 5, 6, 7, 8, 9]
    assert stream.excluded == {0, 1, 2, 3}
    assert stream.metrics() == {
        "curriculum/epoch": 1,
        "curriculum/excluded_prompts": 4,
        "curriculum/exclusion_lifted": 0,
    }
    # And an epoch that has begun doesn't look again.
    stream = PromptStream(RESAMPLE, 10, seed=1)
    stream.next_batch(11)
    for prompt in range(10):
        stream.observe(prompt, correct=10 if prompt < 4 else 5, total=10)
    stream.next_batch(9)
    assert (stream.epoch, sorted(stream.excluded)) == (1, [])
    stream.next_batch(1)
    assert (stream.epoch, sorted(stream.excluded)) == (2, [0, 1, 2, 3])


def test_what_is_observed_before_the_first_prompt_of_an_epoch_counts() -> None:
    stream = PromptStream(RESAMPLE, 4, seed=0)
    stream.next_batch(4)
    stream.observe(2, correct=8, total=8)
    assert 2 not in stream.next_batch(3)


@pytest.mark.parametrize(
    ("correct", "total", "excluded"), [(9, 10, True), (89, 100, False), (90, 100, True), (0, 0, False)]
)
def test_the_threshold_itself_is_reached(correct: int, total: int, excluded: bool) -> None:
    stream = PromptStream(RESAMPLE, 2, seed=0)
    stream.observe(0, correct, total)
    stream.next_batch(3)
    assert (0 in stream.excluded) == excluded


@given(share=st.integers(1, 99), times=st.integers(1, 500))
def test_thresholds_do_not_round(share: int, times: int) -> None:
    stream = PromptStream(Curriculum(no_positive_resampling=share / 100), 2, seed=0)
    stream.observe(0, share * times, 100 * times)
    stream.observe(1, share * times - 1, 100 * times)
    stream.next_batch(3)
    assert stream.excluded == {0}


def test_the_history_pools_all_visits() -> None:
    stream = PromptStream(RESAMPLE, 3, seed=0)
    stream.observe(0, 8, 8)
    stream.observe(0, 6, 8)  # .875 together, although one visit was at 1
    stream.observe(1, 7, 8)
    stream.observe(1, 8, 8)  # .9375
    stream.next_batch(4)
    assert stream.excluded == {1}


def test_no_threshold_excludes_nobody() -> None:
    stream = PromptStream(UNIFORM, 3, seed=0)
    for prompt in range(3):
        stream.observe(prompt, 8, 8)
    assert sorted(stream.next_batch(6)) == [0, 0, 1, 1, 2, 2]
    assert not stream.exclusion_lifted


def test_the_pool_cannot_be_emptied() -> None:
    stream = PromptStream(RESAMPLE, 3, seed=0)
    for prompt in range(3):
        stream.observe(prompt, 8, 8)
    stream.next_batch(3)
    assert not stream.exclusion_lifted
    assert sorted(stream.next_batch(3)) == [0, 1, 2]
    assert stream.exclusion_lifted
    resumed = PromptStream(RESAMPLE, 3, seed=0)
    resumed.load_state_dict(stream.state_dict())
    assert resumed.exclusion_lifted
    assert stream.metrics() == {
        "curriculum/epoch": 1,
        "curriculum/excluded_prompts": 0,
        "curriculum/exclusion_lifted": 1,
    }
    # A prompt that got harder is the only one left in the next epoch.
    stream.observe(1, 0, 8)
    assert stream.next_batch(2) == [1, 1]
    assert not stream.exclusion_lifted


def simulate(stream: PromptStream, start: int, batches: int, size: int) -> list[list[int]]:
    """Batches, each answered by chance (derived from its number) one batch later, as an asynchronous trainer does."""
    asked = []
    for number in range(start, start + batches):
        batch = stream.next_batch(size)
        rng = generator(0, "answers", number)
        for prompt in batch:
            stream.observe(prompt, int(rng.binomial(8, 0.99 if prompt % 3 else 0.5)), 8)
        asked.append(batch)
    return asked


@settings(max_examples=40, deadline=None)
@given(pool=st.integers(1, 12), size=st.integers(1, 9), before=st.integers(0, 12), seed=st.integers(0, 2**40))
def test_the_same_state_has_the_same_future(pool: int, size: int, before: int, seed: int) -> None:
    straight = PromptStream(RESAMPLE, pool, seed)
    stopped = PromptStream(RESAMPLE, pool, seed)
    asked = simulate(straight, 0, before + 10, size)
    assert simulate(stopped, 0, before, size) == asked[:before]
    resumed = PromptStream(RESAMPLE, pool, seed)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert resumed.metrics() == stopped.metrics()
    assert simulate(resumed, before, 10, size) == asked[before:]
    assert resumed.state_dict() == straight.state_dict()
    assert resumed.excluded == straight.excluded
    assert resumed.exclusion_lifted == straight.exclusion_lifted


@settings(max_examples=40, deadline=None)
@given(pool=st.integers(1, 12), sizes=st.lists(st.integers(0, 9), max_size=8))
def test_no_prompt_twice_in_an_epoch_and_none_left_out(pool: int, sizes: list[int]) -> None:
    stream = PromptStream(UNIFORM, pool, seed=5)
    asked = [prompt for size in sizes for prompt in stream.next_batch(size)]
    for start in range(0, len(asked), pool):
        epoch = asked[start : start + pool]
        assert len(set(epoch)) == len(epoch)


@settings(max_examples=60, deadline=None)
@given(
    pool=st.integers(1, 8),
    sizes=st.lists(st.integers(0, 6), max_size=12),
    rates=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=8, max_size=8),
    threshold=st.sampled_from([None, 0.25, 0.5, 0.9, 1.0]),
    late=st.integers(0, 3),
)
def test_equals_the_slow_reference(
    pool: int, sizes: list[int], rates: list[float], threshold: float | None, late: int
) -> None:
    """Batches are observed `late` batches after they were asked. When the pool of an epoch is used up, the next one is
    every prompt whose successes so far, out of its rollouts so far, fall short of the threshold; all if none does."""
    stream = PromptStream(Curriculum(no_positive_resampling=threshold), pool, seed=2)
    history: list[tuple[int, int, int]] = []
    waiting: list[list[int]] = []
    left, everyone, excluded = set(range(pool)), set(range(pool)), set[int]()
    for size in sizes:
        batch = stream.next_batch(size)
        assert len(batch) == size
        for prompt in batch:
            if not left:
                excluded = set()
                for each in everyone:
                    right = sum(correct for p, correct, _ in history if p == each)
                    seen = sum(total for p, _, total in history if p == each)
                    if threshold is not None and seen and right >= threshold * seen:
                        excluded.add(each)
                lifted = excluded == everyone
                excluded = set() if lifted else excluded
                left = everyone - excluded
                assert stream.epoch > 0
            left.remove(prompt)
        if batch:
            assert stream.excluded == excluded
        waiting.append(batch)
        if len(waiting) > late:
            for prompt in waiting.pop(0):
                # A quarter of 4, half of 4 and so on: no rounding.
                stream.observe(prompt, int(4 * rates[prompt]), 4)
                history.append((prompt, int(4 * rates[prompt]), 4))


def test_state_of_another_pool_is_refused() -> None:
    state: Any = PromptStream(UNIFORM, 3, seed=0).state_dict()
    with pytest.raises(RlsweepError, match="knows 3 training prompts, the task has 4"):
        PromptStream(UNIFORM, 4, seed=0).load_state_dict(state)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(RlsweepError, match="no training prompts"):
        PromptStream(UNIFORM, 0, seed=0)


def test_streams_of_randomness_are_told_apart_by_each_argument() -> None:
    def draw(seed: int, purpose: str, counter: int) -> bytes:
        return generator(seed, purpose, counter).bytes(16)

    assert draw(1, "a", 2) == draw(1, "a", 2)
    draws = [draw(1, "a", 2), draw(2, "a", 1), draw(1, "b", 2), draw(1, "a", 3), draw(0, "a", 2), draw(2**40, "a", 2)]
    assert len(set(draws)) == len(draws)


def test_order_of_the_first_epoch_is_pinned() -> None:
    """A changed derivation makes every finished run irreproducible: raise SEMANTICS with it."""
    assert PromptStream(UNIFORM, 8, seed=0).next_batch(8) == [2, 7, 6, 4, 0, 3, 1, 5]
