"""Normalisation of advantages after they are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.lines import is_from
from grouprl.algorithms.part import Part, part
from grouprl.algorithms.sources import PLURAL, Source
from grouprl.core import levels
from grouprl.core.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor


class AdvantageTransform(Part):
    """Base: other advantages from advantages and the batch."""

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return advantages [B,T]."""
        raise NotImplementedError


@part("advantage_transform")
class Whiten(AdvantageTransform):
    """Give advantages mean 0 and variance 1 over the active tokens of the batch (or of another grouping).

    `count="token"`: every token is one observation, long completions weigh more (PPO, REINFORCE++); `count="sequence"`:
    every completion weighs the same. `shift=False` keeps the mean. `variance` divides by n-1 (sample, verl) or n
    (population, OpenRLHF). `eps` is inside the root, (A - mean)/sqrt(var + eps), or with `eps_in="std"` outside it.
    Advantages without spread become exactly zero (with `shift`) or stay as they are.
    """

    key: str = "batch"
    count: Literal["token", "sequence"] = "token"
    shift: bool = True
    variance: Literal["sample", "population"] = "population"
    eps: Annotated[float, Field(ge=0)] = 1e-8
    eps_in: Literal["variance", "std"] = "variance"

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return (A - mean) / sqrt(var + eps) over active tokens."""
        active_bt = batch.active_bt & batch.stats_b[:, None]
        adv_n, id_n = adv_bt[active_bt], batch.grouping(self.key)[:, None].expand_as(adv_bt)[active_bt]
        weight_bt = active_bt.to(adv_bt.dtype)
        if self.count == "sequence":
            weight_bt = weight_bt / weight_bt.sum(1, keepdim=True).clamp(min=1)
        weight_n = weight_bt[active_bt]
        std_n = levels.std(adv_n, id_n, weight_n, sample=self.variance == "sample")
        divisor_n = (std_n.square() + self.eps).sqrt() if self.eps_in == "variance" else std_n + self.eps
        centered_n = adv_n - levels.mean(adv_n, id_n, weight_n) if self.shift else adv_n
        flat_n = torch.zeros_like(adv_n) if self.shift else adv_n
        out_bt = torch.zeros_like(adv_bt)
        out_bt[active_bt] = torch.where(std_n > 0, centered_n / torch.where(std_n > 0, divisor_n, 1), flat_n)
        return out_bt

    @override
    def code(self) -> str:
        if self.key != "batch" or not self.shift:
            return ""
        lines = ["on_bt = active_bt & counts_b[:, None]"]
        if self.count == "token":
            less = "max(len(adv_n) - 1, 1)" if self.variance == "sample" else "len(adv_n)"
            lines += ["adv_n = adv_bt[on_bt]", "mid = adv_n.mean()", f"var = (adv_n - mid).square().sum() / {less}"]
        else:
            less = "(n - 1).clamp(min=1)" if self.variance == "sample" else "n"
            lines += [
                "share_bt = on_bt.to(adv_bt.dtype) / on_bt.sum(1, keepdim=True).clamp(min=1)  # each row counts once",
                "adv_n, n = adv_bt[on_bt], on_bt.any(1).sum()",
                "mid = (share_bt * adv_bt).sum() / n",
                f"var = (share_bt * (adv_bt - mid).square()).sum() / {less}",
            ]
        bottom = f"(var + {self.eps!r}).sqrt()" if self.eps_in == "variance" else f"(var.sqrt() + {self.eps!r})"
        return "\n".join(
            [
                *lines,
                "spread = bool(adv_n.max() > adv_n.min())",
                f"adv_bt = torch.where(on_bt & spread, (adv_bt - mid) / {bottom}, 0)",
            ]
        )

    @override
    def words(self) -> str:
        mean = "minus their mean, " if self.shift else ""
        observed = "every token" if self.count == "token" else "every completion"
        return (
            f"advantages {mean}divided by their {self.variance} standard deviation over the {self.key}, "
            f"{observed} counting once"
        )

    @override
    def formula(self) -> str:
        top = "(A - mean A)" if self.shift else "A"
        bottom = f"sqrt(var A + {self.eps:g})" if self.eps_in == "variance" else f"(std A + {self.eps:g})"
        return f"A ← {top} / {bottom}"


@part("advantage_transform")
class ValidFraction(AdvantageTransform):
    """Multiply advantages by B/(B - M), M rows in groups without any spread of reward (GPG's α, arXiv:2504.02546).

    Makes a mean over all completions the mean over those that carry a signal. `limit` bounds the factor (CPGD: 3).
    """

    limit: Annotated[float, Field(ge=1)] | None = None

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return α·A with α = B/(B - M)."""
        stats_b = batch.stats_b.to(batch.dtype)
        valid_b = levels.differs(batch.total_reward_b, batch.group_b, stats_b) * stats_b
        return adv_bt * (stats_b.sum() / valid_b.sum().clamp(min=1)).clamp(max=self.limit or torch.inf)

    @override
    def words(self) -> str:
        limit = "" if self.limit is None else f", by {self.limit:g} at most"
        return f"advantages scaled up by the share of completions whose group has no spread{limit}"

    @override
    def formula(self) -> str:
        factor = "B/(B - M)" if self.limit is None else f"min(B/(B - M), {self.limit:g})"
        return f"A ← A · {factor},  M completions in groups of equal rewards"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        limit = "" if self.limit is None else f".clamp(max={self.limit!r})"
        return f"""valid = (counts_b & differs(reward_b, same_bb)).sum().clamp(min=1)
adv_bt = adv_bt * (counts_b.sum().to(adv_bt.dtype) / valid){limit}"""


@part("advantage_transform")
class FixedAdvantage(AdvantageTransform):
    """Give rows of one source one advantage, whatever their group says (AEPO's one-sided R = 1, arXiv:2510.08141)."""

    source: Source = "extra"
    value: float = 1.0

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A = value on the source's rows."""
        return torch.where(batch.from_source(self.source)[:, None], self.value, adv_bt)

    @override
    def code(self) -> str:
        return f"adv_bt = torch.where(({is_from(self.source)})[:, None], {self.value!r}, adv_bt)"

    @override
    def words(self) -> str:
        return f"{PLURAL[self.source]} have the advantage {self.value:g}"

    @override
    def formula(self) -> str:
        return f"A ← {self.value:g} on {PLURAL[self.source]}"
