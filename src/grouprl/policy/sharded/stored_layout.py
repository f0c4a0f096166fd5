"""The tensors in which a model is stored, where they are not those in which it computes.

transformers computes the experts of many models from one tensor and stores a matrix for each of them, as other programs
read them; some layers have other names in files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch

from grouprl.storage.model_files import Described

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class StoredGroup:
    """Tensors of a model that are stored as one or several others.

    Attributes:
        own: numbers of the model's tensors.
        stored: name, type and shape of those that are stored.
    """

    own: tuple[int, ...]
    stored: tuple[Described, ...]


def stored_layout(model: PreTrainedModel, own: Sequence[Described]) -> list[StoredGroup]:
    """Return how the tensors `own` of a model are stored, in the smallest groups that are converted together."""
    whole = _described(_reverted(model, _outlines(own)))
    groups = [_group(model, own, [number]) for number in range(len(own))]
    if _together(groups) != sorted(whole):
        wrong = [g.own[0] for g in groups if not set(g.stored) <= set(whole)]
        kept = [g for g in groups if set(g.stored) <= set(whole)]
        groups = [*kept, _group(model, own, wrong)]
    if _together(groups) != sorted(whole):
        groups = [_group(model, own, range(len(own)))]
    return groups


def as_stored(
    model: PreTrainedModel, groups: Iterable[StoredGroup], tensors: Iterator[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the stored tensors made from `tensors`, in the order of the groups."""
    for group in groups:
        found = _reverted(model, dict(islice(tensors, len(group.own))))
        yield from ((name, found[name].contiguous()) for name, _, _ in group.stored)


def _group(model: PreTrainedModel, own: Sequence[Described], numbers: Iterable[int]) -> StoredGroup:
    chosen = tuple(numbers)
    return StoredGroup(chosen, tuple(_described(_reverted(model, _outlines([own[n] for n in chosen])))))


def _together(groups: Iterable[StoredGroup]) -> list[Described]:
    return sorted(each for group in groups for each in group.stored)


def _outlines(own: Iterable[Described]) -> dict[str, Tensor]:
    return {name: torch.empty(shape, dtype=dtype, device="meta") for name, dtype, shape in own}


def _described(tensors: dict[str, Tensor]) -> list[Described]:
    return [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]


def _reverted(model: PreTrainedModel, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as they are stored; versions of transformers before 5 compute with the same ones."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return tensors
    found: dict[str, Tensor] = revert_weight_conversion(model, tensors)
    return found
