"""Loading a policy: a tiny one built on the spot, a local folder, a GGUF file, or a Hub id."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from grouprl.core.errors import GrouprlError, InputError
from grouprl.policy.devices import device_name, dtype_name
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.gguf import as_folder
from grouprl.policy.language.hub import check_on_hub
from grouprl.policy.language.model_checks import (
    check_config,
    check_files,
    check_missing,
    check_state,
    check_tensors,
    check_whole,
)
from grouprl.policy.language.template_settings import set_defaults
from grouprl.policy.language.tiny import build_tiny
from grouprl.policy.language.tokenizer_checks import check_finite, check_tokenizer_files, check_vocabulary
from grouprl.policy.lora import add_lora
from grouprl.policy.passes import AUTO, PassSettings
from grouprl.records.characters import PRINTABLE
from grouprl.storage.pickles import refusal

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

FAILURES = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
    StrictDataclassError,
    UnpicklingError,
    SafetensorError,
)
"""Errors of transformers about a model's files."""


def load_policy(
    spec: str | Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    precision: str = "float32",
    lora: Mapping[str, object] | None = None,
    temperature: float = 1.0,
    engine: str = "auto",
    passes: PassSettings = AUTO,
    value_head: bool = False,
    token_budget: int | None = None,
    alphabet: str = PRINTABLE,
    seed: int = 0,
    template_settings: Mapping[str, object] | None = None,
    **tiny: int,
) -> CausalPolicy:
    """Load the policy named by `spec`.

    Args:
        spec: "tiny" (built from `alphabet`, `seed` and the sizes of `build_tiny`), a local folder, a GGUF file (extra
            `gguf`), or a Hub id.
        device: "auto" is CUDA where there is one, else the CPU.
        dtype: "auto" is float32 on the CPU and for the tiny model, else bfloat16 if the GPU has it; such weights lose
            updates much smaller than 1/256 of a weight; a run's optimiser therefore steps float32 copies of them
            (`grouprl.policy.master_weights`).
        precision: precision of products, see `CausalPolicy`; "mixed" makes `dtype: auto` float32.
        lora: train adapters only: any of r, alpha, dropout, target_modules (see `add_lora`); None trains everything.
        temperature: temperature of the policy's log-probs.
        engine: see `CausalPolicy`.
        passes: see `CausalPolicy`.
        value_head: see `CausalPolicy`.
        token_budget: see `CausalPolicy`.
        alphabet: characters of the tiny model's tokenizer.
        seed: seed of the initial weights of the tiny model and of the adapters.
        template_settings: values of the chat template's variables (`model.chat_template_kwargs`).
        tiny: sizes of the tiny model (hidden, layers, heads, kv_heads, intermediate, max_positions).

    Raises:
        InputError: an unknown dtype or device, a folder or file that is not a model, a tokenizer without an end token,
            tiny sizes for another model.
        MissingExtra: a GGUF file without the extra `gguf`, adapters without the extra `lora`.
    """
    place = resolve_device(device)
    kind = resolve_dtype(dtype, place, precision, pretrained=str(spec) != "tiny")
    if str(spec) == "tiny":
        model, tokenizer = build_tiny(alphabet, seed=seed, **tiny)
        model = model.to(kind)
    else:
        path, _, tokenizer = described(spec, tiny)
        model = load_whole(path, kind)
        check_vocabulary(tokenizer, model.get_input_embeddings().weight.shape[0], path)
    specials(tokenizer, model.get_input_embeddings().weight.shape[0], str(spec))
    set_defaults(tokenizer, template_settings or {})
    model = model.to(place)
    policy = CausalPolicy(
        model if lora is None else add_lora(model, lora, seed),
        tokenizer,
        temperature=temperature,
        engine=engine,
        passes=passes,
        value_head=value_head,
        token_budget=token_budget,
        precision=precision,
    )
    policy.load_value_head(Path(spec))
    return policy


def resolve_device(device: str) -> torch.device:
    """Return the device meant by "auto", "cpu", "cuda", "cuda:1" ..."""
    return torch.device(device_name(device))


def resolve_dtype(
    dtype: str, device: torch.device, precision: str = "float32", *, pretrained: bool = True
) -> torch.dtype:
    """Return the torch type of weights meant by `dtype` on `device`, see `dtype_name`."""
    found: torch.dtype = getattr(torch, dtype_name(dtype, device.type, precision, pretrained=pretrained))
    return found


def described(spec: str | Path, tiny: Mapping[str, object]) -> tuple[str, PretrainedConfig, PreTrainedTokenizerBase]:
    """Return the place of a pretrained model, its configuration and its tokenizer, all checked without its weights.

    Raises:
        InputError: see `load_policy`.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    if tiny:
        rule = "Sizes can be set only for the tiny model"
        raise InputError(f"{sorted(tiny)} given for {spec}", rule, "Remove them")
    path = as_folder(spec)
    folder = Path(path).expanduser()
    if folder.is_dir():
        check_whole(folder)
        path = str(folder)
    else:
        check_on_hub(path)
    with told_of_model(path):
        config = AutoConfig.from_pretrained(path)
        check_config(config, path)
        if folder.is_dir():
            check_files(folder)
            check_tokenizer_files(folder)
            with torch.device("meta"):
                check_tensors(folder, AutoModelForCausalLM.from_config(config))
        return path, config, AutoTokenizer.from_pretrained(path)


def load_whole(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """Load all weights of a model that `described` has checked. Raises InputError as `load_policy` does."""
    from transformers import AutoModelForCausalLM

    with told_of_model(path):
        model, told = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, output_loading_info=True)
        check_missing(sorted(told["missing_keys"]), path)
        check_state(model, path)
        check_finite(model, path)
    found: PreTrainedModel = model
    return found


@contextmanager
def told_of_model(spec: str) -> Iterator[None]:
    """Turn errors of transformers about a model's files into an InputError."""
    try:
        yield
    except (GrouprlError, torch.OutOfMemoryError):
        raise
    except FAILURES as error:
        raise InputError(
            f"The model {spec} could not be loaded: {said_of(error)}", "", "Check the name and the folder"
        ) from error


def said_of(error: Exception) -> str:
    """Return what an error of loading says, in words for files that may not be unpickled and for missing keys."""
    if isinstance(error, KeyError):
        return f"transformers found nothing by the name {error}"
    return refusal(error) if isinstance(error, UnpicklingError) or "weights_only" in str(error) else str(error)


def specials(tokenizer: PreTrainedTokenizerBase, rows: int, spec: str) -> None:
    """Give a tokenizer a padding token that is among the `rows` embeddings of the model.

    Raises:
        InputError: it has no end token.
    """
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"The tokenizer of {spec} has no end-of-sequence token",
            "A completion ends with this token; without it every completion would be cut off",
            "Set eos_token in tokenizer_config.json",
        )
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= rows:
        log.info(
            "The tokenizer of %s has no padding token of the model's; its end token %r stands in.",
            spec,
            tokenizer.eos_token,
        )
        tokenizer.pad_token = tokenizer.eos_token
