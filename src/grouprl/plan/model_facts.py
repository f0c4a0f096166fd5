"""The sizes of a run's model before it is loaded: only configurations and tokenizers are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from grouprl.config.sections import Lora
from grouprl.core.errors import InputError
from grouprl.orchestrator.agents import model_names
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.plan.chosen_experts import DENSE, Experts, experts_of, inner_width
from grouprl.plan.kept_numbers import KeptNumbers, keys_of_layers
from grouprl.policy.devices import BYTES, device_name
from grouprl.policy.kinds import policy_kind
from grouprl.policy.language.gguf import as_folder
from grouprl.policy.language.model_checks import (
    check_config,
    check_files,
    check_state,
    check_tensors,
    check_whole,
    has_no_weights,
    positions_of,
)
from grouprl.policy.language.template_settings import set_defaults
from grouprl.policy.language.tiny import CountedCharacters, build_tiny, tiny_parameters
from grouprl.policy.language.tokenizer_checks import check_finite_files, check_tokenizer_files, check_vocabulary
from grouprl.policy.layer_sizes import sizes_of
from grouprl.policy.lora import adapted_layers, check_targets
from grouprl.records.characters import PRINTABLE

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of a model. `kv_width` is key heads times head dimension; `positions` is None if there is no limit."""

    parameters: int
    trainable: int
    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    vocabulary: int
    positions: int | None
    dtype: str
    bytes_each: int
    device: str
    lean: str = ""
    """Reason why the lean engine cannot run this model; "" if it can."""
    tied: bool = True
    """Whether the output layer is the embedding."""
    experts: Experts = DENSE
    """Its experts."""
    cache: KeptNumbers | None = None
    """Numbers that sampling keeps of a row; None: keys and values of every layer."""

    @property
    def kept(self) -> KeptNumbers:
        """Numbers that sampling keeps of a row."""
        return self.cache or keys_of_layers(self.layers, self.kv_width)

    def with_heads(self, count: int) -> ModelFacts:
        """Return the sizes of the same trunk with `count` output layers, none of which is the embedding."""
        more = self.vocabulary * self.hidden * (count if self.tied else count - 1)
        return replace(self, parameters=self.parameters + more, trainable=self.trainable + more, tied=False)


def read_model(run: ResolvedRun, *, described: bool = False) -> tuple[ModelFacts | None, object]:
    """Return the sizes of the configured model and its tokenizer, without its weights.

    A folder must hold weights that fit, unless it is enough that the model is `described`: then it may hold none.

    (None, None) for a Hub id that is not on this machine, and for a policy that is not a language model.

    Raises:
        InputError: the folder does not exist or is not a model.
    """
    config = run.config
    if policy_kind(config.model.name) is not None:
        return None, None
    facts, tokenizer = _read(run, run.dtype, described)
    if tokenizer is not None:
        set_defaults(cast("PreTrainedTokenizerBase", tokenizer), config.model.chat_template_kwargs)
    return facts, tokenizer


@dataclass(frozen=True)
class ReferenceFacts:
    """Sizes of a frozen reference that a run keeps; `parameters` is 0 if it is the policy without its adapters."""

    parameters: int
    layers: int
    embedding: int
    """Numbers of the embedding."""
    tied: bool


def read_reference(run: ResolvedRun, model: ModelFacts, *, described: bool = False) -> ReferenceFacts | None:
    """Return the sizes of a run's frozen reference, None without one: `model`'s, or those of a teacher, whose folder
    may hold no weights if it is enough that it is `described`.

    Raises:
        InputError: the folder that `model.reference` names does not exist or is not a model.
    """
    if not run.needs_reference:
        return None
    found = None if len(run.guides) != 1 else _read_pretrained(next(iter(run.guides)), described)
    if found is None:
        count = 0 if _below_adapters(run) else model.parameters
        return ReferenceFacts(count, model.layers, model.vocabulary * model.hidden, model.tied)
    teacher = cast("PreTrainedModel", found[0])
    text = teacher.config.get_text_config()
    return ReferenceFacts(
        sum(p.numel() for p in teacher.parameters()),
        text.num_hidden_layers,
        text.vocab_size * text.hidden_size,
        bool(getattr(text, "tie_word_embeddings", True)),
    )


def _below_adapters(run: ResolvedRun) -> bool:
    """Return whether the reference is the model below new adapters for the whole run, which costs no memory."""
    renews = run.method.buffer is not None or bool(run.method.pretrain)
    return run.config.model.lora is not None and not run.config.warmup.steps and not run.guides and not renews


def _read(run: ResolvedRun, dtype: str, described: bool) -> tuple[ModelFacts | None, object]:
    config = run.config
    names = list(model_names(config, run.task).values())
    if len(names) > 1 and config.model.agents == "heads":
        facts, tokenizer = _sizes(run, names[:1], dtype, described)
        return None if facts is None else facts.with_heads(len(names)), tokenizer
    return _sizes(run, names, dtype, described)


def _sizes(run: ResolvedRun, names: Sequence[str], dtype: str, described: bool) -> tuple[ModelFacts | None, object]:
    """Return the sizes of the models `names` together, and the tokenizer of the first."""
    config = run.config
    if set(names) == {"tiny"} and config.model.lora is None:
        return _tiny(run, len(names), dtype)
    models = []
    for name in names:
        if name == "tiny":
            models.append(build_tiny(run.alphabet or PRINTABLE, **config.model.tiny.model_dump()))
        elif (found := _read_pretrained(name, described)) is not None:
            models.append(found)
        else:
            return None, None
    model, tokenizer = models[0]
    from grouprl.plan.cache_layout import cache_layout
    from grouprl.policy.fast_forward.forward import why_not_lean

    text = model.config.get_text_config()
    layers, hidden, _, kv_width = sizes_of(text)
    parameters = sum(p.numel() for each, _ in models for p in each.parameters())
    lora = config.model.lora
    if lora is not None:
        for each, _ in models:
            check_targets(each, lora.target_modules)
    facts = ModelFacts(
        parameters=parameters,
        trainable=parameters
        if lora is None
        else sum(_adapter_parameters(each, lora, run.scores) for each, _ in models),
        layers=layers,
        hidden=hidden,
        intermediate=inner_width(text),
        kv_width=kv_width,
        vocabulary=text.vocab_size,
        positions=positions_of(text),
        dtype=dtype,
        bytes_each=BYTES[dtype],
        device=device_name(config.model.device),
        lean=why_not_lean(model) or "",
        tied=bool(getattr(text, "tie_word_embeddings", True)),
        experts=experts_of(model),
        cache=cache_layout(model),
    )
    return facts, tokenizer


def _tiny(run: ResolvedRun, count: int, dtype: str) -> tuple[ModelFacts, object]:
    """Return the sizes of `count` tiny models and their tokenizer; building them would load transformers."""
    shape = run.config.model.tiny
    tokenizer = CountedCharacters(run.alphabet or PRINTABLE, max_positions=shape.max_positions)
    heads = shape.heads
    parameters = count * tiny_parameters(len(tokenizer), **shape.model_dump(exclude={"max_positions"}))
    facts = ModelFacts(
        parameters=parameters,
        trainable=parameters,
        layers=shape.layers,
        hidden=shape.hidden,
        intermediate=shape.intermediate,
        kv_width=(shape.kv_heads or heads) * (shape.hidden // heads),
        vocabulary=len(tokenizer),
        positions=shape.max_positions,
        dtype=dtype,
        bytes_each=BYTES[dtype],
        device=device_name(run.config.model.device),
    )
    return facts, tokenizer


def _read_pretrained(name: str, described: bool) -> tuple[object, object] | None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from grouprl.policy.language.load import FAILURES, said_of

    folder = Path(as_folder(name)).expanduser()
    if not folder.is_dir() and (folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1):
        raise InputError(
            f"The folder {name} does not exist", "a model is 'tiny', a folder or a Hub id", "Check the path"
        )
    where = str(folder) if folder.is_dir() else name
    if folder.is_dir():
        check_whole(folder)
        check_tokenizer_files(folder)
    try:
        stored = AutoConfig.from_pretrained(where, local_files_only=True)
        check_config(stored, name)
        tokenizer = AutoTokenizer.from_pretrained(where, local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(stored)
    except InputError:
        raise
    except FAILURES as error:
        if folder.is_dir():
            raise InputError(f"The model {name} cannot be read: {said_of(error)}") from error
        return None
    if folder.is_dir() and not (described and has_no_weights(folder)):
        check_files(folder)
        check_tensors(folder, model)
        check_finite_files(folder)
    check_state(model, name)
    check_vocabulary(tokenizer, model.get_input_embeddings().weight.shape[0], name)
    if tokenizer.eos_token_id is None:
        rule = "a completion ends with one; without it every completion would be cut off"
        raise InputError(f"The tokenizer of {name} has no end-of-sequence token", rule, "Set eos_token")
    return model, tokenizer


def _adapter_parameters(model: PreTrainedModel, lora: Lora, scores: bool) -> int:
    """Count the parameters of low-rank adapters, r * (in + out) for each adapted linear layer, and of a reward model's
    head.
    """
    trained_whole = model.config.get_text_config().hidden_size if scores else 0
    adapted = (model.get_submodule(name) for name in adapted_layers(model, lora.target_modules))
    return trained_whole + sum(lora.r * sum(module.weight.shape) for module in adapted)
