"""Whether a model can be trained and decoded here: by its configuration, its classes and the heads of its files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.policy.engine import accepts
from grouprl.policy.lean import base_model

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PretrainedConfig

STATES = ("past_key_values", "cache_params")
"""Names under which a forward pass passes on its state of earlier tokens."""


def check_config(config: PretrainedConfig, spec: str) -> None:
    """Check that a configuration is that of a causal language model.

    Raises:
        InputError: an encoder, or an encoder with a decoder.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    remedy = "Take a causal language model (GPT-2, Llama, Qwen, Mistral …)"
    if getattr(config, "is_encoder_decoder", False):
        rule = "completions follow their prompts in one decoder; this one reads prompts with an encoder"
        raise InputError(f"{spec} is of type {config.model_type}", rule, remedy)
    causal = getattr(config, "is_decoder", False) or getattr(config, "causal", False)
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not causal:
        rule = "each of its tokens attends to later ones, so that it has no log-probs of a completion token by token"
        raise InputError(f"{spec} is of type {config.model_type}", rule, remedy)


def check_state(model: Module, spec: str) -> None:
    """Check that a model can decode token by token.

    Raises:
        InputError: its forward pass passes no state on.
    """
    core = base_model(model)
    if not any(accepts(core, name) for name in STATES):
        rule = f"sampling decodes token by token, and its forward pass takes neither {' nor '.join(STATES)}"
        raise InputError(f"{spec} is a {type(core).__name__}", rule)


def check_files(folder: Path) -> None:
    """Check that the weights in a folder are whole, by the heads of their files.

    Raises:
        InputError: naming a file that is cut off or damaged.
    """
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            rule = f"its head does not fit its {path.stat().st_size:,} bytes ({error})"
            raise InputError(f"{path} is cut off or damaged", rule, "Copy or download it again") from error
