"""Low-rank adapters (Hu et al. 2021) by peft: wrapping a model, and reading a layer's weight with its adapters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from grouprl.core.errors import InputError, MissingExtra, suggest

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel

SETTINGS = {"r": 16, "alpha": 32, "dropout": 0.0, "target_modules": "all-linear"}


def add_lora(model: object, lora: Mapping[str, Any], seed: int = 0, *, scores: bool = False) -> PreTrainedModel:
    """Wrap `model` with fresh adapters; only they are trained, and the layer `score` of a reward model.

    Args:
        model: a transformers model.
        lora: settings, any of r (rank), alpha (scale times r), dropout, target_modules (a list of names or
            "all-linear"). Dropout acts while gradients are taken and never while log-probs are only read.
        seed: seed of the adapters' initial weights.
        scores: whether the model is a reward model, whose layer `score` is trained whole.

    Raises:
        InputError: an unknown setting, or a target module that the model does not have.
        MissingExtra: peft is not installed.
    """
    unknown = sorted(lora.keys() - SETTINGS.keys())
    if unknown:
        raise InputError(f"lora has no setting '{unknown[0]}'", "", suggest(unknown[0], SETTINGS))
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("peft", "lora", "Training with LoRA adapters") from error
    chosen = {**SETTINGS, **lora}
    config = peft.LoraConfig(
        r=chosen["r"],
        lora_alpha=chosen["alpha"],
        lora_dropout=chosen["dropout"],
        target_modules=_named_for_peft(model, chosen["target_modules"]),
        task_type="SEQ_CLS" if scores else "CAUSAL_LM",
    )
    check_targets(model, chosen["target_modules"])
    if scores:
        _check_beside_head(model, chosen["target_modules"])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return peft.get_peft_model(model, config)


def base_model(model: object) -> PreTrainedModel:
    """Return the transformers model inside a peft model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def check_targets(model: PreTrainedModel, chosen: str | Iterable[str]) -> None:
    """Check that every entry of `target_modules` names a module, by peft's rules.

    A string is a regular expression for full names; a list holds names, or their last parts after a dot.

    Raises:
        InputError: an entry names no module; the message lists the model's linear layers.
    """
    if chosen == "all-linear":
        return
    modules = dict(model.named_modules())
    if not chosen:
        rule = "it needs at least one name; if it is not set, every linear layer but the head is adapted"
        raise InputError(f"LoRA's target_modules is {chosen!r}", rule, "Leave it out, or name modules")
    linear = {name.rpartition(".")[2] for name, module in modules.items() if _applies_weight(module)}
    for shown, target in _entries(chosen):
        if not any(adapts(target, name) for name in modules):
            raise InputError(
                f"LoRA's target_modules holds {shown!r}, and no module of {type(model).__name__} is called so",
                "a list holds names of modules, a string is a regular expression for full names",
                suggest(shown, linear),
            )
        odd = [module for name, module in modules.items() if _is_odd(module) and adapts(target, name)]
        if odd:
            raise InputError(
                f"LoRA's target_modules holds {shown!r}, which is a {type(odd[0]).__name__}",
                "adapters add to what a linear layer gives, and this layer does more than that",
                f"Leave it out. Linear layers: {', '.join(sorted(linear))}",
            )


def adapted_layers(model: PreTrainedModel, chosen: str | Iterable[str]) -> list[str]:
    """Return the names of the linear layers that `target_modules` selects; "all-linear": all but the output layer, and
    the layer `score` of a reward model.
    """
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if _applies_weight(module) and _selects(chosen, name, module is head)
    ]


def _selects(chosen: str | Iterable[str], name: str, is_head: bool) -> bool:
    return name != "score" and not is_head if chosen == "all-linear" else adapts(chosen, name)


def _named_for_peft(model: PreTrainedModel, chosen: str | list[str]) -> str | list[str]:
    """Return `target_modules` for peft, which takes every subclass of a linear layer for one."""
    if chosen == "all-linear" and any(_is_odd(module) for module in model.modules()):
        return adapted_layers(model, chosen)
    return chosen


def _check_beside_head(model: PreTrainedModel, chosen: str | Iterable[str]) -> None:
    """Refuse targets of which one names nothing but the layer `score` of a reward model."""
    names = [name for name, _ in model.named_modules() if name != "score"]
    for shown, target in () if chosen == "all-linear" else _entries(chosen):
        if not any(adapts(target, name) for name in names):
            rule = "the layer score of a reward model is trained whole"
            raise InputError(f"LoRA's target_modules holds {shown!r}", rule, "Leave it out")


def _entries(chosen: str | Iterable[str]) -> Iterator[tuple[str, str | list[str]]]:
    """Yield each entry of `target_modules` as it is shown, and alone as `target_modules`."""
    yield from [(chosen, chosen)] if isinstance(chosen, str) else [(each, [each]) for each in chosen]


def adapts(chosen: str | Iterable[str], name: str) -> bool:
    """Return whether `target_modules` selects the module `name`: a string matches all of it, or a list holds it or its
    end.
    """
    if not isinstance(chosen, str):
        return any(name == each or name.endswith(f".{each}") for each in chosen)
    try:
        return re.fullmatch(chosen, name) is not None
    except re.error as error:
        raise InputError(
            f"LoRA's target_modules is {chosen!r}", f"it is not a valid regular expression: {error}"
        ) from error


def _applies_weight(module: Module) -> bool:
    """Return whether a module is a linear layer, or GPT-2's transposed one."""
    return type(module).__name__ == "Conv1D" or (isinstance(module, torch.nn.Linear) and not _is_odd(module))


def _is_odd(module: Module) -> bool:
    """Return whether a module is an instance of torch's linear layer whose output is not `out_features` numbers."""
    if type(module) is torch.nn.Linear or not isinstance(module, torch.nn.Linear):
        return False
    weight = module.weight
    dtype = weight.dtype if weight.dtype.is_floating_point else torch.float32
    try:
        with torch.no_grad():
            found = module(torch.zeros(1, module.in_features, dtype=dtype, device=weight.device))
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError):
        return True
    return not isinstance(found, torch.Tensor) or found.shape != (1, module.out_features)


def is_adapted(model: Module) -> bool:
    """Return whether peft wraps the model."""
    return hasattr(model, "disable_adapter") and hasattr(model, "merge_and_unload")


def is_linear(module: Any) -> bool:
    """Return whether `linear_weight` gives the module's exact weight: a plain linear layer or one with plain
    adapters.
    """
    if type(module) is torch.nn.Linear:
        return True
    return (
        hasattr(module, "lora_A")
        and type(module.base_layer) is torch.nn.Linear
        and not any(_drops(layer) for layer in module.lora_dropout.values())
        and not any(getattr(module, "use_dora", {}).values())
        and not any(getattr(module, "lora_bias", {}).values())
    )


@contextmanager
def dropping(model: PreTrainedModel) -> Iterator[None]:
    """Enable the adapters' dropout within this context, and nothing else that training mode would enable."""
    layers = [
        layer for module in model.modules() for layer in getattr(module, "lora_dropout", {}).values() if _drops(layer)
    ]
    for layer in layers:
        layer.train()
    try:
        yield
    finally:
        for layer in layers:
            layer.eval()


def _drops(layer: torch.nn.Module) -> bool:
    return isinstance(layer, torch.nn.Dropout) and layer.p > 0


def linear_weight(module: Any) -> torch.Tensor:
    """Return the weight that a linear layer applies, [out, in], in the layer's own type; gradients flow to the
    adapters.
    """
    if not hasattr(module, "lora_A"):
        return module.weight
    base = weight = module.base_layer.weight
    if module.disable_adapters or module.merged:
        return base
    for name in module.active_adapters:
        if name in module.lora_A:
            weight = weight + module.scaling[name] * (module.lora_B[name].weight @ module.lora_A[name].weight)
    return weight.to(base.dtype)  # peft keeps the adapters of half-precision weights in float32
