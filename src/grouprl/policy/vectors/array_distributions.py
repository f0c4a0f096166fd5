"""Distributions of actions that are arrays: several categoricals at once, masks of legal actions, sampling by seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal, kl_divergence, register_kl

from grouprl.core.errors import InputError
from grouprl.policy.vectors.first_uniforms import first_uniforms

ILLEGAL = -1e9
"""Logit of an illegal action: its probability is exactly 0, but unlike with -inf the gradient of the entropy is
finite.
"""


class PlainCategorical(Categorical):
    """A categorical variable of unchecked logits [N,A], whose log-probs need fewer calls, of the same bits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__(logits=logits, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-prob [N] of the values [N]."""
        logits_na: Tensor = self.logits
        return logits_na.gather(-1, value.long()[..., None])[..., 0]


class MultiCategorical(Distribution):
    """K independent categorical variables, whose log-probs and entropies are added up.

    Args:
        logits: logits [N, A_k] of each variable.
    """

    arg_constraints = {}  # noqa: RUF012  the name is torch's

    def __init__(self, logits: Sequence[Tensor]) -> None:
        self.parts = [PlainCategorical(each_na) for each_na in logits]
        super().__init__(logits[0].shape[:-1], torch.Size([len(logits)]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-prob [N] of the values [N,K]."""
        pairs = zip(self.parts, value.unbind(-1), strict=True)
        return torch.stack([part.log_prob(number_n) for part, number_n in pairs]).sum(0)

    def entropy(self) -> Tensor:
        """Return the entropy [N] in nats."""
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def masked(self, legal_na: Tensor) -> MultiCategorical:
        """Return the variables with illegal values at probability 0; their masks [N,A_k] are concatenated."""
        masks = legal_na.split([part.logits.shape[-1] for part in self.parts], -1)
        return type(self)([_without(p.logits, m) for p, m in zip(self.parts, masks, strict=True)])

    def completed(self, value_nk: Tensor) -> Tensor:
        """Return the action of sampled values [N,K]: the values themselves."""
        return value_nk


class RankedPicks(MultiCategorical):
    """K picks among the same nodes, and beside each its rank by probability, 0 for the most likely pick of all.

    An action is [N,2K]: the picks, then the ranks. Ranks follow from the picks, so log-probs and entropies are those of
    the picks alone; whoever resolves conflicts between picks reads them. A mask has K·A columns for the picks and K·K
    for the ranks, which are not read.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-prob [N] of the picks of actions [N,2K]."""
        return super().log_prob(value[:, : len(self.parts)])

    def masked(self, legal_na: Tensor) -> MultiCategorical:
        """Return the picks with illegal nodes at probability 0."""
        return super().masked(legal_na[:, : sum(part.logits.shape[-1] for part in self.parts)])

    def completed(self, value_nk: Tensor) -> Tensor:
        """Return picks and ranks; equally likely ones are ranked by their number."""
        picks = zip(self.parts, value_nk.unbind(-1), strict=True)
        logp_nk = torch.stack([part.log_prob(number_n) for part, number_n in picks], -1)
        order_nk = logp_nk.argsort(dim=-1, descending=True, stable=True)
        return torch.cat([value_nk, order_nk.argsort(dim=-1)], -1)


@register_kl(MultiCategorical, MultiCategorical)
def _kl_of_parts(before: MultiCategorical, after: MultiCategorical) -> Tensor:
    return torch.stack([kl_divergence(p, q) for p, q in zip(before.parts, after.parts, strict=True)]).sum(0)


def divergence(before: Distribution, after: Distribution) -> Tensor:
    """Return KL(before || after) of each row, [N], in nats.

    Raises:
        InputError: distributions whose divergence has no closed form.
    """
    try:
        return kl_divergence(before, after)
    except NotImplementedError:
        raise InputError(
            f"the KL divergence of {type(before).__name__}",
            "it has no closed form that is known (torch.distributions.kl.register_kl)",
            "Take a policy with another distribution (model: mlp), or a method that does not compare distributions",
        ) from None


def masked(distribution: Distribution, legal_na: Tensor | None) -> Distribution:
    """Return the distribution with illegal actions at probability 0; without a mask, the distribution itself.

    Raises:
        InputError: a mask for a distribution that is not categorical.
    """
    if legal_na is None:
        return distribution
    if isinstance(distribution, Categorical):
        return PlainCategorical(_without(distribution.logits, legal_na))
    if isinstance(distribution, MultiCategorical):
        return distribution.masked(legal_na)
    raise InputError(
        f"a mask of legal actions for {type(distribution).__name__}",
        "only categorical actions can be masked",
        "Return a Categorical or a MultiCategorical from distribution()",
    )


def drawn(distribution: Distribution, seeds: Sequence[int], *, greedy: bool) -> Tensor:
    """Return one action per row of `distribution`, a function of its row and its seed alone.

    Raises:
        InputError: a distribution that is neither categorical nor normal.
    """
    if isinstance(distribution, Categorical):
        return _category(distribution.probs, () if greedy else first_uniforms(seeds), greedy)
    if isinstance(distribution, MultiCategorical):
        count = len(distribution.parts)
        chance_rk = np.array([np.random.default_rng(seed).random(count) for seed in seeds])
        each = [_category(part.probs, chance_rk[:, k], greedy) for k, part in enumerate(distribution.parts)]
        return distribution.completed(torch.stack(each, -1))
    normal = distribution.base_dist if isinstance(distribution, Independent) else distribution
    if isinstance(normal, Normal):
        noise = [np.random.default_rng(seed).standard_normal(normal.mean.shape[1:]) for seed in seeds]
        noise_ra = torch.as_tensor(np.stack(noise)).to(normal.mean) * (0.0 if greedy else 1.0)
        return normal.mean + normal.stddev * noise_ra
    raise InputError(
        f"the policy's distribution is {type(distribution).__name__}",
        "only Categorical, MultiCategorical and Normal distributions can be sampled with a seed per action",
        "Override the policy's method sample(distribution, seeds, greedy=…)",
    )


def _category(probs_ra: Tensor, chance_r: Sequence[float] | np.ndarray, greedy: bool) -> Tensor:
    """Return categories by inverting the distribution function, so that a sample depends only on its own row and
    seed.
    """
    if greedy:
        return probs_ra.argmax(-1)
    below_ra = probs_ra.double().cpu().numpy().cumsum(-1)
    whole_r1 = below_ra[:, -1:]
    chosen_r = (below_ra <= np.asarray(chance_r)[:, None] * whole_r1).sum(-1)
    last_r = (below_ra >= whole_r1).argmax(-1)  # keeps rounding from choosing an action of probability 0
    return torch.from_numpy(np.minimum(chosen_r, last_r)).to(probs_ra.device)


def _without(logits_na: Tensor, legal_na: Tensor) -> Tensor:
    return logits_na.masked_fill(~legal_na, max(ILLEGAL, torch.finfo(logits_na.dtype).min / 4))
