"""Checks that a model can be trained and decoded: of its configuration, its classes and the headers of its files."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.policy.lora import base_model
from grouprl.storage.model_files import stored_shapes

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel

STATES = ("past_key_values", "cache_params", "cache")
"""Names under which a model's forward takes and returns its state of earlier tokens; transformers has called all of
them `cache` since 5.24.
"""


SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size"),
    *("n_layer", "n_embd", "n_head"),
)
"""Names under which a config.json states numbers that are at least 1."""
MOST_LAYERS = 10_000
"""The largest number of layers of a model; one with more could not even be counted in a sensible time."""


def check_config(config: PretrainedConfig, spec: str) -> None:
    """Check that a configuration is that of a causal language model.

    Raises:
        InputError: the model is an encoder, or an encoder with a decoder.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    remedy = "Take a causal language model (GPT-2, Llama, Qwen, Mistral …)"
    if getattr(config, "is_encoder_decoder", False):
        rule = "completions must follow their prompts in one decoder; this model reads prompts with an encoder"
        raise InputError(f"{spec} is of type {config.model_type}", rule, remedy)
    causal = getattr(config, "is_decoder", False) or getattr(config, "causal", False)
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not causal:
        rule = "each of its tokens attends to later ones, so that it has no log-probs of a completion token by token"
        raise InputError(f"{spec} is of type {config.model_type}", rule, remedy)


def check_state(model: Module, spec: str) -> None:
    """Check that a model can decode token by token.

    Raises:
        InputError: its forward pass returns no state.
    """
    core = base_model(model)
    if state_name(core) is None:
        rule = f"sampling decodes token by token, and its forward pass takes neither {' nor '.join(STATES)}"
        raise InputError(f"{spec} is a {type(core).__name__}", rule)


def check_whole(folder: Path) -> None:
    """Check that a folder holds a model, and not adapters alone, and that its config.json states sizes of a model.

    Raises:
        InputError: it has no config.json, or that states a size that no model has.
    """
    if (folder / "config.json").is_file():
        check_sizes(folder / "config.json")
        return
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{folder} holds adapters of peft alone",
            "a model is read whole; model.lora puts new adapters on it",
            "Load it with peft's AutoPeftModelForCausalLM, and save merge_and_unload() and the tokenizer",
        )
    raise InputError(
        f"{folder} has no config.json",
        "a model folder holds config.json, weights and a tokenizer",
        "Give the folder that save_pretrained wrote",
    )


def check_sizes(file: Path) -> None:
    """Check each size that a config.json states as one number.

    Raises:
        InputError: one of them is not a whole number, or less than 1, or there are too many layers.
    """
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # transformers says what is wrong with the file
        return
    parts = [stated, stated.get("text_config")] if isinstance(stated, dict) else []
    for part in parts:
        if isinstance(part, dict):
            for name in SIZES:
                _check_size(file, name, part.get(name))


def _check_size(file: Path, name: str, value: object) -> None:
    """Check one size of a config.json; it may be left to the model's class, or state one number for each layer."""
    if value is None or isinstance(value, list):
        return
    most = MOST_LAYERS if name in ("num_hidden_layers", "n_layer") else None
    if isinstance(value, int) and value >= 1 and (most is None or value <= most):
        return
    rule = "it must be a whole number from 1" if most is None else f"there must be 1 to {most:,}"
    raise InputError(f"{file} has {name}: {json.dumps(value)}", rule, "Copy the config.json of the model")


def check_files(folder: Path) -> None:
    """Check that the weights in a folder are complete, by the headers of their files.

    Raises:
        InputError: a file is truncated or damaged; the message names it.
    """
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            rule = f"its header does not fit its {path.stat().st_size:,} bytes ({error})"
            raise InputError(f"{path} is truncated or damaged", rule, "Copy or download it again") from error


def check_tensors(folder: Path, model: Module) -> None:
    """Check that a folder holds the weights that its configuration describes, by the headers of its files.

    Raises:
        InputError: no weights, a missing file, tensors of a different shape, or missing tensors.
    """
    check_present(folder)
    if getattr(getattr(model, "config", None), "quantization_config", None) is not None:
        return  # quantised weights are stored in other shapes
    stored = stored_shapes(folder)
    wanted = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    for name, shape in stored.items():
        if name in wanted and wanted[name] != shape:
            rule = f"its config.json describes {name} as {wanted[name]}, but its weights hold {shape}"
            raise InputError(f"The model {folder} does not fit its configuration", rule, FIT)
    if stored and stored.keys() <= wanted.keys():  # otherwise they are renamed while being loaded
        check_missing([name for name, _ in model.named_parameters() if name not in stored], str(folder))


FIT = "Copy the config.json that belongs to these weights, or the other way round"


def has_no_weights(folder: Path) -> bool:
    """Return whether a folder holds no file of weights, and no index of such files."""
    kinds = ("*.safetensors", "pytorch_model*.bin", "*.index.json")
    return not any(found for kind in kinds for found in folder.glob(kind))


def check_present(folder: Path) -> None:
    """Check that a folder holds weights, and every file that their index names.

    Raises:
        InputError: something is missing; the message names it.
    """
    rule = "a model folder needs config.json, weights and a tokenizer"
    if has_no_weights(folder):
        raise InputError(f"{folder} has no weights", rule, "Give the folder that save_pretrained wrote")
    index = folder / "model.safetensors.index.json"
    if index.is_file() and not (folder / "model.safetensors").is_file():
        try:
            named = sorted({str(name) for name in json.loads(index.read_text())["weight_map"].values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{index} is damaged", "it says which file holds which tensor", "Copy it again") from error
        missing = [name for name in named if not (folder / name).is_file()]
        if missing:
            raise InputError(f"{folder} lacks {', '.join(missing)}", f"{index.name} names it", "Copy it, too")


def check_missing(names: Sequence[str], spec: str) -> None:
    """Check that no weights of a model are missing: they would be initialised at random.

    Raises:
        InputError: weights are missing; the message names the first few.
    """
    if names:
        some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        rule = f"its weights lack {some}, which would be random numbers"
        raise InputError(f"The model {spec} does not fit its configuration", rule, FIT)


def accepts(model: PreTrainedModel, argument: str) -> bool:
    """Return whether the model's forward has a parameter named `argument`."""
    return argument in inspect.signature(model.forward).parameters


def state_name(model: PreTrainedModel) -> str | None:
    """Return the name under which the model's forward takes its state of earlier tokens; None if it takes none.

    A `cache` that is a plain dictionary, as in models from before transformers' own caches, is none.
    """
    parameters = inspect.signature(model.forward).parameters
    named = (name for name in STATES if name in parameters)
    return next((name for name in named if name != "cache" or "Cache" in str(parameters[name].annotation)), None)


def state_kinds(model: PreTrainedModel) -> list[str]:
    """Return the classes of the states that transformers keeps for a model's layers, without repetition."""
    from transformers.cache_utils import DynamicCache

    return sorted({type(layer).__name__ for layer in DynamicCache(config=model.config).layers})


ORIGINAL = "original_max_position_embeddings"
WINDOW = "sliding_window"
STRETCHED = ("dynamic", "longrope")
"""Rotary embeddings that change for all tokens of a pass as soon as one lies beyond the original positions."""


def positions_of(config: PretrainedConfig) -> int | None:
    """Return how many positions a text configuration has room for; None if there is no limit.

    Only the original positions count where a longer row rotates even its first tokens differently: a token's log-prob
    would depend on the rows beside it, and differ between sampling and training.
    """
    found = [getattr(config, "max_position_embeddings", None)]
    for each in _rotations(config):
        if each.get("rope_type", each.get("type")) in STRETCHED:
            found += [each.get(ORIGINAL), getattr(config, ORIGINAL, None)]
    return min((number for number in found if isinstance(number, int)), default=None)


def stretched_rotation(config: PretrainedConfig) -> str | None:
    """Return the kind of a model's rotary embeddings that depend on the length of the whole row; None if none do."""
    kinds = [each.get("rope_type", each.get("type")) for each in _rotations(config)]
    return next((kind for kind in STRETCHED if kind in kinds), None)


def _rotations(config: PretrainedConfig) -> Iterator[Mapping[str, object]]:
    """Yield the parameters of rotary embeddings, of the model or of each kind of its layers."""
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    yield found
    yield from (each for each in found.values() if isinstance(each, Mapping))


def stray_window(config: PretrainedConfig) -> bool:
    """Return whether a text configuration states a sliding window that its kind of model does not have.

    transformers makes caches by what is stated, and the model attends to what they have dropped.
    """
    kind, stated = type(config), getattr(config, WINDOW, None) is not None
    return stated and not hasattr(kind, WINDOW) and WINDOW not in inspect.signature(kind.__init__).parameters
