"""The target of a value learner: the reward of an action, and the best value that can follow it."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.advantage.returns import token_rewards
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Share

STAT = "best_after"


@part("advantage")
class BestNext(Advantage):
    """y_t = r_t + γ·Q⁻(s_{t+1}, best action), and r_t alone where the episode ends (Q-learning, Watkins 1989).

    Q⁻ is the policy's follower of its own values (`stats.best_after`). Where a limit cut the episode Q⁻ counts, as the
    episode would continue. The result is not compared with anything: the objective `fitted_values` regresses on it.
    """

    gamma: Share = 0.99
    says = "the target is the reward and {gamma:g} times the best value that follows, by values as they were"
    equation = "y_t = r_t + {gamma:g}·max_a Q⁻(s_{{t+1}}, a)"
    reads = (f"stats.{STAT}",)
    plain = (
        "last_bt = mask_bt & (mask_bt.flip(1).cumsum(1).flip(1) == 1)\n"
        "paid_bt = token_reward_bt + last_bt * reward_b[:, None]\n"
        "ends_bt = last_bt & ~truncated_b[:, None]\n"
        "adv_bt = paid_bt + {gamma!r} * torch.where(ends_bt, 0, stats['best_after'])"
    )

    def __call__(self, batch: Batch) -> Tensor:
        """Return y [B,T]."""
        last_bt = batch.last_token_bt()
        if batch.truncated_b is not None:
            last_bt = last_bt & ~batch.truncated_b[:, None]
        after_bt = torch.where(last_bt, 0, batch.need(f"stats.{STAT}", self.name))
        return token_rewards(batch) + self.gamma * after_bt
