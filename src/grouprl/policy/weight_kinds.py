"""The kinds of weights of a model that a user knows: embeddings, attention, MLP, norms, head, adapters, value head."""

from __future__ import annotations

import re

KINDS = {
    "adapters": r"lora_|modules_to_save",
    "value_head": r"value_head",
    "norms": r"norm|(^|\.)ln(_\w+)?\.",
    "embeddings": r"embed|(^|\.)w[tp]e\.",
    "attention": r"attn|attention",
    "mlp": r"mlp|ffn|feed_?forward|experts|(^|\.)fc\d",
    "head": r"lm_head|(^|\.)score\.",
}
"""A pattern for names of each kind. The first that is found counts: `self_attn.q_norm` is a norm."""
OTHER = "other"
"""The kind of weights whose names match no pattern."""


def weight_kind(name: str) -> str:
    """Return the kind of the weight with this name."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), OTHER)
