"""Policies that read vectors and act with numbers or vectors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from grouprl.core.errors import InputError
from grouprl.core.outputs import ENTROPY, LOG_PROB, VALUE
from grouprl.policy.arrays import ArrayInputs
from grouprl.policy.kinds import Build
from grouprl.policy.module import ModulePolicy
from grouprl.protocols import Spaces


class SampledTurn(NamedTuple):
    """R actions with their log-probs and the entropies of the distributions they come from."""

    actions: list[int | np.ndarray]
    """Numbers, or vectors [A] as float32 arrays."""
    logp_r: Tensor
    entropy_r: Tensor


class ArrayPolicy(ModulePolicy):
    """Base of policies over vectors. A subclass builds its module and writes `distribution`.

    Args:
        build: what the run specifies; `spaces` must be there.
        module: what `distribution` works with.
        critic: a module from observations [N,D] to values [N,1], made where the method has a critic.
    """

    def __init__(self, build: Build, module: nn.Module, *, critic: nn.Module | None = None) -> None:
        self.spaces: Spaces = build.need_spaces(type(self).__name__)
        self.temperature = build.temperature
        critic = None if critic is None else critic.to(device=build.device, dtype=build.dtype)
        super().__init__(module.to(device=build.device, dtype=build.dtype), critic=critic, positions=build.positions)

    @abstractmethod
    def distribution(self, observation_nd: Tensor, temperature: float) -> Distribution:
        """Return the distribution of the action after each observation: batch [N], `log_prob` and `entropy` give [N].

        At temperature 1 it is the policy itself; the meaning of any other is the policy's own.
        """

    def score(self, inputs: ArrayInputs, names: Sequence[str]) -> dict[str, Tensor]:
        """Score the actions of `inputs` under the distributions of their observations."""
        observation_btd = inputs.observation_btd.to(self.device, self.dtype)
        present_bt = inputs.present_bt().to(self.device)
        seen_nd, action_n = observation_btd[present_bt], inputs.action_bt.to(self.device)[present_bt]
        found: dict[str, Tensor] = {}
        if LOG_PROB in names or ENTROPY in names:
            distribution = self.distribution(seen_nd, self.temperature)
            taken_n = action_n.to(self.dtype) if action_n.is_floating_point() else action_n
            found = {LOG_PROB: distribution.log_prob(taken_n)}
            found |= {ENTROPY: distribution.entropy()} if ENTROPY in names else {}
        if VALUE in names and self.critic is not None:
            found[VALUE] = self.critic(seen_nd)[:, 0]
        return {name: _spread(x, present_bt) for name, x in found.items()}

    @torch.no_grad()
    def act(
        self, observation_rd: Tensor, seeds: Sequence[int], temperatures: Sequence[float], *, greedy: bool = False
    ) -> SampledTurn:
        """Sample one action for each of R observations, each with a seed of its own; `greedy`: the likeliest one."""
        seen_rd = observation_rd.to(self.device, self.dtype)
        found = [self.distribution(seen_rd, temperature) for temperature in dict.fromkeys(temperatures)]
        which_r = [list(dict.fromkeys(temperatures)).index(temperature) for temperature in temperatures]
        actions: list[Tensor] = []
        logp, entropy = [], []
        for distribution in found:
            sampled = self.sample(distribution, seeds, greedy=greedy)
            actions.append(sampled.cpu())
            logp.append(distribution.log_prob(sampled).cpu())
            entropy.append(distribution.entropy().cpu())
        rows = list(enumerate(which_r))
        kind = self.score_dtype
        return SampledTurn(
            [_plain(actions[which][row]) for row, which in rows],
            torch.stack([logp[which][row] for row, which in rows]).to(kind),
            torch.stack([entropy[which][row] for row, which in rows]).to(kind),
        )

    def sample(self, distribution: Distribution, seeds: Sequence[int], *, greedy: bool) -> Tensor:
        """Return one action per row of `distribution`, a function of its row and its seed alone.

        Raises:
            InputError: a distribution that is neither categorical nor normal; a subclass with another one samples
            itself.
        """
        if isinstance(distribution, Categorical):
            return _categories(distribution, seeds, greedy)
        normal = distribution.base_dist if isinstance(distribution, Independent) else distribution
        if isinstance(normal, Normal):
            noise = [np.random.default_rng(seed).standard_normal(normal.mean.shape[1:]) for seed in seeds]
            noise_ra = torch.as_tensor(np.stack(noise)).to(normal.mean) * (0.0 if greedy else 1.0)
            return normal.mean + normal.stddev * noise_ra
        raise InputError(
            f"{type(self).__name__} acts by {type(distribution).__name__}",
            "actions are sampled from Categorical and Normal ones, seed by seed",
            "Write its method sample(distribution, seeds, greedy=…)",
        )


def _categories(distribution: Categorical, seeds: Sequence[int], greedy: bool) -> Tensor:
    """Invert the distribution function, so that a sample depends on its own row and seed alone."""
    probs_ra = distribution.probs
    if greedy:
        return probs_ra.argmax(-1)
    uniform_r = torch.tensor([np.random.default_rng(seed).random() for seed in seeds], dtype=torch.float64)
    below_ra = probs_ra.double().cpu().cumsum(-1)
    chosen_r = torch.searchsorted(below_ra, (uniform_r * below_ra[:, -1])[:, None], right=True)[:, 0]
    return chosen_r.clamp_max(probs_ra.shape[-1] - 1).to(probs_ra.device)


def _plain(action: Tensor) -> int | np.ndarray:
    return int(action) if action.dim() == 0 else action.to(torch.float32).numpy()


def _spread(values_n: Tensor, present_bt: Tensor) -> Tensor:
    """Lay values [N] of the present positions out as [B,T]."""
    return values_n.new_zeros(present_bt.shape).masked_scatter(present_bt, values_n)
