"""A model without its weights, and where they are read from: ranks are built of it, so that none holds a whole model.

Parameters are on torch's meta device, which keeps shapes alone. Each rank divides them, takes memory for its own
pieces, and copies these out of the files of the model, tensor by tensor: a file is mapped into memory, so that of each
tensor only the rank's own part is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn

from grouprl.policy.language.load import described, load_whole, specials, told_of_model
from grouprl.policy.language.model_checks import check_state
from grouprl.policy.language.template_settings import set_defaults
from grouprl.policy.language.tiny import initial_weights, tiny_config
from grouprl.policy.language.tokenizer_checks import check_vocabulary
from grouprl.policy.lora import add_lora
from grouprl.records.characters import PRINTABLE
from grouprl.storage.model_files import StoredTensors, stored_shapes

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)
UNTRAINED = ".original_module."
"""Part of the names of the weights that peft keeps, as they were, beside those of a layer that is trained whole."""
Weights: TypeAlias = Callable[[], Iterator[tuple[str, Tensor]]]
"""Function that yields every weight once, whole, by its name in the model without adapters."""


@dataclass(frozen=True)
class Outline:
    """A model whose parameters have shapes and no numbers, but for its adapters; its tokenizer; and its weights."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    weights: Weights
    spec: str
    """The name of the model."""


def outline_of(
    spec: str | Path,
    dtype: torch.dtype,
    *,
    lora: Mapping[str, object] | None = None,
    seed: int = 0,
    alphabet: str = PRINTABLE,
    template_settings: Mapping[str, object] | None = None,
    **tiny: int,
) -> Outline:
    """Return the outline of the model that `load_policy` loads by the same arguments.

    Raises:
        InputError: as `load_policy` does.
    """
    from transformers import GenerationConfig

    if str(spec) == "tiny":
        config, tokenizer = tiny_config(alphabet, **tiny)
        model = _without_weights(config, dtype)
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        weights: Weights = partial(initial_weights, shapes, config, seed)
    else:
        path, config, tokenizer = described(spec, tiny)
        with told_of_model(str(spec)):
            model = _without_weights(config, dtype)
            check_state(model, path)
            with suppress(OSError):  # it has no settings of its own
                model.generation_config = GenerationConfig.from_pretrained(path)
        check_vocabulary(tokenizer, model.get_input_embeddings().weight.shape[0], path)
        weights = _weights_of(path, model, dtype)
    specials(tokenizer, model.get_input_embeddings().weight.shape[0], str(spec))
    set_defaults(tokenizer, template_settings or {})
    return Outline(model.eval() if lora is None else adapted(model, lora, seed), tokenizer, weights, str(spec))


def plain_name(name: str) -> str:
    """Return the name that a parameter has in the model without adapters."""
    plain = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
    return plain.replace(".modules_to_save.default.", ".").replace(UNTRAINED, ".")


def _weights_of(path: str, model: PreTrainedModel, dtype: torch.dtype) -> Weights:
    """Return what reads the weights of a model: from its files, where they are stored under the model's own names."""
    wanted = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    return stored_weights(path, wanted) or partial(_whole_first, path, dtype)


def stored_weights(path: str, wanted: Mapping[str, list[int]]) -> StoredTensors | None:
    """Return what reads weights of these names and shapes from a model's files; None if they are stored otherwise."""
    folder = Path(path).expanduser()
    stored = stored_shapes(folder) if folder.is_dir() else {}
    if all(stored.get(name) == shape for name, shape in wanted.items()):
        return StoredTensors(folder)
    log.info("%s is stored under other names: each rank reads it whole once.", path)
    return None


def _whole_first(path: str, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    yield from load_whole(path, dtype).state_dict().items()


def _without_weights(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    with parameters_on_meta():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    return model


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Let modules that are built within this context have parameters on the meta device.

    Buffers (rotary frequencies, say) are computed as always: no file holds them. A parameter is moved as soon as it is
    made, before anything is written to its memory, which the system therefore never provides.
    """
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(
            module, name, None if parameter is None else nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        )

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def adapted(model: PreTrainedModel, lora: Mapping[str, object], seed: int, *, scores: bool = False) -> PreTrainedModel:
    """Return the model with fresh adapters, which have numbers: those of the model of a single process.

    peft puts adapters on the device of the weights below them, so these are tensors of one number, repeated, meanwhile.
    """
    _exchange(model, lambda each: torch.empty((), dtype=each.dtype).expand(each.shape))
    wrapped = add_lora(model, lora, seed, scores=scores)
    below = {id(parameter) for name, parameter in wrapped.named_parameters() if "lora_" not in name}
    _exchange(wrapped, lambda each: each.to("meta") if id(each) in below else each)
    return wrapped.eval()


def _exchange(model: nn.Module, new: Callable[[nn.Parameter], Tensor]) -> None:
    """Put the result of `new` in place of each parameter; tied ones stay tied."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if parameter not in made:
                    made[parameter] = nn.Parameter(new(parameter), parameter.requires_grad)
                module._parameters[name] = made[parameter]
