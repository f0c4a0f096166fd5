"""A small multi-layer perceptron over arrays: categorical or Gaussian, depending on the task's actions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from grouprl.core.errors import InputError
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_distributions import MultiCategorical, PlainCategorical
from grouprl.policy.vectors.array_inputs import ArrayInputs, Seen
from grouprl.policy.vectors.array_policy import ArrayPolicy
from grouprl.policy.vectors.features import feature_count, features
from grouprl.policy.vectors.moments import ObservationMoments
from grouprl.protocols import ActionSpace, Box, Discrete, MultiDiscrete

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}
ACTION_GAIN, VALUE_GAIN = 0.01, 1.0
"""Gains of the last layers: the first actions are nearly uniform, or of mean nearly 0; values have their own scale."""


class Mlp(ArrayPolicy):
    """Perceptron policy. For numbered actions it is softmax(logits / temperature), independently for several numbers;
    for vectors a normal distribution whose learned deviation is multiplied by the temperature.

    Observations and the episode's context are read as one row of numbers: whole numbers one-hot, pictures divided by
    255. A normal distribution has no bounds: actions are clipped when they are passed to the environment, and log-probs
    are those of the unclipped actions.

    Args:
        build: the run's arguments.
        hidden: width of each hidden layer.
        activation: tanh, relu or silu.
        log_std: initial logarithm of the deviation of vector actions.
        normalise: whether observations are read as (x - mean) / deviation over all that training has seen before this
            step, clipped to ±10. The statistics are part of the weights, and evaluations do not change them.
    """

    kind: ClassVar[str] = "mlp"
    """The name by which messages call the policy."""

    def __init__(
        self,
        build: Build,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        log_std: float = 0.0,
        normalise: bool = False,
    ) -> None:
        spaces = build.need_spaces(self.kind)
        if activation not in ACTIVATIONS:
            raise InputError(f"model.settings.activation = {activation}", f"it must be one of {', '.join(ACTIVATIONS)}")
        if not all(isinstance(size, int) and size > 0 for size in hidden):
            raise InputError(f"model.settings.hidden = {hidden}", "it must list the width of each hidden layer")
        self._layers, self._seed = (tuple(hidden), activation), build.seed
        self._inputs = feature_count(spaces.observation) + feature_count(spaces.context)
        module = self.body(self.output_count(spaces.action))
        if isinstance(spaces.action, Box):
            spread = torch.full((self.spread_count(spaces.action),), float(log_std))
            module["spread"] = nn.ParameterList([nn.Parameter(spread)])
        if normalise:
            module["moments"] = ObservationMoments(feature_count(spaces.observation))
        critic = self.new_critic() if build.values else None
        super().__init__(build, module, critic=critic)

    def output_count(self, space: ActionSpace) -> int:
        """Return how many outputs of the perceptron describe the distribution of an action.

        Raises:
            InputError: the policy cannot act in the space.
        """
        return _outputs(space)

    def spread_count(self, space: ActionSpace) -> int:
        """Return how many deviations a distribution of vector actions has."""
        return feature_count(space)

    def body(self, outputs: int) -> nn.ModuleDict:
        """Return the module "mean" that makes the outputs, and those that it needs."""
        return nn.ModuleDict({"mean": perceptron(self._inputs, outputs, *self._layers, seed=self._seed)})

    def new_critic(self) -> nn.Module:
        """Return a perceptron of the policy's own sizes with one output."""
        return perceptron(self._inputs, 1, *self._layers, seed=self._seed + 1, gain=VALUE_GAIN)

    def observe(self, inputs: ArrayInputs) -> None:
        """Add the observations of rows to the statistics, if they are read normalised."""
        if "moments" in self._module:
            seen = inputs.seen(self.device, self.dtype)
            self._moments.observe(features(self.spaces.observation, seen.observation, self.dtype))

    def renew(self) -> None:
        """Read observations by the statistics of all that was observed."""
        if "moments" in self._module:
            self._moments.renew()

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        """Return the distribution of the action at each position."""
        out_na = self.outputs_of(seen)
        if isinstance(self.spaces.action, Discrete):
            return PlainCategorical(out_na / temperature)
        if isinstance(self.spaces.action, MultiDiscrete):
            return MultiCategorical((out_na / temperature).split(self.spaces.action.counts, -1))
        return Independent(Normal(out_na, self.log_std.exp() * temperature, validate_args=False), 1)

    def outputs_of(self, seen: Seen) -> Tensor:
        """Return the perceptron's outputs [N,·] at each position."""
        out_na: Tensor = self._module["mean"](self._read(seen))
        return out_na

    @property
    def log_std(self) -> Tensor:
        """The learned logarithms of the deviations of vector actions, which do not depend on the observation."""
        return cast("nn.ParameterList", self._module["spread"])[0]

    @property
    def _module(self) -> nn.ModuleDict:
        return cast("nn.ModuleDict", self.module)

    @property
    def _moments(self) -> ObservationMoments:
        return cast("ObservationMoments", self._module["moments"])

    def value(self, seen: Seen) -> Tensor:
        """Return the critic's value of each position, [N]."""
        assert self.critic is not None
        value_n: Tensor = self.critic(self._read(seen))[:, 0]
        return value_n

    def _read(self, seen: Seen) -> Tensor:
        own_nf = features(self.spaces.observation, seen.observation, self.dtype)
        own_nf = self._moments(own_nf) if "moments" in self._module else own_nf
        if not self.spaces.context.spaces:
            return own_nf
        return torch.cat([own_nf, features(self.spaces.context, seen.context, self.dtype)[seen.row_n]], -1)


def _outputs(space: ActionSpace) -> int:
    """Return the number of outputs that describe the distribution of an action."""
    if isinstance(space, Box) and (len(space.shape) != 1 or "float" not in space.dtype):
        raise InputError(
            f"mlp cannot act with {space.dtype} arrays of the shape {space.shape}",
            "its actions must be numbers, or vectors of real numbers",
            "Use Discrete, MultiDiscrete, or a Box of one dimension and a floating type",
        )
    return feature_count(space)


def perceptron(
    inputs: int, outputs: int, hidden: Sequence[int], activation: str, *, seed: int, gain: float = ACTION_GAIN
) -> nn.Sequential:
    """Return a multi-layer perceptron with orthogonal weights sampled from `seed` and biases 0; `gain` is that of the
    last layer, those before have √2.
    """
    sizes = [inputs, *hidden, outputs]
    luck = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for depth, (before, after) in enumerate(pairwise(sizes)):
        last = depth == len(sizes) - 2
        layer = nn.utils.skip_init(nn.Linear, before, after)
        nn.init.orthogonal_(layer.weight, gain if last else 2**0.5, generator=luck)
        nn.init.zeros_(layer.bias)
        layers += [layer] if last else [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)
