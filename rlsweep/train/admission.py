"""Staleness is bounded by admission: when a batch may be sampled, when weights are published, what must be finished.

Version v is the policy after v optimizer steps, and batch b (from 0) is trained at version b, in order. With
`pipeline` k, batch b is admitted once version b - k exists. With `ppo` k, batches nk..nk+k-1 are admitted at version
nk, all finished before the first of them is trained, and weights are published at multiples of k only. `ppo` 1 is
`pipeline` 0. How long a run goes on has no say in it, so that a longer run begins exactly like a shorter one.
"""

from rlsweep.recipe.off_policy import OffPolicy, Pipeline


def admissible(options: OffPolicy, version: int) -> int:
    """How many batches (0..n-1) may have been admitted once the policy has reached `version`."""
    if isinstance(options, Pipeline):
        return version + options.k + 1
    return (version // options.k + 1) * options.k


def must_publish(options: OffPolicy, version: int) -> bool:
    """Whether the engine is given the weights of `version`."""
    return isinstance(options, Pipeline) or version % options.k == 0


def finish_before_training(options: OffPolicy, batch: int) -> range:
    """The batches, besides those trained before it, that must be complete before `batch` is trained."""
    if isinstance(options, Pipeline):
        return range(batch, batch + 1)
    first = batch // options.k * options.k
    return range(first, first + options.k)
