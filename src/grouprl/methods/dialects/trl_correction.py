"""TRL's corrections for a sampler that differs from the trainer, by their settings there."""

from __future__ import annotations

import math
from typing import Literal

from grouprl.algorithms.method import Method
from grouprl.algorithms.token_weight.importance import MaskedImportance, TruncatedImportance
from grouprl.core.numbers import NonNegative, Positive

Mode = Literal["sequence_mask", "sequence_truncate", "token_mask", "token_truncate"]
OfToken = Literal["token_mask", "token_truncate"]
SOURCES = {
    "vllm_importance_sampling_correction": "GRPOConfig has True, which acts with use_vllm alone, which is False there",
    "vllm_importance_sampling_mode": "GRPOConfig.vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_max": "GRPOConfig.vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min": "GRPOConfig.vllm_importance_sampling_clip_min: none",
}
"""Origins of the defaults of TRL's settings."""


def corrected_as_in_trl(
    method: Method,
    *,
    vllm_importance_sampling_correction: bool = False,
    vllm_importance_sampling_mode: Mode = "sequence_mask",
    vllm_importance_sampling_clip_max: Positive | None = 3.0,
    vllm_importance_sampling_clip_min: NonNegative | None = None,
) -> Method:
    """Add TRL's weights of the ratio of trainer to sampler."""
    if not vllm_importance_sampling_correction:
        return method
    low, high = vllm_importance_sampling_clip_min, vllm_importance_sampling_clip_max
    level: Literal["token", "sequence_sum"]
    level = "token" if vllm_importance_sampling_mode.startswith("token") else "sequence_sum"
    top = math.inf if high is None else high
    weight: TruncatedImportance | MaskedImportance
    if vllm_importance_sampling_mode.endswith("mask"):
        weight = MaskedImportance(low=low or 0.0, high=top, level=level)
    else:
        weight = TruncatedImportance(low=low, high=top, level=level)
    return method.with_parts(token_weight=(*method.token_weight, weight))
