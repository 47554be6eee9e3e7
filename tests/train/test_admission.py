"""Staleness by admission, on a simulation of a trainer that admits as early as it may."""

import pytest

from rlsweep.recipe.off_policy import OffPolicy, Pipeline, Ppo
from rlsweep.train.admission import admissible, finish_before_training, must_publish

STEPS = 40


def sampled_versions(options: OffPolicy) -> list[int]:
    """The version with which each batch is sampled: the newest published one when the batch is admitted."""
    sampled: list[int] = []
    published = 0
    for version in range(STEPS):
        if must_publish(options, version):
            published = version
        sampled += [published] * (admissible(options, version) - len(sampled))
        finished = finish_before_training(options, version)
        assert version in finished
        assert finished.stop <= len(sampled), "waits for a batch that is not admitted"
    return sampled[:STEPS]


@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_pipeline_lags_exactly_k_after_the_ramp(k: int) -> None:
    lags = [batch - version for batch, version in enumerate(sampled_versions(Pipeline(k=k)))]
    assert lags == [min(batch, k) for batch in range(STEPS)]
    assert max(lags) == k


@pytest.mark.parametrize("k", [1, 3, 8])
def test_ppo_samples_k_batches_with_one_version(k: int) -> None:
    versions = sampled_versions(Ppo(k=k))
    assert versions == [batch // k * k for batch in range(STEPS)]
    assert max(batch - version for batch, version in enumerate(versions)) == k - 1


def test_ppo_by_hand() -> None:
    options = Ppo(k=3)
    assert [admissible(options, version) for version in range(7)] == [3, 3, 3, 6, 6, 6, 9]
    assert [version for version in range(7) if must_publish(options, version)] == [0, 3, 6]
    assert [finish_before_training(options, batch) for batch in (0, 2, 3)] == [range(3), range(3), range(3, 6)]


def test_pipeline_by_hand() -> None:
    options = Pipeline(k=2)
    assert [admissible(options, version) for version in range(4)] == [3, 4, 5, 6]
    assert all(must_publish(options, version) for version in range(4))
    assert finish_before_training(options, 5) == range(5, 6)


def test_ppo_1_is_pipeline_0() -> None:
    for version in range(STEPS):
        assert admissible(Ppo(k=1), version) == admissible(Pipeline(k=0), version) == version + 1
        assert must_publish(Ppo(k=1), version) and must_publish(Pipeline(k=0), version)
        assert finish_before_training(Ppo(k=1), version) == finish_before_training(Pipeline(k=0), version)
