"""The layers that turn states of judged texts into a belief about a user, and a state and a user into a score (VPL)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SLOPE = 0.2
LIMIT = 1.0
"""Bound of the means and of the logarithms of the variances."""


@dataclass(frozen=True)
class UserSizes:
    """Widths of a user's vector and of hidden layers, and the share of the belief's spread that training draws."""

    latent: int
    hidden: int
    noise: float = 1.0


class UserLayers(nn.Module):
    """Variational layers over users (VPL, arXiv:2408.10075).

    A judgement, [e(better); e(worse)], goes through three layers; the judgements of a user attend to each other, and
    their mean gives means and log-variances of the user's latent vector z. Another three layers turn [e(y); z] into a
    score. The arguments are the width of a state, of z and of hidden layers; weights are drawn from `seed`.
    """

    def __init__(self, states: int, latent: int, hidden: int, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.judged = _three_layers(2 * states, hidden, latent)
            self.query, self.key, self.value = (nn.Linear(latent, latent) for _ in range(3))
            self.mean, self.log_variance = nn.Linear(latent, latent), nn.Linear(latent, latent)
            self.score = _three_layers(states + latent, hidden, 1)

    def belief(self, better_nh: Tensor, worse_nh: Tensor, user_n: Tensor, users: int) -> tuple[Tensor, Tensor]:
        """Return ([U,Z] means, [U,Z] log-variances) of the users' vectors, both within ±1.

        Args:
            better_nh: the state of the better text of each judgement.
            worse_nh: that of the worse one.
            user_n: [N] the user of each judgement, a number below `users`.
            users: U; a user without judgements has the prior, means and log-variances of 0.
        """
        judged_nz = self.judged(torch.cat([better_nh, worse_nh], dim=1))
        weight_nn = self.query(judged_nz) @ self.key(judged_nz).T / math.sqrt(judged_nz.shape[1])
        weight_nn = weight_nn.masked_fill(user_n[:, None] != user_n, -torch.inf).softmax(1)
        count_u = torch.bincount(user_n, minlength=users).to(judged_nz)
        sum_uz = judged_nz.new_zeros(users, judged_nz.shape[1]).index_add(0, user_n, weight_nn @ self.value(judged_nz))
        pooled_uz, known_u1 = sum_uz / count_u.clamp(min=1)[:, None], (count_u > 0)[:, None]
        found = (layer(pooled_uz).clamp(-LIMIT, LIMIT) for layer in (self.mean, self.log_variance))
        mean_uz, log_variance_uz = (torch.where(known_u1, x, 0) for x in found)
        return mean_uz, log_variance_uz

    def scores(self, state_bh: Tensor, vector_bz: Tensor) -> Tensor:
        """Return the score of each text for its user's vector, [B]; vectors are made √Z long."""
        unit_bz = F.normalize(vector_bz, dim=1) * math.sqrt(vector_bz.shape[1])
        score_b: Tensor = self.score(torch.cat([state_bh, unit_bz], dim=1))[:, 0]
        return score_b


def kl_from_prior(mean_uz: Tensor, log_variance_uz: Tensor) -> Tensor:
    """Return KL(N(mean, variance) || N(0, 1)) of each user's vector, [U]."""
    return 0.5 * (mean_uz.square() + log_variance_uz.exp() - 1 - log_variance_uz).sum(1)


def _three_layers(into: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(into, hidden),
        nn.LeakyReLU(SLOPE),
        nn.Linear(hidden, hidden),
        nn.LeakyReLU(SLOPE),
        nn.Linear(hidden, out),
    )
