"""Losses in a team's latent space: what follows for the whole team, and what follows for an agent by itself."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.lines import SPLIT
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.papers.foresight import Foresight
from grouprl.algorithms.regularize.regularize import Regularizer
from grouprl.algorithms.reward_transform.turn_ends import at_turn_ends
from grouprl.algorithms.turn_returns import has_turn
from grouprl.core.batch import Batch
from grouprl.core.metric import Metric
from grouprl.core.numbers import NonNegative
from grouprl.core.outputs import AHEAD_ERROR, FORESEEN_REWARD, LATENT_ERROR, MASKED_ERROR


@part("regularize")
class TeamDynamics(Regularizer):
    """w_1 times three squared errors: of the next latent, of the reward, and of an observation as others know it.

    The policy foresees an agent's next latent and reward from the latents and actions of the whole team, and
    reconstructs the observation of each agent, masked, from the others' latents (multi-agent transition dynamics
    reconstruction of MAPO-LSO, arXiv:2406.02890, of which only the abstract was read: the form of the errors and their
    equal weights are ours).
    """

    log_probs: ClassVar[bool] = False
    metrics: ClassVar = {
        LATENT_ERROR: Metric(
            words="mean squared error of an agent's next latent, foreseen from those of the team",
            good="falls; at once 0 means that all latents have become alike",
        ),
        MASKED_ERROR: Metric(
            words="mean squared error of an agent's observation, read from the others' latents",
            good="falls as far as others know of it; its unit is that of observations",
        ),
        "reward_error": Metric(
            words="squared error of the reward that is foreseen from the team's latents",
            good="falls as far as chance allows; its unit is the square of the reward's",
        ),
    }
    coef: NonNegative = 1.0
    says = "{coef:g} times the squared errors of next latents, of rewards and of masked observations of the team"
    equation = "+ {coef:g}·[mean (ẑ_{{t+1}} - z⁻_{{t+1}})² + (r′_t - r_t)² + mean (ô_t - o_t)²]"
    reads = ("turn_bt", "turn_reward_bs")
    asks = (LATENT_ERROR, MASKED_ERROR, FORESEEN_REWARD)
    plain = "\n".join(
        [
            *SPLIT,
            "ends_bt = ends_of_turns(turn_bt, mask_bt, there_bs.shape[1])",
            "earned_bt = to_tokens(paid_bs, turn_bt, mask_bt) * ends_bt",
            "missed_bt = stats['latent_error'] + stats['masked_error'] + (stats['foreseen_reward'] - earned_bt) ** 2",
            "loss = loss + {coef!r} * (weight_bt * torch.where(active_bt, missed_bt, 0)).sum()",
        ]
    )
    idle_at = ("coef", 0, "{name} has no effect: its coefficient is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch, entropy_bt: Tensor | None = None) -> TokenLoss:
        """Return w_1·(the sum of the errors) of each action, with gradient in the outputs."""
        latent_bt, masked_bt, foreseen_bt = (batch.need(f"stats.{name}", self.name) for name in self.asks)
        reward_bs = batch.need("turn_reward_bs", self.name).to(foreseen_bt.dtype)
        earned_bt = at_turn_ends(reward_bs, batch, has_turn(batch, reward_bs.shape[1], self.name), self.name)
        errors = {LATENT_ERROR: latent_bt, MASKED_ERROR: masked_bt, "reward_error": (foreseen_bt - earned_bt).square()}
        errors = {name: torch.where(batch.active_bt, error_bt, 0) for name, error_bt in errors.items()}
        return TokenLoss(self.coef * torch.stack(list(errors.values())).sum(0), errors)


@part("regularize")
class SelfPrediction(Foresight):
    """w_2 times the error of an agent's own next latents, foreseen from its latent and actions (MAPO-LSO).

    Targets are those of a moving average of the encoder, without a gradient. Source: arXiv:2406.02890, of which only
    the abstract was read; the form of the error is BYOL's (arXiv:2006.07733).
    """

    metrics: ClassVar = {
        AHEAD_ERROR: Metric(
            words="2 - 2·cosine between an agent's latents of the next steps and those foreseen",
            good="falls from about 2; near 0 from the first step on, latents have become alike",
        ),
    }
    coef: NonNegative = 1.0
    asks = (AHEAD_ERROR,)
    says = "{coef:g} times the distance of the next latents that an agent foresees of itself"
    equation = "+ {coef:g}·mean_j (2 - 2·cos(ẑ_{{t+j}}, z⁻_{{t+j}}))"
    plain = "loss = loss + {coef!r} * (weight_bt * torch.where(active_bt, stats['ahead_error'], 0)).sum()"
