"""Distributions of bounded actions, and of actions with several likely places: squashed and mixed normals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal, kl_divergence, register_kl
from torch.nn import functional as F

EDGE = 1e-6
"""Distance from the bounds, as a share of the box, within which an action is read as being that far away."""
NODES = 32


class SquashedNormal(Distribution):
    """a = low + (high - low)·(tanh(u) + 1)/2 with u ~ N(mean, std²), independent in each of A dimensions.

    log p(a) = Σ log N(u) - log((high - low)/2·(1 - tanh²u)), the Jacobian of the squashing included. The entropy is
    that of the normal plus E[log of the Jacobian], by Gauss-Hermite quadrature.

    Args:
        mean_na: means [N,A] before squashing.
        std_na: deviations [N,A] or [A].
        low_a: lower bounds [A], finite.
        high_a: upper bounds [A], finite.
    """

    arg_constraints = {}  # noqa: RUF012  the name is torch's

    def __init__(self, mean_na: Tensor, std_na: Tensor, low_a: Tensor, high_a: Tensor) -> None:
        self.base = Normal(mean_na, std_na.expand_as(mean_na), validate_args=False)
        self.low_a, self.half_a = low_a, (high_a - low_a) / 2
        super().__init__(mean_na.shape[:-1], mean_na.shape[-1:], validate_args=False)

    @property
    def mode(self) -> Tensor:
        """The squashed mean [N,A], which is the median."""
        return self.squashed(self.base.mean)

    def squashed(self, before_na: Tensor) -> Tensor:
        """Return the actions [N,A] of numbers before squashing."""
        return self.low_a + self.half_a * (torch.tanh(before_na) + 1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-prob [N] of actions [N,A]."""
        return self.log_prob_before(self.before(value))

    def before(self, value: Tensor) -> Tensor:
        """Return the numbers [N,A] that are squashed into actions, at most ±7.25."""
        return torch.atanh(((value - self.low_a) / self.half_a - 1).clamp(-1 + EDGE, 1 - EDGE))

    def log_prob_before(self, before_na: Tensor) -> Tensor:
        """Return the log-prob [N] of the actions that numbers [N,A] are squashed into."""
        return (self.base.log_prob(before_na) - self._log_slope(before_na)).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy [N] in nats, which may be negative."""
        node_k, weight_k = (torch.as_tensor(x).to(self.base.mean) for x in np.polynomial.hermite_e.hermegauss(NODES))
        at_kna = self.base.mean + self.base.stddev * node_k[:, None, None]
        slope_na = ((weight_k / weight_k.sum())[:, None, None] * self._log_slope(at_kna)).sum(0)
        return (self.base.entropy() + slope_na).sum(-1)

    def _log_slope(self, before: Tensor) -> Tensor:
        """Return log((high - low)/2·(1 - tanh²u)), in a form that is exact for large |u|."""
        return self.half_a.log() + 2 * (math.log(2) - before - F.softplus(-2 * before))


@register_kl(SquashedNormal, SquashedNormal)
def _kl_before_squashing(before: SquashedNormal, after: SquashedNormal) -> Tensor:
    """Return the divergence before squashing, which squashing into the same bounds does not change."""
    return kl_divergence(before.base, after.base).sum(-1)


class MixtureOfNormals(Distribution):
    """p(a) = Σ_k w_k N(a; mean_k, std_k²), K components with independent dimensions (PMOE, arXiv:2104.09122).

    The entropy is the pairwise bound of Kolchinsky & Tracey (2017, arXiv:1706.02419) with the KL divergence:
    Σ w_k H_k - Σ_k w_k log Σ_j w_j exp(-KL(k‖j)). It is exact for one component, for equal components and for
    components far apart, and lies above the entropy in between.

    Args:
        logits_nk: logits [N,K] of the weights.
        mean_nka: means [N,K,A].
        std_nka: deviations, broadcast to [N,K,A].
    """

    arg_constraints = {}  # noqa: RUF012  the name is torch's

    def __init__(self, logits_nk: Tensor, mean_nka: Tensor, std_nka: Tensor) -> None:
        self.which = Categorical(logits=logits_nk, validate_args=False)
        self.parts = Independent(Normal(mean_nka, std_nka.expand_as(mean_nka), validate_args=False), 1)
        super().__init__(logits_nk.shape[:-1], mean_nka.shape[-1:], validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-prob [N] of actions [N,A]."""
        return torch.logsumexp(self.which.logits + self.parts.log_prob(value[:, None]), -1)

    def entropy(self) -> Tensor:
        """Return an upper bound [N] of the entropy in nats."""
        mean_nka, var_nka = self.parts.base_dist.mean, self.parts.base_dist.variance
        gap_nkja = (mean_nka[:, :, None] - mean_nka[:, None]).square()
        ratio_nkja = var_nka[:, :, None] / var_nka[:, None]
        kl_nkj = 0.5 * (ratio_nkja - 1 - ratio_nkja.log() + gap_nkja / var_nka[:, None]).sum(-1)
        overlap_nk = torch.logsumexp(self.which.logits[:, None] - kl_nkj, -1)
        return (self.which.probs * (self.parts.entropy() - overlap_nk)).sum(-1)

    def placed(self, which_n: Tensor, noise_na: Tensor) -> Tensor:
        """Return actions [N,A] of the components `which_n`, from standard normal noise."""
        rows_n = torch.arange(len(which_n), device=which_n.device)
        base = self.parts.base_dist
        return base.mean[rows_n, which_n] + base.stddev[rows_n, which_n] * noise_na


def normal_noise(seeds: Sequence[int], size: int, like: Tensor) -> Tensor:
    """Return standard normal noise [N,size]; that of a row depends only on its seed.

    It comes from a different stream than the numbers with which a component is chosen.
    """
    found = [np.random.default_rng((seed, 2)).standard_normal(size) for seed in seeds]
    return torch.as_tensor(np.stack(found)).to(like)
