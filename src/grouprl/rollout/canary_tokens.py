"""The canary: fixed sequences whose log-probs are compared between sampler and trainer after every exchange of
weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy

ROWS, PROMPT, RESPONSE = 4, 4, 12
ROUNDING = {"float64": 1e-6, "float32": 1e-3}
"""Largest difference in nats between forced decoding and one pass over the whole sequence, by type of weights."""
HALF_ROUNDING = 0.5
"""Largest difference in nats for 16-bit weights or products."""


def canary_tokens(policy: CausalPolicy) -> Tokens:
    """Return sequences of random tokens, the same for all policies with equal vocabulary size and number of
    positions.
    """
    size, positions = policy.model.config.get_text_config().vocab_size, policy.max_positions or PROMPT + RESPONSE
    length = max(2, min(PROMPT + RESPONSE, positions))
    ids = np.random.default_rng(0).integers(0, size, (ROWS, length)).tolist()
    cut = max(1, min(PROMPT, length // 2))
    return Tokens.of([row[:cut] for row in ids], [row[cut:] for row in ids])
