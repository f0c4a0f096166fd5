"""The cache that a model keeps of a row while it samples, measured on torch's meta device."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grouprl.plan.kept_numbers import KeptNumbers
from grouprl.policy.language.model_checks import STATES, state_name, stray_window

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHORT, LONGER = 2, 3
"""Tokens of the two passes that are compared."""
FAILURES = (TypeError, ValueError, RuntimeError, NotImplementedError, AttributeError, LookupError, AssertionError)
"""Errors of models that cannot be passed through without weights."""


def cache_layout(model: PreTrainedModel) -> KeptNumbers | None:
    """Return what a model without weights (on torch's meta device) keeps of a row, counted in its own cache after two
    short passes; None if it cannot be passed through without weights.
    """
    # Kernels that multiply by all chosen experts at once take no other type on the meta device.
    half = copy.deepcopy(model).to(torch.bfloat16)
    half.config.pad_token_id = None  # transformers looks for it among tokens, which have no values here
    try:
        short, longer = (_kept(half, tokens) for tokens in (SHORT, LONGER))
    except FAILURES:
        return None
    per_token, state, windows = 0, 0, Counter[int]()
    for (before, _), (after, window) in zip(short, longer, strict=True):
        each = (after - before) // (LONGER - SHORT)
        state += before - each * SHORT
        if window is None:
            per_token += each
        else:
            windows[window] += each
    return KeptNumbers(per_token, tuple(sorted(windows.items())), state)


@torch.no_grad()
def _kept(model: PreTrainedModel, tokens: int) -> list[tuple[int, int | None]]:
    """Return by layer how many numbers are kept of a row of so many tokens, and of how many tokens at most."""
    ids = torch.zeros((1, tokens), dtype=torch.long, device="meta")
    cache = getattr(model.eval()(input_ids=ids, use_cache=True), state_name(model) or STATES[0])
    windows = not stray_window(model.config.get_text_config())
    beside = {name: each for name, each in vars(cache).items() if name != "layers"}
    return [
        (sum(each.numel() for each in _tensors(layer)), _window(layer) if windows else None)
        for layer in (*getattr(cache, "layers", ()), beside)
    ]


def _window(layer: object) -> int | None:
    """Return how many tokens a layer keeps at most; None: all."""
    window = getattr(layer, "sliding_window", None)
    return None if window is None else window - 1


def _tensors(held: object) -> Iterator[Tensor]:
    """Yield the tensors in what a layer holds, but for single numbers."""
    if isinstance(held, Tensor):
        yield from [held] * (held.ndim > 0)
    elif isinstance(held, list | tuple):
        for each in held:
            yield from _tensors(each)
    elif isinstance(held, Mapping):
        yield from _tensors(list(held.values()))
    elif hasattr(held, "__dict__"):
        yield from _tensors(list(vars(held).values()))
