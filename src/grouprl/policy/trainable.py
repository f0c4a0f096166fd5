"""Named parameters as a state that can be saved and loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from grouprl.core.errors import InputError
from grouprl.protocols import PolicyInputs


def check_cotangents(inputs: PolicyInputs, cotangents: Iterable[torch.Tensor | None]) -> None:
    """Raise InputError for a cotangent that is not [B,T] of `inputs`."""
    shape = (len(inputs), inputs.width)
    for cotangent in cotangents:
        if cotangent is not None and tuple(cotangent.shape) != shape:
            raise InputError(
                f"A cotangent of shape {tuple(cotangent.shape)}", f"It is [B,T] = {shape}", "Match the inputs"
            )


def check_state(own: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
    """Raise InputError where names or shapes of `state` are not those of the policy's `own` parameters."""
    wrong = sorted(own.keys() ^ state.keys()) or sorted(n for n, p in own.items() if p.shape != state[n].shape)
    if wrong:
        raise InputError(
            f"The stored weights differ from the policy's in {wrong[:3]}",
            "A state can be loaded into the same model with the same adapters and value head",
            "Load it into a policy built from the same configuration",
        )


class Trainable:
    """Base of policies: what follows from their named trainable parameters."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every trainable parameter with its name; those of value heads begin with `value_head.`."""
        raise NotImplementedError

    def parameters(self) -> list[nn.Parameter]:
        """Return every trainable parameter, value head included."""
        return [parameter for _, parameter in self.named_parameters()]

    def owners(self) -> list[list[nn.Parameter]]:
        """Return the trainable parameters by who owns them: gradients are clipped and steps taken owner by owner."""
        return [self.parameters()]

    def trainable_state(self) -> dict[str, torch.Tensor]:
        """Return copies of all trainable parameters on the CPU, by name."""
        return {name: parameter.detach().cpu().clone() for name, parameter in self.named_parameters()}

    @torch.no_grad()
    def load_trainable_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy what `trainable_state` returned into the parameters.

        Raises:
            InputError: names or shapes differ from the policy's own.
        """
        own = dict(self.named_parameters())
        check_state(own, state)
        for name, parameter in own.items():
            parameter.copy_(state[name])
