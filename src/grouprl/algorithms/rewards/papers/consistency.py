"""Groups compared by how far their final answers agree: a second advantage between prompts, and a scale within."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantages.normalize import Normalize
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objectives.adaptive_clip import Dual
from grouprl.algorithms.objectives.objective import OLD_CLIP, Bound, LowBound, Objective, clip_metrics, idle_ratio
from grouprl.algorithms.objectives.ratio import log_ratio, symbol
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.rewards.shaping import RewardTransform
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.renamed import note_renamed

Eps = Annotated[float, Field(ge=0)]


def completion_entropy(batch: Batch) -> Tensor:
    """[B] entropy in nats of the frequencies of the final answers (`keys.answer`) in each group."""
    counted_b = batch.stats_b.to(batch.dtype)
    same_b = levels.count(levels.cross(batch.group_b, batch.need("keys.answer", "the entropy of answers")), counted_b)
    share_b = same_b / levels.count(batch.group_b, counted_b).clamp(min=1)
    surprise_b = -share_b.clamp(min=1e-12).log().to(batch.dtype)
    return levels.mean(surprise_b, batch.group_b, counted_b).clamp(min=0)


@part("reward_transform")
class PromptAdvantage(RewardTransform):
    """Judge each prompt against the others, and say how much that counts (COPO, arXiv:2508.04138).

    A_q = (mean_g R - mean over prompts)/(std over prompts + eps). `blend="entropy"`: a group counts by its own
    completions with w = sigmoid(γ(H - ρ)), H the entropy of its final answers, and by A_q with 1 - w.
    `blend="dead"`: by A_q where the group's rewards do not differ, elsewhere by its own completions. Rewards stay as
    they are; `rewards` gets 'prompt' = (1 - w)·A_q and 'local' = w, which the objective `two_level_clip` reads.
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

    def _local(self, batch: Batch, counted_b: Tensor) -> Tensor:
        """[B] weight of a group's own comparison."""
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
        return f"A_q = (mean_g R - mean_q)/std_q;  w = σ({self.gamma:g}(H(completions) - {self.rho:g}))"

    def idle(self, run: RunFacts) -> list[str]:
        """One prompt has none to be compared with."""
        if run.prompts == 1:
            return ["prompt_advantage is 0: it compares prompts. Use batch.prompts of 2 or more"]
        return []


@part("objective")
class TwoLevelClip(Objective):
    """w·PPO clip of the group's advantage plus PPO clip of the prompt's (COPO); `prompt_advantage` gives both.

    Two losses and not one: where the two advantages differ in sign, each is clipped on its own side.
    """

    clip_low: LowBound = 0.2
    clip_high: Bound = 0.2
    dual_clip: Dual = None
    renamed: ClassVar[Mapping[str, str]] = OLD_CLIP
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """w·ℓ(A) + ℓ((1-w)·A_q), ℓ(A) = max(-Aρ, -A clip(ρ))."""
        ratio_bt = log_ratio(logp_bt, batch).exp()
        own_bt, prompt_bt = self.advantages(batch)
        loss_bt = self._clipped(ratio_bt, own_bt) + self._clipped(ratio_bt, prompt_bt)
        return TokenLoss(
            loss_bt, clip_metrics(ratio_bt, own_bt + prompt_bt, 1 - self.clip_low, 1 + self.clip_high, self.dual_clip)
        )

    def advantages(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """[B,T] weighted advantages: of the completion in its group, of the prompt among all."""
        own_bt = batch.need("rewards.local", self.name)[:, None] * batch.need("advantage_bt", self.name)
        if "question" in batch.rewards and "prompt" not in batch.rewards:
            note_renamed("rewards.question", "rewards.prompt")
            return own_bt, batch.rewards["question"][:, None] * batch.active_bt
        return own_bt, batch.need("rewards.prompt", self.name)[:, None] * batch.active_bt

    def _clipped(self, ratio_bt: Tensor, adv_bt: Tensor) -> Tensor:
        loss_bt = torch.maximum(-adv_bt * ratio_bt, -adv_bt * ratio_bt.clamp(1 - self.clip_low, 1 + self.clip_high))
        if self.dual_clip is not None:
            loss_bt = torch.where(adv_bt < 0, torch.minimum(loss_bt, -adv_bt * self.dual_clip), loss_bt)
        return loss_bt

    def zero_rows(self, batch: Batch) -> Tensor:
        """[B] bool: rows with neither advantage."""
        own_bt, prompt_bt = self.advantages(batch)
        return ~((own_bt != 0) | (prompt_bt != 0)).any(1)

    @override
    def words(self) -> str:
        return (
            "PPO clip of the completion's advantage in its group, plus that of its prompt's among all prompts: ratio "
            f"within [{1 - self.clip_low:g}, {1 + self.clip_high:g}]"
        )

    @override
    def formula(self) -> str:
        clip = f"ℓ(A) = -min(ρ·A, clip(ρ, {1 - self.clip_low:g}, {1 + self.clip_high:g})·A)"
        return f"w·ℓ(A) + (1-w)·ℓ(A_q),  {clip},  {symbol('token', 'old')}"

    def idle(self, run: RunFacts) -> list[str]:
        """A ratio that is always 1 cannot be clipped."""
        return idle_ratio(run, "old", "the two-level clip")


@part("advantage_transform")
class SemanticScale(Normalize):
    """Scale a group's advantages down by the entropy of its final answers' likelihoods (SEED-GRPO,
    arXiv:2505.12346).

    P_k ∝ Σ_{i in k} exp(mean_t log π_behavior(y_i,t)) over the completions with the final answer k (`keys.answer`);
    SE = -Σ_k P_k log P_k, at most log G. With x = α·SE/log G (`normalized`) or α·SE: A times 1/(1 + x), max(1 - x, 0)
    or exp(-x).
    """

    alpha: Annotated[float, Field(ge=0)] = 0.0417
    curve: Literal["inverse", "linear", "exp"] = "inverse"
    normalized: bool = True
    reads = ("keys.answer", "behavior_bt")

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """A·f(SE)."""
        entropy_b = self.semantic_entropy(batch)
        if self.normalized:
            size_b = levels.count(batch.group_b, batch.stats_b, batch.dtype)
            entropy_b = entropy_b / torch.where(size_b > 1, size_b.clamp(min=2).log(), 1)
        x_b = self.alpha * entropy_b
        factor_b = {"inverse": 1 / (1 + x_b), "linear": (1 - x_b).clamp(min=0), "exp": (-x_b).exp()}[self.curve]
        return adv_bt * factor_b[:, None]

    def semantic_entropy(self, batch: Batch) -> Tensor:
        """[B] semantic entropy of each row's group, in nats."""
        counted_b = (batch.stats_b & (batch.length_b > 0)).to(batch.dtype)
        log_bt = torch.where(batch.mask_bt, batch.need("behavior_bt", self.name), 0)
        log_b = log_bt.sum(1) / batch.length_b.clamp(min=1)
        mass_b = (log_b - levels.extreme(log_b, batch.group_b, counted_b, largest=True)).exp() * counted_b
        share_b = mass_b / levels.total(mass_b, batch.group_b).clamp(min=1e-30)
        cluster_b = levels.total(share_b, levels.cross(batch.group_b, batch.need("keys.answer", self.name)))
        return -levels.total(share_b * cluster_b.clamp(1e-30, 1).log(), batch.group_b)

    @override
    def words(self) -> str:
        of = "relative to its maximum" if self.normalized else "in nats"
        return (
            "scale advantages down where the group's likely completions disagree: "
            f"{self.curve} in {self.alpha:g} times their entropy {of}"
        )

    @override
    def formula(self) -> str:
        factor = {"inverse": "1/(1+x)", "linear": "max(1-x, 0)", "exp": "e^(-x)"}[self.curve]
        return f"A ← A · {factor},  x = {self.alpha:g}·SE{'/log G' if self.normalized else ''}"

    def idle(self, run: RunFacts) -> list[str]:
        """No scale."""
        return ["semantic_scale has no effect: alpha is 0"] if self.alpha == 0 else []
