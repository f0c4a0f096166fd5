"""Policies made of any torch module: everything of the protocol but how actions are scored."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from grouprl.core.errors import InputError
from grouprl.core.spans import span
from grouprl.policy.trainable import Trainable, check_cotangents
from grouprl.protocols import PolicyInputs, PolicyOutput

MODEL_FILE = "policy.safetensors"
POSITIONS = 65536
"""Positions of one pass through the module, unless set otherwise."""


class ModulePolicy(Trainable, ABC):
    """Base of policies around a torch module. A subclass writes `score`, and `new_critic` if it can have a critic.

    Args:
        module: what is trained; parameters that do not require gradients stay as they are.
        critic: a module of its own that gives values; its parameters are named `value_head.…`.
        positions: positions (rows times their lengths) per pass; results do not depend on it.
    """

    def __init__(self, module: nn.Module, *, critic: nn.Module | None = None, positions: int = POSITIONS) -> None:
        self.module, self.critic, self.positions = module, critic, positions

    @abstractmethod
    def score(self, inputs: Any, *, entropy: bool, values: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return log-probs, entropies and values of some rows, each [B,T]; beyond a row's length they may be anything.

        The graph is kept if gradients are enabled. Values are requested only where there is a critic.
        """

    def new_critic(self) -> nn.Module:
        """Return a fresh critic. Raises InputError where the policy can have none."""
        raise InputError(f"{type(self).__name__} has no critic", "values come from one", "Take a method without critic")

    @property
    def device(self) -> torch.device:
        """Where the module lives."""
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the module's weights."""
        return next(self.module.parameters()).dtype

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of log-probs, entropies and values: float32, or float64 for a float64 module."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def logp(
        self,
        inputs: PolicyInputs,
        *,
        grad: bool = False,
        entropy: bool = False,
        values: bool = False,
        cross: float | None = None,
    ) -> PolicyOutput:
        """Score rows; see `grouprl.protocols.Policy.logp`.

        Raises:
            InputError: values without a critic, or cross-entropies, which a module does not have.
        """
        self._check_outputs(values, cross)
        with torch.set_grad_enabled(grad):
            passes = self.passes(inputs, range(len(inputs)))
            parts = [self._masked(inputs.rows(rows), entropy, values) for rows in passes]
        order = [row for rows in passes for row in rows]
        found = [_laid(column, order, inputs) for column in zip(*parts, strict=True)] if parts else [None] * 3
        empty = torch.zeros(len(inputs), inputs.width, dtype=self.score_dtype, device=self.device)
        wanted = (True, entropy, values)
        logp, *more = ((empty if x is None else x) if w else None for x, w in zip(found, wanted, strict=True))
        assert logp is not None
        return PolicyOutput(logp, *more)

    def backward(
        self,
        inputs: PolicyInputs,
        grad_logp_bt: Tensor,
        grad_entropy_bt: Tensor | None = None,
        grad_value_bt: Tensor | None = None,
        grad_cross_bt: Tensor | None = None,
        *,
        cross: float | None = None,
    ) -> None:
        """Add the gradients of sum(cotangent * output); see `grouprl.protocols.Policy.backward`.

        Raises:
            InputError: a cotangent that is not [B,T] of `inputs`, or one for what the policy does not have.
        """
        self._check_outputs(grad_value_bt is not None, cross if grad_cross_bt is None else 1.0)
        given = [grad_logp_bt, grad_entropy_bt, grad_value_bt]
        check_cotangents(inputs, given)
        present_bt = inputs.present_bt()
        live_b = torch.stack([((c.cpu() != 0) & present_bt).any(1) for c in given if c is not None]).any(0)
        for rows in self.passes(inputs, live_b.nonzero()[:, 0].tolist()):
            part = inputs.rows(rows)
            with torch.enable_grad():
                outputs = self._masked(part, grad_entropy_bt is not None, grad_value_bt is not None)
            pairs = [
                (x, (c[rows][:, : part.width].cpu() * part.present_bt()).to(x))
                for x, c in zip(outputs, given, strict=True)
                if x is not None and c is not None and x.requires_grad  # an entropy can be a constant
            ]
            with span("backward"):
                torch.autograd.backward([x for x, _ in pairs], [c for _, c in pairs])

    def passes(self, inputs: PolicyInputs, rows: Sequence[int]) -> list[list[int]]:
        """Cut `rows` in their order into passes of at most `positions` positions; a longer row is one of its own."""
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
        """Yield every trainable parameter with its name; those of the critic begin with `value_head.`."""
        yield from ((name, p) for name, p in self.module.named_parameters() if p.requires_grad)
        if self.critic is not None:
            yield from ((f"value_head.{name}", p) for name, p in self.critic.named_parameters() if p.requires_grad)

    def copied(self, *, trainable: bool = True, value_head: bool = False) -> Self:
        """Return a copy as it is now, that shares no weights; `value_head`: with a fresh critic."""
        other = copy.copy(self)
        other.module = copy.deepcopy(self.module)
        if not trainable:
            other.module.requires_grad_(False)
        other.critic = other.new_critic().to(self.device) if value_head else None
        return other

    def reference(self) -> Self:
        """Return a frozen copy for KL terms."""
        return self.copied(trainable=False)

    def save(self, folder: str | Path) -> None:
        """Write the trainable parameters as `policy.safetensors`; `folder` is made if it does not exist."""
        from safetensors.torch import save_file

        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file(self.trainable_state(), Path(folder) / MODEL_FILE)

    def _masked(self, inputs: PolicyInputs, entropy: bool, values: bool) -> list[Tensor | None]:
        """Score rows, exactly 0 beyond their lengths."""
        found = self.score(inputs, entropy=entropy, values=values)
        present_bt = inputs.present_bt().to(self.device)
        zero = torch.zeros((), dtype=self.score_dtype, device=self.device)
        return [None if x is None else torch.where(present_bt, x.to(self.score_dtype), zero) for x in found]

    def _check_outputs(self, values: bool, cross: float | None) -> None:
        if values and self.critic is None:
            raise InputError("the policy has no critic", "values come from one", "Take a method with a critic")
        if cross is not None:
            self._refuse("cross-entropies at another temperature")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(f"{type(self).__name__} is to give {what}", "it has none", "Take a method without them")


def _laid(parts: Sequence[Tensor | None], order: Sequence[int], inputs: PolicyInputs) -> Tensor | None:
    """Put the rows of passes into their own order, [B,T]."""
    found = [nn.functional.pad(x, (0, inputs.width - x.shape[1])) for x in parts if x is not None]
    return torch.cat(found)[torch.tensor(order).argsort().to(found[0].device)] if found else None
