"""Optimisers by name: any of torch's, with settings checked before the run."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from grouprl.core.errors import InputError, suggest

if TYPE_CHECKING:
    from collections.abc import Callable

UNFIT = {
    "lbfgs": "it evaluates the loss several times per step, and a step here is taken on one gradient",
    "sparseadam": "it takes sparse gradients, and those of a policy are dense",
}
"""Optimisers of torch that a run cannot use, each with the reason."""
BY_ELEMENT = (*("adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop", "sgd"),)
"""Optimisers whose step for a number depends only on that number's gradients, so that a piece of the weights can be
stepped separately.
"""
OWN = ("params", "lr")
"""Arguments that the run sets itself, from `optim.lr` and its schedule."""


class OptimizerSettings(Protocol):
    """Settings of a run's optimiser: the section `optim` of its configuration, all with defaults."""

    @property
    def name(self) -> str:
        """Name of an optimiser of torch, in lower case."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Further arguments of that optimiser."""

    @property
    def lr(self) -> float:
        """The learning rate."""

    @property
    def betas(self) -> tuple[float, float]:
        """The betas, for optimisers that have them."""

    @property
    def weight_decay(self) -> float:
        """The weight decay, for optimisers that have it."""


def optimizer_names() -> list[str]:
    """Return the names that `optim.name` can have."""
    return sorted(set(_classes()) - set(UNFIT))


def build_optimizer(
    optim: OptimizerSettings, parameters: Iterable[torch.nn.Parameter], *, lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return the optimiser that `optim` names for `parameters`, with the learning rate and weight decay of a phase.

    `optim.betas` are passed to optimisers that have betas. AdamW steps in one fused kernel unless set otherwise.

    Raises:
        InputError: an unknown name or setting (with the nearest known ones), or values that the optimiser rejects.
    """
    kind = optimizer_class(optim)
    taken = inspect.signature(kind).parameters
    settings: dict[str, object] = {"fused": True} if kind is torch.optim.AdamW else {}
    settings |= {"betas": optim.betas} if "betas" in taken else {}
    settings |= {"weight_decay": weight_decay} if "weight_decay" in taken else {}
    settings |= {name: tuple(x) if isinstance(x, list) else x for name, x in optim.settings.items()}
    try:
        return kind(list(parameters), lr=lr, **settings)
    except (TypeError, ValueError, RuntimeError) as error:
        said = ", ".join(f"{name}: {value}" for name, value in optim.settings.items())
        raise InputError(f"optim.name = {optim.name} with {{{said}}}", str(error), "See torch.optim") from error


def optimizer_class(optim: OptimizerSettings) -> Callable[..., torch.optim.Optimizer]:
    """Return the class that `optim` names after checking the names of its settings; raises InputError as
    `build_optimizer` does.
    """
    classes = _classes()
    if optim.name not in classes:
        raise InputError(f"optim.name = {optim.name}", "torch has no such optimiser", suggest(optim.name, classes))
    if optim.name in UNFIT:
        raise InputError(f"optim.name = {optim.name}", UNFIT[optim.name], f"Take one of {', '.join(optimizer_names())}")
    kind = classes[optim.name]
    taken = [name for name in inspect.signature(kind).parameters if name not in OWN]
    for name in optim.settings:
        if name in (*OWN, "betas", "weight_decay"):
            raise InputError(f"optim.settings.{name}", f"it belongs one level higher, as optim.{name}")
        if name not in taken:
            raise InputError(f"unknown key 'optim.settings.{name}'", remedy=suggest(name, taken))
    plain = type(optim)()
    for name in ("betas", "weight_decay"):
        if name not in taken and getattr(optim, name) != getattr(plain, name):
            raise InputError(f"optim.{name} = {getattr(optim, name)}", f"{optim.name} has no {name}", "Leave it out")
    return kind


def check_optimizer(optim: OptimizerSettings) -> None:
    """Raise InputError as `build_optimizer` does if the optimiser cannot be made: before the model is loaded, not
    after.
    """
    if optim.name == "adamw" and not optim.settings and max(optim.betas) < 1:
        return  # nothing is left that it could refuse, and making the first optimiser of a process imports a compiler
    probe = torch.nn.Parameter(torch.zeros(2, 2))
    build_optimizer(optim, [probe], lr=optim.lr, weight_decay=optim.weight_decay)


def _classes() -> dict[str, Callable[..., torch.optim.Optimizer]]:
    found = {name.lower(): each for name, each in vars(torch.optim).items() if inspect.isclass(each)}
    return {
        name: each
        for name, each in found.items()
        if issubclass(each, torch.optim.Optimizer) and each is not torch.optim.Optimizer
    }
