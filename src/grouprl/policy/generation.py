"""Settings with which transformers' `generate` samples from a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

KEPT = ("bos_token_id", "pad_token_id", "do_sample", "temperature", "top_p", "top_k")


def end_tokens(model: PreTrainedModel | None, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the tokens that end a completion: that of the tokenizer first, then those of the generation settings."""
    config = getattr(model, "generation_config", None)
    stated = getattr(config, "eos_token_id", None)
    listed = stated if isinstance(stated, list) else [stated]
    return tuple(dict.fromkeys(int(i) for i in [tokenizer.eos_token_id, *listed] if i is not None))


def generation_settings(model: PreTrainedModel, eos_ids: Sequence[int]) -> GenerationConfig:
    """Return how `generate` samples from a trained model: every end token, and no penalties or forced tokens.

    Training sampled completions without penalties or forced tokens, so with them `generate` would produce other
    completions.
    """
    from transformers import GenerationConfig

    old = getattr(model, "generation_config", None)
    kept = {name: getattr(old, name, None) for name in KEPT}
    ends = eos_ids[0] if len(eos_ids) == 1 else list(eos_ids)
    return GenerationConfig(eos_token_id=ends, **{name: value for name, value in kept.items() if value is not None})
