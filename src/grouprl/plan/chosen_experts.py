"""Mixtures of experts: how much of a model a token passes through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grouprl.policy.layer_sizes import largest

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names that configurations have for the number of a layer's experts."""
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
"""Names that configurations have for the number of experts that a token passes through."""


@dataclass(frozen=True)
class Experts:
    """The experts of a model; of one without any, nothing is idle."""

    idle: int = 0
    """Numbers in experts that a token does not pass through."""
    share: float = 1.0
    """Share of a layer's experts that a token passes through."""


DENSE = Experts()
"""The experts of a model without any."""


def experts_of(model: PreTrainedModel) -> Experts:
    """Return the experts of a model, which may have no weights: the parameters below a module called `experts`."""
    text = model.config.get_text_config()
    count, chosen = _first(text, COUNTS), _first(text, CHOSEN)
    if not 0 < chosen < count:
        return DENSE
    numbers = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    return Experts(round(numbers * (1 - chosen / count)), chosen / count)


def inner_width(text: PretrainedConfig) -> int:
    """Return the width of the inner layer that a token passes through: of a mixture, of all its experts together."""
    dense = largest(text, "intermediate_size") or 4 * text.hidden_size
    chosen = _first(text, CHOSEN)
    if not 0 < chosen < _first(text, COUNTS):
        return int(dense)
    each = getattr(text, "moe_intermediate_size", None) or dense
    shared = getattr(text, "shared_expert_intermediate_size", None)
    shared = each * (getattr(text, "n_shared_experts", None) or 0) if shared is None else shared
    return int(chosen * each + shared)


def _first(text: PretrainedConfig, names: tuple[str, ...]) -> int:
    """Return the first of these settings that is a number, 0 if none is."""
    return next((found for name in names if isinstance(found := getattr(text, name, None), int)), 0)
