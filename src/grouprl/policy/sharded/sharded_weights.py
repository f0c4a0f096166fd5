"""The weights of a sharded policy as a checkpoint of the model: adapters merged, gathered tensor by tensor."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor, nn

from grouprl.policy.generation import generation_settings
from grouprl.policy.language.causal_lm import save_value_head
from grouprl.policy.lora import base_model
from grouprl.policy.sharded.outline import UNTRAINED, plain_name
from grouprl.policy.sharded.stored_layout import as_stored, stored_layout
from grouprl.storage.model_files import Described, write_model_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Adapted(Protocol):
    """A layer of peft's with low-rank adapters."""

    active_adapters: Sequence[str]
    lora_A: Mapping[str, nn.Module]
    scaling: Mapping[str, float]


class Gathers(Protocol):
    """A model in parts that gathers its parameters."""

    tokenizer: PreTrainedTokenizerBase

    @property
    def model(self) -> PreTrainedModel:
        """This process's part of the model."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this process's part of every trainable parameter."""
        ...

    def gathered(self, names: Iterable[str], name: str = ...) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters one after the other, whole and on the CPU."""
        ...


class GathersPolicy(Gathers, Protocol):
    """A policy in parts that gathers its parameters."""

    @property
    def value_head(self) -> nn.Linear | None:
        """This process's part of the value head."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""
        ...


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint, and the parameters that it is made of: the weight, and A and B of each adapter."""

    name: str
    like: Tensor
    sources: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    """How much the product B·A of each adapter counts."""
    turned: bool = False
    """Whether the layer keeps its weight transposed."""
    value: Tensor | None = field(default=None, compare=False)
    """The tensor itself, if it is a buffer, which every rank has."""

    @property
    def described(self) -> Described:
        """Name, type and shape."""
        return self.name, self.like.dtype, tuple(self.like.shape)

    def made_of(self, parts: list[Tensor]) -> Tensor:
        """Return the tensor made of its sources, with the sums in the order in which a single process merges
        adapters.
        """
        whole = parts[0]
        for scale, a_ri, b_or in zip(self.scales, parts[1::2], parts[2::2], strict=True):
            delta = scale * (b_or @ a_ri)
            whole = whole + (delta.T if self.turned else delta)
        return whole.to(self.like.dtype)


def entries(model: nn.Module, *, merged: bool = True) -> list[StoredTensor]:
    """Return the tensors of a model's checkpoint; tied ones once. If not `merged`: those below the adapters."""
    found: list[StoredTensor] = []
    seen: set[int] = set()
    modules = dict(model.named_modules())
    for owner, module in modules.items():
        around = modules[owner.removesuffix(".base_layer")] if owner.endswith(".base_layer") and merged else None
        for short, parameter in module._parameters.items():
            name = f"{owner}.{short}".removeprefix(".")
            if parameter is None or id(parameter) in seen or "lora_" in name or UNTRAINED in name:
                continue
            seen.add(id(parameter))
            if around is not None and short == "weight":
                found.append(_merged(name, parameter, owner.removesuffix(".base_layer"), cast("Adapted", around)))
            else:
                found.append(StoredTensor(plain_name(name), parameter, (name,)))
        for short, buffer in module._buffers.items():
            if buffer is not None and short not in module._non_persistent_buffers_set:
                found.append(StoredTensor(plain_name(f"{owner}.{short}".removeprefix(".")), buffer, value=buffer))
    return found


def _merged(name: str, weight: Tensor, owner: str, layer: Adapted) -> StoredTensor:
    """Return the entry of a weight with the adapters of the layer around it."""
    active = [each for each in layer.active_adapters if each in layer.lora_A]
    sources = [f"{owner}.lora_{side}.{each}.weight" for each in active for side in "AB"]
    scales = tuple(layer.scaling[each] for each in active)
    return StoredTensor(
        plain_name(name), weight, (name, *sources), scales, bool(getattr(layer, "fan_in_fan_out", False))
    )


def checkpoint_tensors(policy: Gathers, given: list[StoredTensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a checkpoint, whole and on the CPU, one after the other."""
    stream = policy.gathered(name for each in given for name in each.sources)
    for each in given:
        parts = [next(stream)[1] for _ in each.sources]
        yield each.name, each.value.cpu() if each.value is not None else each.made_of(parts)


def save_weights(model: Gathers, folder: Path) -> None:
    """Write the weights of a model, adapters merged, and its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    given, base = entries(model.model), base_model(model.model)
    groups = stored_layout(base, [each.described for each in given])
    tensors = checkpoint_tensors(model, [given[number] for group in groups for number in group.own])
    write_model_files(folder, [each for group in groups for each in group.stored], as_stored(base, groups, tensors))
    config = copy.deepcopy(base.config)
    config.architectures, config.dtype = [type(base).__name__], model.dtype
    config.save_pretrained(folder)


def save_sharded(policy: GathersPolicy, folder: Path, *, adapter_only: bool) -> None:
    """Write an ordinary Hugging Face folder; see `CausalPolicy.save`."""
    if adapter_only:
        folder.mkdir(parents=True, exist_ok=True)
        save_adapters(policy, folder)
    else:
        save_weights(policy, folder)
        generation_settings(policy.model, policy.eos_ids).save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    if policy.value_head is not None:
        names = [name for name, _ in policy.named_parameters() if name.startswith("value_head.")]
        save_value_head({n.removeprefix("value_head."): x for n, x in policy.gathered(names)}, folder)


def save_adapters(policy: Gathers, folder: Path) -> None:
    """Write the adapters alone, as peft does."""
    names = [name for name, _ in policy.model.named_parameters() if "lora_" in name]
    policy.model.save_pretrained(str(folder), state_dict=dict(policy.gathered(names)))
