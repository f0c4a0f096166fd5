"""Conversion of the values of a space to numbers for a perceptron."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from grouprl.policy.vectors.array_columns import Arrays
from grouprl.protocols import ArraySpace, DictSpace, Discrete, Image, MultiDiscrete, Space

BYTES = 255.0
"""Divisor of the numbers of a picture."""


def feature_count(space: Space) -> int:
    """Return the number of features that `features` makes from a value."""
    if isinstance(space, DictSpace):
        return sum(map(feature_count, space.spaces.values()))
    if isinstance(space, Discrete):
        return space.count
    return sum(space.counts) if isinstance(space, MultiDiscrete) else math.prod(space.shape)


def features(space: Space, value: Arrays, dtype: torch.dtype) -> Tensor:
    """Return values [N,…] as numbers [N,F]: whole numbers one-hot, pictures divided by 255, other arrays as they are,
    all flattened.

    Entries of a `DictSpace` follow each other in its order.
    """
    if isinstance(space, DictSpace):
        assert not isinstance(value, Tensor)
        return torch.cat([_flat(inner, value[name], dtype) for name, inner in space.spaces.items()], -1)
    assert isinstance(value, Tensor)
    return _flat(space, value, dtype)


def _flat(space: ArraySpace, value_n: Tensor, dtype: torch.dtype) -> Tensor:
    if isinstance(space, Discrete):
        return nn.functional.one_hot(value_n, space.count).to(dtype)
    if isinstance(space, MultiDiscrete):
        each = [nn.functional.one_hot(x, n) for x, n in zip(value_n.unbind(-1), space.counts, strict=True)]
        return torch.cat(each, -1).to(dtype)
    flat_nf = value_n.flatten(1).to(dtype)
    return flat_nf / BYTES if isinstance(space, Image) else flat_nf
