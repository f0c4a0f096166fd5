"""The likeliest tokens in the place of each sampled one, by a forward pass over what was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from grouprl.policy import Tokens
from grouprl.policy.logprobs import log_softmax_of

Alternatives = list[list[tuple[int, float]]]
"""[T] for each token the likeliest ones in its place with their log-probs, the likeliest first."""


@torch.no_grad()
def alternatives(
    policy: Any, prompt_ids: Sequence[int], ids: Sequence[int], temperature: float, k: int
) -> Alternatives:
    """Return the `k` likeliest tokens in the place of each of `ids`, at `temperature` and before top-p."""
    found: Alternatives = []
    for _, readout in policy.readouts(Tokens.of([list(prompt_ids)], [list(ids)])):
        for _, logits_cv in readout.chunks():
            best = log_softmax_of(logits_cv, temperature).topk(min(k, logits_cv.shape[1]))
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            found += [list(zip(tokens, logps, strict=True)) for tokens, logps in pairs]
    return found
