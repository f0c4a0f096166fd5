"""An optimiser in float32 for weights in half precision.

bfloat16 numbers near a weight differ by about 1/256 of it: an update of a millionth of the weight is rounded away at
every step. The optimiser therefore steps float32 copies, which accumulate such updates, and the weights are the rounded
copies (Micikevicius et al. 2018, arXiv:1710.03740, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from grouprl.core.json_types import State

HALF = (torch.bfloat16, torch.float16)
MASTERS = "masters"


class MasterWeights(torch.optim.Optimizer):
    """Optimiser that steps float32 copies of `parameters` with the optimiser that `make` returns for them.

    Changes to the weights from elsewhere, such as loading a state, are copied before the next step.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    ) -> None:
        self._weights = list(parameters)
        self._masters = [nn.Parameter(weight.detach().float()) for weight in self._weights]
        super().__init__(self._masters, {})
        self._inner = make(self._masters)
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Take a step on the copies, and round them into the weights."""
        assert closure is None, "steps with a closure are not supported"
        for weight, master in zip(self._weights, self._masters, strict=True):
            other = master.to(weight.dtype) != weight
            master.copy_(torch.where(other, weight.float(), master))
            master.grad = None if weight.grad is None else weight.grad.float()
        self._inner.step()
        for weight, master in zip(self._weights, self._masters, strict=True):
            weight.copy_(master)
            master.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of the weights, or set them to zero."""
        for weight in self._weights:
            if set_to_none:
                weight.grad = None
            elif weight.grad is not None:
                weight.grad.zero_()

    def state_dict(self) -> State:
        """Return the state of the optimiser, including the float32 copies."""
        return {**self._inner.state_dict(), MASTERS: [master.detach().clone() for master in self._masters]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: State) -> None:
        """Load a state from `state_dict`; if it holds no copies, they are made from the weights."""
        self._inner.load_state_dict({name: value for name, value in state_dict.items() if name != MASTERS})
        self._share()
        stored = state_dict.get(MASTERS, self._weights)
        for master, value in zip(self._masters, stored, strict=True):
            master.copy_(value)
