"""Ragged rows as tensors."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch


def present(rows: Sequence[Sequence[float]], *, left: bool = False) -> np.ndarray:
    """Where `padded` has the numbers of `rows`: [N, longest] (bool)."""
    lengths = np.array([len(row) for row in rows])[:, None]
    there = np.arange(lengths.max()) < lengths
    return there[:, ::-1] if left else there


def padded(rows: Sequence[Sequence[float]], kind: type, *, left: bool = False) -> torch.Tensor:
    """N rows of numbers of `kind` as [N, longest], with zeros on the right, or on the left."""
    there = present(rows, left=left)
    filled: np.ndarray = np.zeros(there.shape, kind)
    filled[there] = np.fromiter(chain.from_iterable(rows), kind, int(there.sum()))
    return torch.from_numpy(filled)
