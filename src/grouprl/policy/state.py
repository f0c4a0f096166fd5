"""Shared parts of trainable models: named parameters as a state, cotangents of rows, log-probs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch

from grouprl.core.errors import InputError, suggest
from grouprl.core.outputs import LOG_PROB, VALUE, has_output
from grouprl.core.spans import span
from grouprl.protocols import Policy, PolicyInputs, Trainable

if TYPE_CHECKING:
    from torch import Tensor, nn


def check_outputs(model: Trainable, names: Iterable[str]) -> None:
    """Raise InputError for a name that is not an output of the model."""
    for name in names:
        if not has_output(model.outputs, name):
            critic = name == VALUE
            raise InputError(
                f"{type(model).__name__} has no output '{name}'",
                "values come from a value head" if critic else f"its outputs are {', '.join(model.outputs)}",
                "Load it with value_head=True, or choose a method without a critic"
                if critic
                else suggest(name, model.outputs),
            )


def check_cotangents(model: Trainable, inputs: PolicyInputs, cotangents: Mapping[str, Tensor]) -> None:
    """Raise InputError for a cotangent of an unknown output, or with a shape that no output has."""
    check_outputs(model, cotangents)
    shape = (len(inputs), inputs.width)
    for name, cotangent in cotangents.items():
        if tuple(cotangent.shape) not in (shape, shape[:1]):
            raise InputError(
                f"A cotangent of '{name}' of shape {tuple(cotangent.shape)}",
                f"It must be [B,T] = {shape}, or [B] for an output with a number for each row",
                "Give it the shape of the output",
            )


def live_rows(inputs: PolicyInputs, cotangents: Mapping[str, Tensor]) -> list[int]:
    """Return the rows that have a non-zero cotangent at one of their positions."""
    present_bt = inputs.present_bt()
    found = [(c.cpu() != 0 if c.dim() == 1 else ((c.cpu() != 0) & present_bt).any(1)) for c in cotangents.values()]
    return torch.stack(found).any(0).nonzero()[:, 0].tolist() if found else []


def of_rows(cotangents: Mapping[str, Tensor], rows: Sequence[int], width: int) -> dict[str, Tensor]:
    """Return the cotangents of `rows`, truncated to `width` positions."""
    return {name: c[rows] if c.dim() == 1 else c[rows][:, :width] for name, c in cotangents.items()}


def pull_back(outputs: Mapping[str, Tensor], cotangents: Mapping[str, Tensor]) -> None:
    """Add the gradients of sum(cotangent * output) of one pass; an output without a graph is a constant.

    Raises:
        InputError: a cotangent of another shape than its output's.
    """
    for name, cotangent in cotangents.items():
        if outputs[name].shape != cotangent.shape:
            raise InputError(
                f"A cotangent of '{name}' with {cotangent.dim()} axes",
                f"the output has {outputs[name].dim()}: [B,T] of positions, [B] of rows",
                "Give it the shape of the output",
            )
    pairs = [(outputs[name], c.to(outputs[name])) for name, c in cotangents.items() if outputs[name].requires_grad]
    with span("backward"):
        torch.autograd.backward([x for x, _ in pairs], [c for _, c in pairs])


def check_state(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise InputError if names or shapes of `state` differ from those of the policy's `own` parameters."""
    wrong = sorted(own.keys() ^ state.keys()) or sorted(n for n, p in own.items() if p.shape != state[n].shape)
    if wrong:
        raise InputError(
            f"The stored weights differ from the policy's in {wrong[:3]}",
            "A state can only be loaded into the same model with the same adapters and value head",
            "Load it into a policy built from the same configuration",
        )


class NamedParameters:
    """Base of trainable models: methods that only need the named trainable parameters."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every trainable parameter with its name; those of value heads begin with `value_head.`."""
        raise NotImplementedError

    def parameters(self) -> list[nn.Parameter]:
        """Return every trainable parameter, value head included."""
        return [parameter for _, parameter in self.named_parameters()]

    def owners(self) -> list[list[nn.Parameter]]:
        """Return the trainable parameters in groups by owner: gradients are clipped and steps are taken separately for
        each owner.
        """
        return [self.parameters()]

    def named_state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield everything that training changes with its name; by default the trainable parameters."""
        yield from self.named_parameters()

    def trainable_state(self) -> dict[str, Tensor]:
        """Return copies on the CPU of everything that training changes, by name."""
        return {name: value.detach().cpu().clone() for name, value in self.named_state()}

    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy what `trainable_state` returned into the model.

        Raises:
            InputError: names or shapes differ from the policy's own.
        """
        own = dict(self.named_state())
        check_state(own, state)
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(state[name])


def as_policy(model: Trainable) -> Policy:
    """Return the model as a policy, which has log-probs.

    Raises:
        InputError: it has none.
    """
    if LOG_PROB not in model.outputs:
        raise InputError(
            f"{type(model).__name__} has no log-probs",
            "it scores whole rows, and what is asked for needs the log-probs of tokens",
            "Take a language model",
        )
    return cast("Policy", model)


class LogProbs(NamedParameters):
    """Base of policies, which have log-probs among their outputs."""

    def logp(self, inputs: PolicyInputs, /) -> Tensor:
        """Return the log-prob of every action, [B,T], without a graph."""
        return cast("Trainable[PolicyInputs]", self).evaluate(inputs, (LOG_PROB,))[LOG_PROB]


def between(one: Tensor, other: Tensor, share: float) -> Tensor:
    """Return the point at `share` of the way from `one` to `other`, computed in float32 or better."""
    if share == 1:
        return other
    kind = torch.promote_types(one.dtype, torch.float32)
    return torch.lerp(one.to(kind), other.to(kind), share).to(one.dtype)
