"""Perceptron policies for vector actions that are bounded, or have several likely places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from grouprl.core.errors import InputError
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_distributions import drawn
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.policy.vectors.bounded_distributions import MixtureOfNormals, SquashedNormal, normal_noise
from grouprl.policy.vectors.mlp import Mlp
from grouprl.protocols import ActionSpace, Box


class Squashed(Mlp):
    """Perceptron whose vector actions are normal before they are squashed into their bounds by tanh (Haarnoja et al.
    2018, arXiv:1801.01290, appendix C).

    Unlike those of `mlp`, its actions are never clipped: what the environment is told is what the log-prob is of. The
    temperature multiplies the deviation before squashing. Settings are those of `mlp`.

    Near a bound many numbers u are squashed into one action, so that rows keep u of what was sampled. Of a stored
    trajectory only the action is known: u is read back from it, as at most ±7.25, which is a millionth of half the
    box from the bound (`EDGE`).
    """

    kind = "squashed"

    def output_count(self, space: ActionSpace) -> int:
        """Return one mean per dimension. Raises InputError if a bound is missing."""
        _need_vectors(self.kind, space)
        assert isinstance(space, Box)
        if not all(math.isfinite(x) for bound in (space.low, space.high) for x in np.ravel(bound)):
            raise InputError(
                f"the actions {space}",
                "squashed actions need finite bounds",
                "Take model: mlp, whose actions have none",
            )
        return super().output_count(space)

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        """Return the distribution of the action at each position."""
        mean_na, space = self.outputs_of(seen), cast("Box", self.spaces.action)
        low_a, high_a = (torch.as_tensor(np.broadcast_to(x, space.size).copy()) for x in (space.low, space.high))
        return SquashedNormal(mean_na, self.log_std.exp() * temperature, low_a.to(mean_na), high_a.to(mean_na))

    def sample(self, distribution: Distribution, seeds: Sequence[int], *, greedy: bool) -> Tensor:
        """Return one action per row; greedy: the median."""
        return self.sample_with_origin(distribution, seeds, greedy=greedy)[0]

    def sample_with_origin(
        self, distribution: Distribution, seeds: Sequence[int], *, greedy: bool
    ) -> tuple[Tensor, Tensor]:
        """Return one action per row, and the numbers before squashing."""
        assert isinstance(distribution, SquashedNormal)
        before_na = drawn(distribution.base, seeds, greedy=greedy)
        return distribution.squashed(before_na), before_na

    def log_prob(self, distribution: Distribution, action_n: Tensor, origin_n: Tensor | None) -> Tensor:
        """Return the log-prob [N] of actions, by the numbers before squashing where they are known."""
        assert isinstance(distribution, SquashedNormal)
        before_na = distribution.before(action_n)
        if origin_n is not None:
            before_na = torch.where(origin_n.isnan(), before_na, origin_n)
        return distribution.log_prob_before(before_na)


class NormalMixture(Mlp):
    """Perceptron whose vector actions come from a mixture of normals (PMOE, arXiv:2104.09122).

    Weights and means depend on the observation, deviations do not. The log-prob is that of the mixture, so that experts
    and router learn from the same gradient. The temperature multiplies the deviations.

    *Differs from the paper*: the router has the likelihood's gradient, not a loss towards the expert with the best Q;
    there is no Q. `entropy` is an upper bound (`MixtureOfNormals`).

    Args:
        build: the run's arguments.
        experts: number of components K.

    The other arguments are the settings of `mlp`.
    """

    kind = "mixture"

    def __init__(
        self,
        build: Build,
        *,
        experts: int = 4,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        log_std: float = 0.0,
        normalise: bool = False,
    ) -> None:
        if experts < 1:
            raise InputError(f"model.settings.experts = {experts}", "it must be a number of components, at least 1")
        self.experts = experts
        super().__init__(build, hidden=hidden, activation=activation, log_std=log_std, normalise=normalise)
        apart_ka = torch.linspace(-0.5, 0.5, experts)[:, None] if experts > 1 else torch.zeros(1, 1)
        bias = self._module["mean"][-1].bias  # type: ignore[index]
        with torch.no_grad():  # experts that begin equal have equal gradients, and stay equal
            bias[experts:] += apart_ka.expand(-1, self._dimensions).reshape(-1).to(bias)

    def output_count(self, space: ActionSpace) -> int:
        """Return a weight and a mean for each component."""
        _need_vectors(self.kind, space)
        return self.experts * (1 + super().output_count(space))

    def spread_count(self, space: ActionSpace) -> int:
        """Return one deviation for each dimension of each component."""
        return self.experts * super().spread_count(space)

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        """Return the distribution of the action at each position."""
        out_na = self.outputs_of(seen)
        mean_nka = out_na[:, self.experts :].unflatten(1, (self.experts, self._dimensions))
        std_ka = self.log_std.exp().unflatten(0, (self.experts, self._dimensions)) * temperature
        return MixtureOfNormals(out_na[:, : self.experts], mean_nka, std_ka)

    def sample(self, distribution: Distribution, seeds: Sequence[int], *, greedy: bool) -> Tensor:
        """Return one action per row; greedy: the mean of the likeliest component."""
        assert isinstance(distribution, MixtureOfNormals)
        which_n = drawn(distribution.which, seeds, greedy=greedy)
        noise_na = normal_noise(seeds, self._dimensions, distribution.parts.base_dist.mean)
        return distribution.placed(which_n, noise_na * (0.0 if greedy else 1.0))

    @property
    def _dimensions(self) -> int:
        return cast("Box", self.spaces.action).size


def _need_vectors(name: str, space: ActionSpace) -> None:
    if not isinstance(space, Box):
        raise InputError(
            f"the policy {name} acts with vectors", f"the actions of this task are {space}", "Take model: mlp"
        )
