"""Trainable models made of any torch module: all methods of the protocols except the scoring of rows."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from grouprl.core.errors import InputError
from grouprl.core.outputs import ENTROPY, LOG_PROB, VALUE
from grouprl.policy.state import (
    LogProbs,
    NamedParameters,
    check_cotangents,
    check_outputs,
    live_rows,
    of_rows,
    pull_back,
)
from grouprl.protocols import PassHelpers, PolicyInputs

MODEL_FILE = "policy.safetensors"
POSITIONS = 65536
"""Positions of one pass through the module, unless set otherwise."""


class TrainableModule(NamedParameters, ABC):
    """Base of trainable models around a torch module: a subclass names its `outputs` and defines `score`.

    Args:
        module: the trained module; parameters that do not require gradients stay as they are.
        positions: positions (rows times their lengths) per pass; results do not depend on it.
    """

    helpers: PassHelpers | None = None
    """Processes that hold copies of the model and take a share of its passes."""

    def __init__(self, module: nn.Module, *, positions: int = POSITIONS) -> None:
        self.module, self.positions = module, positions
        self._known: tuple[nn.Module, nn.Parameter] | None = None

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""

    @abstractmethod
    def score(self, inputs: Any, names: Sequence[str]) -> Mapping[str, Tensor]:
        """Return the outputs `names` of some rows, each [B,T] or [B]; beyond a row's length they may be anything.

        The graph is kept if gradients are enabled.
        """

    @property
    def device(self) -> torch.device:
        """The device of the module."""
        return self._anchor.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the module's weights."""
        return self._anchor.dtype

    @property
    def _anchor(self) -> nn.Parameter:
        """The module's first parameter, looked up once: to search a module takes longer than a small layer."""
        if self._known is None or self._known[0] is not self.module:
            self._known = self.module, next(self.module.parameters())
        return self._known[1]

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of log-probs, entropies and values: float32, or float64 for a float64 module."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def evaluate(self, inputs: PolicyInputs, names: Sequence[str], /, *, grad: bool = False) -> dict[str, Tensor]:
        """Return the outputs `names` of rows; see `grouprl.protocols.Trainable.evaluate`.

        Raises:
            InputError: a name that is not an output.
        """
        if self.helpers is not None and not grad:
            return self.helpers.evaluate(inputs, names)
        return self.evaluate_here(inputs, names, grad=grad)

    def evaluate_here(self, inputs: PolicyInputs, names: Sequence[str], *, grad: bool = False) -> dict[str, Tensor]:
        """Return the outputs `names` of rows, computed in this process alone; see `evaluate`."""
        check_outputs(self, names)
        with torch.set_grad_enabled(grad):
            passes = self.passes(inputs, range(len(inputs)))
            if passes == [list(range(len(inputs)))]:
                return self._masked(inputs, names)
            parts = [self._masked(inputs.rows(rows), names) for rows in passes]
        if not parts:
            return {name: torch.zeros(0, 0, dtype=self.score_dtype, device=self.device) for name in names}
        order = [row for rows in passes for row in rows]
        return {name: laid([part[name] for part in parts], order, inputs.width) for name in names}

    def backward(self, inputs: PolicyInputs, cotangents: Mapping[str, Tensor], /) -> None:
        """Add the gradients of sum(cotangent * output); see `grouprl.protocols.Trainable.backward`.

        Raises:
            InputError: a cotangent that does not have the shape of its output, or a name that is not an output.
        """
        (self.pull_here if self.helpers is None else self.helpers.backward)(inputs, cotangents)

    def pull_here(self, inputs: PolicyInputs, cotangents: Mapping[str, Tensor]) -> None:
        """Add the gradients of sum(cotangent * output), computed in this process alone; see `backward`."""
        check_cotangents(self, inputs, cotangents)
        every = list(range(len(inputs)))
        for rows in self.passes(inputs, live_rows(inputs, cotangents)):
            part = inputs if rows == every else inputs.rows(rows)
            present_bt = part.present_bt()
            with torch.enable_grad():
                found = self._masked(part, tuple(cotangents))
            given = {
                name: c.cpu() if c.dim() == 1 else c.cpu() * present_bt
                for name, c in of_rows(cotangents, rows, part.width).items()
            }
            pull_back(found, given)

    def passes(self, inputs: PolicyInputs, rows: Sequence[int]) -> list[list[int]]:
        """Divide `rows` in their order into passes of at most `positions` positions; a longer row is a pass of its
        own.
        """
        if 0 < len(rows) * inputs.width <= self.positions:
            return [list(rows)]
        length_b = inputs.present_bt().sum(1).tolist()
        found: list[list[int]] = []
        width = 0
        for row in rows:
            width = max(width, length_b[row])
            if not found or (len(found[-1]) + 1) * width > self.positions:
                found.append([])
                width = length_b[row]
            found[-1].append(row)
        return found

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every trainable parameter with its name."""
        yield from ((name, p) for name, p in self.module.named_parameters() if p.requires_grad)

    def named_state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every trainable parameter and every buffer of the module (statistics of observations), named."""
        yield from self.named_parameters()
        yield from self.module.named_buffers()

    def copied(self, *, trainable: bool = True) -> Self:
        """Return a copy of the model as it is now, which shares no weights with it."""
        other = copy.copy(self)
        other.helpers = None
        other.module = copy.deepcopy(self.module)
        if not trainable:
            other.module.requires_grad_(False)
        return other

    def save(self, folder: str | Path) -> None:
        """Write the trainable parameters as `policy.safetensors`; `folder` is made if it does not exist."""
        from safetensors.torch import save_file

        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file(self.trainable_state(), Path(folder) / MODEL_FILE)

    def _masked(self, inputs: PolicyInputs, names: Sequence[str]) -> dict[str, Tensor]:
        """Score rows; set outputs [B,T] to exactly 0 beyond their lengths."""
        found, dtype = self.score(inputs, names), self.score_dtype
        each = {name: found[name].to(dtype) for name in names}
        present_bt = inputs.present_bt()
        if bool(present_bt.all()):
            return each
        zero, present_bt = torch.zeros((), dtype=dtype, device=self.device), present_bt.to(self.device)
        return {name: x if x.dim() == 1 else torch.where(present_bt, x, zero) for name, x in each.items()}


class ModulePolicy(TrainableModule, LogProbs):
    """Base of policies around a torch module. A subclass defines `score`, and `new_critic` if it can have a critic.

    Args:
        module: the trained module; parameters that do not require gradients stay as they are.
        critic: a separate module that returns values; its parameters are named `value_head.…`.
        positions: positions (rows times their lengths) per pass; results do not depend on it.
    """

    def __init__(self, module: nn.Module, *, critic: nn.Module | None = None, positions: int = POSITIONS) -> None:
        super().__init__(module, positions=positions)
        self.critic = critic

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: log-probs, entropies, and values if there is a critic."""
        return (LOG_PROB, ENTROPY) if self.critic is None else (LOG_PROB, ENTROPY, VALUE)

    def new_critic(self) -> nn.Module:
        """Return a fresh critic. Raises InputError if the policy cannot have one."""
        raise InputError(
            f"{type(self).__name__} has no critic", "values come from a critic", "Choose a method without a critic"
        )

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every trainable parameter with its name; those of the critic begin with `value_head.`."""
        yield from super().named_parameters()
        if self.critic is not None:
            yield from ((f"value_head.{name}", p) for name, p in self.critic.named_parameters() if p.requires_grad)

    def copied(self, *, trainable: bool = True, value_head: bool = False) -> Self:
        """Return a copy of the policy as it is now, which shares no weights; `value_head` adds a fresh critic."""
        other = super().copied(trainable=trainable)
        other.critic = other.new_critic().to(self.device, self.dtype) if value_head else None
        return other

    def reference(self) -> Self:
        """Return a frozen copy for KL terms."""
        return self.copied(trainable=False)


def laid(parts: Sequence[Tensor], order: Sequence[int], width: int) -> Tensor:
    """Arrange the rows of passes in their original order, [B,T] or [B]."""
    found = [x if x.dim() == 1 else nn.functional.pad(x, (0, width - x.shape[1])) for x in parts]
    return torch.cat(found)[torch.tensor(order).argsort().to(found[0].device)]
