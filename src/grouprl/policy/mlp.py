"""A small multi-layer perceptron over vectors: categorical or Gaussian, as the task's actions are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from grouprl.core.errors import InputError
from grouprl.policy.array_policy import ArrayPolicy
from grouprl.policy.kinds import Build, register_policy
from grouprl.protocols import Discrete

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}
LAST_GAIN = 0.01
"""Gain of the last layer: the first actions are nearly uniform, or of mean nearly 0."""


@register_policy("mlp")
class Mlp(ArrayPolicy):
    """Numbered actions: softmax(logits / temperature). Vectors: a normal with a learned deviation, times temperature.

    Args:
        build: what the run specifies.
        hidden: width of each hidden layer.
        activation: tanh, relu or silu.
        log_std: initial logarithm of the deviation of vector actions.
    """

    def __init__(
        self, build: Build, *, hidden: Sequence[int] = (64, 64), activation: str = "tanh", log_std: float = 0.0
    ) -> None:
        spaces = build.need_spaces("mlp")
        if activation not in ACTIVATIONS:
            raise InputError(f"model.settings.activation = {activation}", f"it is one of {', '.join(ACTIVATIONS)}")
        if not all(isinstance(size, int) and size > 0 for size in hidden):
            raise InputError(f"model.settings.hidden = {hidden}", "it lists the width of each hidden layer")
        self._layers, self._seed = (tuple(hidden), activation), build.seed
        self.discrete = isinstance(spaces.action, Discrete)
        width = spaces.action.count if isinstance(spaces.action, Discrete) else spaces.action.size
        module = nn.ModuleDict({"mean": perceptron(spaces.observation.size, width, *self._layers, seed=build.seed)})
        if not self.discrete:
            module["spread"] = nn.ParameterList([nn.Parameter(torch.full((width,), float(log_std)))])
        self._inputs = spaces.observation.size
        critic = self.new_critic() if build.values else None
        super().__init__(build, module, critic=critic)

    def new_critic(self) -> nn.Module:
        """Return a perceptron of the policy's own sizes with one output."""
        return perceptron(self._inputs, 1, *self._layers, seed=self._seed + 1)

    def distribution(self, observation_nd: Tensor, temperature: float) -> Distribution:
        """Return the distribution of the action after each observation."""
        out_na = self.module["mean"](observation_nd)  # type: ignore[index]
        if self.discrete:
            return Categorical(logits=out_na / temperature, validate_args=False)
        (log_std_a,) = self.module["spread"]  # type: ignore[index]
        return Independent(Normal(out_na, log_std_a.exp() * temperature, validate_args=False), 1)


def perceptron(inputs: int, outputs: int, hidden: Sequence[int], activation: str, *, seed: int) -> nn.Sequential:
    """Return a multi-layer perceptron with orthogonal weights sampled from `seed`, the last layer's small, biases 0."""
    sizes = [inputs, *hidden, outputs]
    luck = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for depth, (before, after) in enumerate(pairwise(sizes)):
        last = depth == len(sizes) - 2
        layer = nn.utils.skip_init(nn.Linear, before, after)
        gain = LAST_GAIN if last else 2**0.5
        nn.init.orthogonal_(layer.weight, gain, generator=luck)
        nn.init.zeros_(layer.bias)
        layers += [layer] if last else [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)
