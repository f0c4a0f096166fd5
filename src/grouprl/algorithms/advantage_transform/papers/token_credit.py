"""Credit for single tokens, from comparing the completions of a group token by token."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("advantage_transform")
class SharedEnds(AdvantageTransform):
    """Spare the tokens that good and bad completions share at their beginning and end (GTPO, arXiv:2508.03772).

    A token is in conflict where the same token stands at the same position of a good and a bad completion of its group,
    counted from the left for an unbroken common prefix and from the right for a suffix. Conflicts multiply A by
    `positive` (good completions) or `negative` (bad ones), once for each end. With `spread` a completion's advantage is
    divided by its number of conflict tokens. First, A loses `entropy_coef` times the completion's mean entropy, and a
    completion of more than `entropy_limit` nats per token gets advantage 0.
    """

    positive: NonNegative = 2.0
    negative: NonNegative = 0.0
    spread: bool = True
    entropy_coef: NonNegative = 0.1
    entropy_limit: Annotated[float, Field(gt=0)] | None = 0.7

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return [H ≤ limit]·(A - coef·H)·δ_prefix·δ_suffix / max(1, #conflicts)."""
        active_bt, sign_bt = batch.active_bt, torch.where(batch.active_bt, adv_bt, 0).sign()
        prefix_bt, suffix_bt = (self._conflicts(batch, sign_bt, reverse) for reverse in (False, True))
        factor_bt = torch.ones_like(adv_bt)
        for conflict_bt in (prefix_bt, suffix_bt):
            both_bt = torch.full_like(adv_bt, self.negative).masked_fill(sign_bt > 0, self.positive)
            factor_bt = torch.where(conflict_bt, factor_bt * both_bt, factor_bt)
        if self.spread:
            factor_bt = factor_bt / (prefix_bt | suffix_bt).sum(1, keepdim=True).clamp(min=1)
        return torch.where(active_bt, self._calmed(adv_bt, batch) * factor_bt, 0)

    @override
    def code(self) -> str:
        calm = []
        if self.entropy_coef or self.entropy_limit is not None:
            calm = [
                "h_b1 = torch.where(active_bt, old_entropy_bt, 0).sum(1, keepdim=True)",
                "h_b1 = h_b1 / active_bt.sum(1, keepdim=True).clamp(min=1)",
                f"adv_bt = adv_bt - {self.entropy_coef!r} * h_b1",
            ]
        if self.entropy_limit is not None:
            calm.append(f"adv_bt = torch.where(h_b1 <= {self.entropy_limit!r}, adv_bt, 0)")
        each = ["factor_bt = factor_bt / (start_bt | end_bt).sum(1, keepdim=True).clamp(min=1)"] if self.spread else []
        return "\n".join(
            [
                "sign_bt = torch.where(active_bt, adv_bt, 0).sign()",
                "start_bt = shared_start(token_bt, sign_bt, active_bt, group_b)",
                "end_bt = shared_start(token_bt.flip(1), sign_bt.flip(1), active_bt.flip(1), group_b).flip(1)",
                f"spared_bt = torch.full_like(adv_bt, {self.negative!r}).masked_fill(sign_bt > 0, {self.positive!r})",
                "factor_bt = torch.where(start_bt, spared_bt, 1) * torch.where(end_bt, spared_bt, 1)",
                *each,
                *calm,
                "adv_bt = torch.where(active_bt, adv_bt * factor_bt, 0)",
            ]
        )

    def _conflicts(self, batch: Batch, sign_bt: Tensor, reverse: bool) -> Tensor:
        """Return [B,T] bool: tokens of the common prefix (or suffix) of good and bad completions."""
        active_bt = batch.active_bt
        place_bt = (active_bt.flip(1).cumsum(1).flip(1) if reverse else active_bt.cumsum(1)) - 1
        token_n = batch.need("token_bt", self.name)[active_bt]
        spot_bt = levels.compact(batch.group_b)[0][:, None] * active_bt.shape[1] + place_bt
        kinds = int(token_n.max()) + 1 if len(token_n) else 1
        id_n, sign_n = spot_bt[active_bt] * kinds + token_n, sign_bt[active_bt]
        met_n = (levels.total((sign_n > 0).to(sign_n.dtype), id_n) > 0) & (sign_n != 0)
        met_n &= levels.total((sign_n < 0).to(sign_n.dtype), id_n) > 0
        met_bt = ~active_bt
        met_bt[active_bt] = met_n
        run_bt = (met_bt.flip(1) if reverse else met_bt).to(torch.int8).cumprod(1).bool()
        return (run_bt.flip(1) if reverse else run_bt) & active_bt

    def _calmed(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        if self.entropy_coef == 0 and self.entropy_limit is None:
            return adv_bt
        active_bt = batch.active_bt
        entropy_bt = torch.where(active_bt, batch.need("entropy_bt", self.name), 0)
        mean_b = entropy_bt.sum(1, keepdim=True) / active_bt.sum(1, keepdim=True).clamp(min=1)
        calm_bt = adv_bt - self.entropy_coef * mean_b
        return calm_bt if self.entropy_limit is None else torch.where(mean_b <= self.entropy_limit, calm_bt, 0)

    @override
    def needs(self) -> tuple[str, ...]:
        with_entropy = self.entropy_coef > 0 or self.entropy_limit is not None
        return ("token_bt", "entropy_bt") if with_entropy else ("token_bt",)

    @override
    def words(self) -> str:
        limit = (
            ""
            if self.entropy_limit is None
            else f"; completions above {self.entropy_limit:g} nats a token are left out"
        )
        return (
            f"tokens that good and bad completions share at either end count {self.positive:g} times in good "
            "completions and "
            f"{self.negative:g} times in bad ones; advantages lose {self.entropy_coef:g} times the mean entropy{limit}"
        )

    @override
    def formula(self) -> str:
        limit = "" if self.entropy_limit is None else f"[H_i ≤ {self.entropy_limit:g}]·"
        share = " / max(1, #conflicts)" if self.spread else ""
        return f"A ← {limit}(A - {self.entropy_coef:g}·H_i)·δ_prefix·δ_suffix{share}"


@part("advantage_transform")
class KeyTokens(AdvantageTransform):
    """Add to each token's advantage how strongly its presence is associated with correct completions of the group
    (KTAE, arXiv:2505.16826).

    Per group and token id a 2x2 table (right or wrong completions, with the token or without) gives strength f =
    exp(-2P), P Fisher's exact p-value (0 at P = 1), and the information gain IG; direction x compares frequencies. A ←
    A + 2·top·(σ((α·f + β·IG)·x/(α+β)) - ½). Nothing is added in groups that are all right or all wrong, nor to the last
    token of a completion that ended by itself.
    """

    top: NonNegative = 1.0
    alpha: Annotated[float, Field(gt=0)] = 1.0
    beta: Annotated[float, Field(gt=0)] = 1.0
    saturation: Annotated[float, Field(gt=0)] = 2.0
    length_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    says = (
        "add up to ±{top:g} to the advantage of tokens that occur in the group's correct completions rather than "
        "in its wrong ones"
    )
    reads = ("token_bt", "correct_b", "truncated_b")
    idle_at = ("top", 0, "key_tokens has no effect: top is 0")

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A + w(token)."""
        active_bt = batch.active_bt & batch.stats_b[:, None]
        token_bt = batch.need("token_bt", self.name)
        ended_bt = batch.last_token_bt() & ~batch.need("truncated_b", self.name)[:, None]
        right_b = batch.need("correct_b", self.name)
        out_bt = adv_bt.clone()
        for row_r in mixed_groups(batch.group_b, active_bt, right_b):
            mask_rt = active_bt[row_r]
            weight_rt = torch.zeros_like(adv_bt[row_r])
            tokens = (token_bt[row_r], mask_rt, right_b[row_r])
            numbers = (self.top, self.alpha, self.beta, self.saturation, self.length_share)
            weight_rt[mask_rt] = key_weights(*tokens, *numbers).to(adv_bt.dtype)
            out_bt[row_r] += torch.where(ended_bt[row_r], 0, weight_rt)
        return out_bt

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        numbers = (self.top, self.alpha, self.beta, self.saturation, self.length_share)
        return (
            "last_bt = mask_bt & (mask_bt.flip(1).cumsum(1).flip(1) == 1)\n"
            "adv_bt, seen_bt = adv_bt.clone(), active_bt & counts_b[:, None]\n"
            "for row_r in mixed_groups(group_b, seen_bt, correct_b):\n"
            "    weight_rt, mask_rt = torch.zeros_like(adv_bt[row_r]), seen_bt[row_r]\n"
            "    tokens = (token_bt[row_r], mask_rt, correct_b[row_r])\n"
            f"    weight_rt[mask_rt] = key_weights(*tokens, {', '.join(map(repr, numbers))}).to(adv_bt.dtype)\n"
            "    ended_rt = last_bt[row_r] & ~truncated_b[row_r, None]\n"
            "    adv_bt[row_r] += torch.where(ended_rt, 0, weight_rt)"
        )

    @override
    def formula(self) -> str:
        return (
            f"A_t ← A_t + {2 * self.top:g}·(σ(({self.alpha:g}·e^(-2P) + {self.beta:g}·IG)·x/"
            f"{self.alpha + self.beta:g}) - ½)"
        )


def mixed_groups(group_b: Tensor, active_bt: Tensor, right_b: Tensor) -> list[Tensor]:
    """Return the row numbers of each group with a right and a wrong row among those that have active tokens."""
    seen_b = active_bt.any(1)
    rows = [((group_b == group) & seen_b).nonzero()[:, 0] for group in torch.unique(group_b[seen_b]).tolist()]
    return [row_r for row_r in rows if right_b[row_r].any() and not right_b[row_r].all()]


def key_weights(
    token_rt: Tensor,
    mask_rt: Tensor,
    right_r: Tensor,
    top: float,
    alpha: float,
    beta: float,
    saturation: float,
    length_share: float,
) -> Tensor:
    """Return [N] what is added to the advantage of each masked token of one group; settings as in `KeyTokens`."""
    kinds, kind_n = torch.unique(token_rt[mask_rt], return_inverse=True)
    row_n = torch.arange(len(mask_rt), device=mask_rt.device)[:, None].expand_as(mask_rt)[mask_rt]
    count_rv = torch.zeros(len(mask_rt), len(kinds), dtype=torch.float64, device=mask_rt.device)
    count_rv.index_put_((row_n, kind_n), torch.ones_like(kind_n, dtype=torch.float64), accumulate=True)
    sides = [count_rv[right_r], count_rv[~right_r]]
    a_v, b_v = ((side > 0).sum(0).double() for side in sides)
    right, wrong = (float(len(side)) for side in sides)
    strength_v = alpha * fisher_strength(a_v, b_v, right, wrong)
    strength_v = strength_v + beta * information_gain(a_v, b_v, right, wrong)
    size = [float(side.sum()) for side in sides]
    # BM25's saturated frequency of each token among the tokens of its side
    norms = [saturation * (1 - length_share + length_share * n / (sum(size) / 2)) for n in size]
    share_v = [side.sum(0) / n for side, n in zip(sides, size, strict=True)]
    rate_v = [share * (saturation + 1) / (share + norm) for share, norm in zip(share_v, norms, strict=True)]
    lean_v = rate_v[0] / (rate_v[1] + 1e-5) - rate_v[1] / (rate_v[0] + 1e-5)
    arc_v = (a_v / right).sqrt().asin() - (b_v / wrong).sqrt().asin()
    key_v = strength_v * (arc_v + lean_v) / (alpha + beta)
    return (2 * top * (key_v.sigmoid() - 0.5))[kind_n]


def fisher_strength(a_v: Tensor, b_v: Tensor, right: float, wrong: float) -> Tensor:
    """Return [V] exp(-2P), P the two-sided p-value of Fisher's exact test; 0 where P = 1.

    `a_v` of `right` and `b_v` of `wrong` completions have the token.
    """
    marked_v = a_v + b_v
    k_k = torch.arange(int(right) + 1, dtype=torch.float64, device=a_v.device)

    def log_choose(n: Tensor | float, k: Tensor) -> Tensor:
        n = torch.as_tensor(n, dtype=torch.float64, device=k.device)
        return (n + 1).lgamma() - (k + 1).lgamma() - (n - k + 1).clamp(min=1).lgamma()

    other_vk = marked_v[:, None] - k_k
    possible_vk = (other_vk >= 0) & (other_vk <= wrong)
    log_vk = log_choose(right, k_k) + log_choose(wrong, other_vk.clamp(0, wrong))
    prob_vk = torch.where(possible_vk, (log_vk - log_choose(right + wrong, marked_v)[:, None]).exp(), 0)
    observed_v = prob_vk.gather(1, a_v.long()[:, None])
    p_v = torch.where(prob_vk <= observed_v * (1 + 1e-7), prob_vk, 0).sum(1).clamp(max=1)
    return torch.where(p_v > 1 - 1e-9, 0, (-2 * p_v).exp())


def information_gain(a_v: Tensor, b_v: Tensor, right: float, wrong: float) -> Tensor:
    """Return [V] information in bits that the token's presence gives about a completion being right: H(right) - H(right
    | token).

    The conditional entropy is the mean over completions with the token and those without, so that the gain is never
    negative. `a_v` of `right` and `b_v` of `wrong` completions have the token.
    """
    size, with_v = right + wrong, a_v + b_v
    without_v = size - with_v
    present_v = with_v / size * _bits(a_v / with_v.clamp(min=1))
    absent_v = without_v / size * _bits((right - a_v) / without_v.clamp(min=1))
    return (_bits(torch.full_like(a_v, right / size)) - present_v - absent_v).clamp(min=0)


def _bits(p_v: Tensor) -> Tensor:
    return -(torch.xlogy(p_v, p_v) + torch.xlogy(1 - p_v, 1 - p_v)) / torch.log(p_v.new_tensor(2.0))
