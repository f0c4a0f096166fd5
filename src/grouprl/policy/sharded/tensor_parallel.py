"""Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053) by the plan that transformers provides for a model."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from grouprl.core.errors import InputError
from grouprl.policy.engine import Head
from grouprl.policy.layer_sizes import largest
from grouprl.policy.lora import is_adapted

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAKER = "transformers.distributed.tensor_parallel"
"""The module that shards matrices into distributed tensors by a plan."""


def cut_matrices(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Shard the matrices that the model's plan names, in place, over the ranks of `mesh`.

    Raises:
        InputError: the model has no plan, or its sizes are not divisible by the number of ranks.
    """
    obstacle = why_not_cut(model, mesh.size())
    if obstacle is not None:
        raise InputError(
            f"model.tensor_parallel = {mesh.size()}: {obstacle}",
            "",
            "Set it to 1: ranks then divide only rows and weights",
        )
    maker = _maker()
    assert maker is not None
    maker.apply_tensor_parallelism(model, mesh, dict(_named(model, model.tp_plan)))
    model.tie_weights()


def why_not_cut(model: PreTrainedModel, count: int) -> str | None:
    """Return why a model's matrices cannot be sharded over `count` ranks; None if they can."""
    kind = type(model).__name__
    if is_adapted(model):
        return "transformers has plans only for models without adapters"
    if _maker() is None:
        return "this version of transformers has no plans for distributed tensors"
    if not getattr(model, "tp_plan", None):
        return f"transformers has no plan for {kind}"
    sizes = model.config.get_text_config()
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        number = largest(sizes, name) or count
        if number % count:
            return f"{kind} has {name} = {number}, which is not a multiple of it"
    return None


def _maker() -> ModuleType | None:
    try:
        found = importlib.import_module(MAKER)
    except ImportError:
        return None
    return found if hasattr(found, "apply_tensor_parallelism") else None


def _named(model: PreTrainedModel, plan: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each parameter and module that the plan names (`*`: any number) with its style, parameters first."""
    parameters = {name for name, _ in model.named_parameters()}  # only the first of tied weights
    for name, module in model.named_modules():
        style = plan.get(_wild(name))
        for own, _ in module.named_parameters(recurse=False):
            chosen = plan.get(_wild(f"{name}.{own}"), style)
            if chosen is not None and f"{name}.{own}" in parameters:
                yield f"{name}.{own}", chosen
        if style is not None:
            yield name, style


def _wild(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def gathered(head: Head) -> Head:
    """Return the output layer, gathered from all ranks, since log-probs need every logit."""
    bias_v = None if head.bias_v is None else _together(head.bias_v)
    return replace(head, weight_vd=_together(head.weight_vd), bias_v=bias_v)


def _together(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor
    whole: Tensor = tensor.full_tensor()
    return whole
