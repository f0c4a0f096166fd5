"""A second advantage: prompts compared with each other, weighted by how far the answers of their
groups agree (COPO).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core import levels
from grouprl.core.batch import Batch

Eps = Annotated[float, Field(ge=0)]


def completion_entropy(batch: Batch) -> Tensor:
    """Return [B] entropy in nats of the frequencies of the final answers (`keys.answer`) in each group."""
    counted_b = batch.stats_b.to(batch.dtype)
    same_b = levels.count(levels.cross(batch.group_b, batch.need("keys.answer", "the entropy of answers")), counted_b)
    share_b = same_b / levels.count(batch.group_b, counted_b).clamp(min=1)
    surprise_b = -share_b.clamp(min=1e-12).log().to(batch.dtype)
    return levels.mean(surprise_b, batch.group_b, counted_b).clamp(min=0)


@part("reward_transform")
class PromptAdvantage(RewardTransform):
    """Judge each prompt against the others, and weigh that judgement (COPO, arXiv:2508.04138).

    A_q = (mean_g R - mean over prompts)/(std over prompts + eps). `blend="entropy"`: the comparison within the group
    has weight w = sigmoid(γ(H - ρ)), H the entropy of its final answers, and A_q has weight 1 - w. `blend="dead"`: A_q
    counts where the group's rewards do not differ, elsewhere the comparison within the group. Rewards stay as they are;
    `rewards` gets 'prompt' = (1 - w)·A_q and 'local' = w, which the objective `two_level_clip` reads.
    """

    gamma: Annotated[float, Field(gt=0)] = 20.0
    rho: float = 1.5
    blend: Literal["entropy", "dead"] = "entropy"
    eps: Eps = 1e-6

    def __call__(self, batch: Batch) -> Batch:
        """Write rewards['prompt'] and rewards['local']."""
        counted_b = batch.stats_b.to(batch.dtype)
        local_b = self._local(batch, counted_b)
        mean_b = levels.mean(batch.total_reward_b, batch.group_b, counted_b)
        once_b = counted_b / levels.count(batch.group_b, counted_b, batch.dtype).clamp(min=1)
        whole_b = torch.zeros_like(batch.group_b)
        spread_b = levels.std(mean_b, whole_b, once_b, sample=True)
        flat_b = spread_b <= 1e-6 * mean_b.abs().amax()
        normalised_b = torch.where(flat_b, 0, (mean_b - levels.mean(mean_b, whole_b, once_b)) / (spread_b + self.eps))
        prompt_b = torch.where(batch.stats_b, (1 - local_b) * normalised_b, 0)
        return batch.replace(rewards={**batch.rewards, "prompt": prompt_b, "local": local_b})

    @override
    def code(self) -> str:
        entropy = (
            'answer_bb = same_bb & (keys["answer"][:, None] == keys["answer"])\n'
            "answer_b = answer_bb.sum(1).to(reward_b.dtype) / same_bb.sum(1).clamp(min=1)\n"
            "entropy_b = mean(-answer_b.clamp(min=1e-12).log(), same_bb).clamp(min=0)\n"
            f"local_b = torch.sigmoid({self.gamma!r} * (entropy_b - {self.rho!r}))"
        )
        local = entropy if self.blend == "entropy" else "local_b = differs(reward_b, same_bb).to(reward_b.dtype)"
        return (
            f"{local}\n"
            "mean_b = mean(reward_b, same_bb)\n"
            "once_b = counts_b.to(reward_b.dtype) / same_bb.sum(1).clamp(min=1)  # each prompt counts once\n"
            "once_bb = once_b.expand(len(once_b), -1)\n"
            "std_b = spread(mean_b, once_bb)\n"
            f"prompt_b = (mean_b - mean(mean_b, once_bb)) / (std_b + {self.eps!r})\n"
            "prompt_b = torch.where(std_b <= 1e-6 * mean_b.abs().amax(), 0, (1 - local_b) * prompt_b) * counts_b"
        )

    def _local(self, batch: Batch, counted_b: Tensor) -> Tensor:
        """Return [B] weight of a group's own comparison."""
        if self.blend == "dead":
            return levels.differs(batch.total_reward_b, batch.group_b, counted_b).to(batch.dtype)
        return torch.sigmoid(self.gamma * (completion_entropy(batch) - self.rho))

    @override
    def needs(self) -> tuple[str, ...]:
        return ("keys.answer",) if self.blend == "entropy" else ()

    @override
    def words(self) -> str:
        if self.blend == "dead":
            return "prompts whose completions all got the same reward are judged against the other prompts"
        return (
            "prompts are also compared with each other, and the more their final answers agree (entropy below "
            f"{self.rho:g}), the more that counts"
        )

    @override
    def formula(self) -> str:
        if self.blend == "dead":
            return "A_q = (mean_g R - mean_q)/std_q;  w = [rewards of the group differ]"
        return f"A_q = (mean_g R - mean_q)/std_q;  w = σ({self.gamma:g}(H(answers) - {self.rho:g}))"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if a step has one prompt."""
        if run.prompts == 1:
            return ["prompt_advantage is 0: it compares prompts. Use batch.prompts of 2 or more"]
        return []
