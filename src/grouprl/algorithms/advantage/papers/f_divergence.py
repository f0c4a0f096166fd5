"""Advantages that pull the policy to a target distribution under an f-divergence: f-DPG."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.losses import counted
from grouprl.algorithms.objective.ratio import LOG_LIMIT
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive

Divergence = Literal["forward_kl", "reverse_kl", "js", "total_variation", "chi2"]
SLOPES = {
    "forward_kl": "-1/t",
    "reverse_kl": "log t + 1",
    "js": "log 2 - log(1 + 1/t)",
    "total_variation": "sign(t - 1)/2",
    "chi2": "1 - 1/t²",
}

PLAIN = {
    "forward_kl": "(-log_b).exp()",
    "reverse_kl": "-log_b - 1",
    "js": "-math.log(2) - torch.nn.functional.logsigmoid(log_b)",
    "total_variation": "-log_b.sign() / 2",
    "chi2": "(-2 * log_b).exp() - 1",
}
"""-f'(t) in plain torch."""


@part("advantage")
class TargetDivergence(Advantage):
    """-f'(t) less its mean over the group, t = π/p with the target p = π_ref·exp(R/β)/Z (f-DPG, arXiv:2302.08215).

    Z is the mean of π_ref·exp(R/β)/π over the group's completions, which the policy sampled. log t is held within ±20.
    """

    beta: Positive = 1.0
    divergence: Divergence = "js"
    reads = ("old_bt", "ref_bt")
    own_samples = "Z is the size of the target, and the gradient is that of the divergence from it"
    only_own_samples = True

    def __call__(self, batch: Batch) -> Tensor:
        """Return the centred pseudo-reward of each row at its tokens."""
        old_bt, ref_bt = batch.need("old_bt", self.name), batch.need("ref_bt", self.name)
        counts_b = counted(batch)
        log_b = torch.where(batch.mask_bt, old_bt - ref_bt, 0).sum(1) - batch.total_reward_b / self.beta
        least_b = levels.extreme(log_b, batch.group_b, counts_b, largest=False)
        weight_b = torch.where(counts_b > 0, (least_b - log_b).clamp(max=0).exp(), 0)
        log_z_b = levels.mean(weight_b, batch.group_b, counts_b).clamp(min=1e-30).log() - least_b
        pseudo_b = -slope((log_b + log_z_b).clamp(-LOG_LIMIT, LOG_LIMIT), self.divergence)
        mean_b = levels.mean(pseudo_b, batch.group_b, counts_b)
        return batch.broadcast(torch.where(counts_b > 0, pseudo_b - mean_b, 0))

    def words(self) -> str:
        """Say to what the policy is pulled."""
        name = self.divergence.replace("_", " ")
        return f"how far below its share of the reference tilted by the reward a completion is, under {name}"

    def formula(self) -> str:
        """Return the formula."""
        return f"A = -f'(t) - mean_g,  f'(t) = {SLOPES[self.divergence]},  t = π/p,  p = π_ref·e^(R/{self.beta:g})/Z"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return f"""known_bb = same_bb & active_bt.any(1)
log_b = torch.where(mask_bt, old_bt - ref_bt, 0).sum(1) - reward_b / {self.beta!r}
total_b = torch.where(known_bb, -log_b, -torch.inf).logsumexp(1)
log_b = (log_b + total_b - known_bb.sum(1, dtype=log_b.dtype).clamp(min=1).log()).clamp({-LOG_LIMIT!r}, {LOG_LIMIT!r})
pseudo_b = {PLAIN[self.divergence]}
adv_b = torch.where(counts_b & active_bt.any(1), pseudo_b - mean(pseudo_b, known_bb), 0)
adv_bt = adv_b[:, None] * mask_bt"""

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model, and groups of one completion."""
        lone = ["target_divergence compares completions of one prompt. Use batch.group_size of 2 or more"]
        missing = ["target_divergence tilts a reference model. Set model.reference: initial"]
        return [*([] if run.has_reference else missing), *(lone if run.group_size == 1 else [])]


def slope(log_b: Tensor, divergence: Divergence) -> Tensor:
    """Return f'(t) from log t, [B]."""
    if divergence == "forward_kl":
        return -(-log_b).exp()
    if divergence == "reverse_kl":
        return log_b + 1
    if divergence == "js":
        return math.log(2) - softplus(-log_b)
    if divergence == "total_variation":
        return log_b.sign() / 2
    return 1 - (-2 * log_b).exp()
