"""Layers of a transformer that run as code compiled by `torch.compile`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from grouprl.core.errors import InputError
from grouprl.policy.passes import Forward

BACKEND = "inductor"


class CompiledLayers:
    """The compiled forward passes of layers: one for each class of them, so that equal layers share their code.

    Lengths are symbols of the code. It is compiled as it is first called: with and without gradients, with one row or
    several, with and without a mask.

    Attributes:
        calls: how many layers have run as compiled code.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        kinds = {type(layer) for layer in layers}
        self._made = {kind: torch.compile(kind.forward, backend=BACKEND, dynamic=True) for kind in kinds}
        self.calls = 0

    def __call__(self, forward: Forward) -> Forward:
        """Return the compiled code of a layer's own forward pass."""
        return partial(self._run, forward.__self__)  # type: ignore[attr-defined]

    def _run(self, layer: nn.Module, *arguments: object, **named: object) -> object:
        self.calls += 1
        return self._made[type(layer)](layer, *arguments, **named)


def not_compiled(said: str) -> InputError:
    """Return the error for a model that torch fails to compile; `said` is torch's own message."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return InputError(
        "model.compile=true",
        f"torch.compile fails with this model on this machine: {' '.join(lines[:2])[:300]}",
        "Install what it names (on a CPU a C++ compiler), or leave model.compile out",
    )
