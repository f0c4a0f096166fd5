"""Prompts in several wordings: one advantage over all of them, and one within each."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import GroupAdvantage
from grouprl.algorithms.lines import compared
from grouprl.algorithms.part import part
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("advantage")
class SharedVariants(GroupAdvantage):
    """Compare each completion with those to all variants of its prompt and to its own (Share-GRPO, arXiv:2505.16673).

    `group_b` is the prompt, `keys.variant` the variant whose prompt the row has, `keys.own` 1 where the completion was
    sampled under that prompt and 0 where it is paired with another variant's. A = A_prompt + w·A_variant on own
    rows, A_prompt on the others; both (R - mean)/(std + eps). Statistics count each completion once: own rows only.
    """

    local_weight: Annotated[float, Field(ge=0)] = 1.0
    scale: Literal["none", "sample_std", "population_std"] = "sample_std"
    eps: Annotated[float, Field(ge=0)] = 1e-6
    says = (
        "relative to the completions to all variants of the prompt, plus {local_weight:g} times among those to "
        "the completion's own variant"
    )
    reads = ("keys.variant", "keys.own")

    def __call__(self, batch: Batch) -> Tensor:
        """Return A_prompt + w·[own]·A_variant."""
        own_b = (batch.need("keys.own", self.name) > 0) & batch.stats_b
        prompt_b, variant_b = batch.group_b, batch.need("keys.variant", self.name)
        local_b = self._normalised(batch, levels.cross(prompt_b, variant_b), own_b)
        adv_b = self._normalised(batch, prompt_b, own_b) + self.local_weight * local_b * own_b
        return batch.broadcast(adv_b * batch.stats_b)

    @override
    def code(self) -> str:
        local = compared("reward_b", "variant_bb", self.scale, self.eps)
        return (
            'own_b = counts_b & (keys["own"] > 0)\n'
            "prompt_bb = same_bb & own_b\n"
            'variant_bb = prompt_bb & (keys["variant"][:, None] == keys["variant"])\n'
            f"local_b = {local} * own_b\n"
            f"adv_b = {compared('reward_b', 'prompt_bb', self.scale, self.eps)} + {self.local_weight!r} * local_b\n"
            "adv_bt = (adv_b * counts_b)[:, None] * mask_bt"
        )

    def _normalised(self, batch: Batch, id_b: Tensor, own_b: Tensor) -> Tensor:
        """Return [B] (R - mean)/(std + eps) with the statistics of the own rows of each segment; 0 where these are
        equal.
        """
        reward_b, weight_b = batch.total_reward_b, own_b.to(batch.dtype)
        centered_b = reward_b - levels.mean(reward_b, id_b, weight_b)
        if self.scale != "none":
            std_b = levels.std(reward_b, id_b, weight_b, sample=self.scale == "sample_std") + self.eps
            centered_b = centered_b / torch.where(std_b > 0, std_b, 1)
        return torch.where(levels.differs(reward_b, id_b, weight_b), centered_b, 0)

    @override
    def formula(self) -> str:
        std = "" if self.scale == "none" else f"/(std + {self.eps:g})"
        return f"A = (R - mean_g){std} + {self.local_weight:g}·[own]·(R - mean_{{g,variant}}){std}"
