"""Choices among a prompt's pairs: all of them, the best with the worst, those whose rewards are far apart."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import out_of
from grouprl.algorithms.part import Part, part
from grouprl.algorithms.preferences import OPPONENT, is_opponent
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


class Pairing(Part):
    """Base: a choice among the pairs of a prompt's completions with different advantages.

    Lines of plain torch leave the compared ones of the pairs `index_2e`.
    """

    kind: ClassVar[str] = "pairing"
    adds: ClassVar[bool] = False
    """Whether a completion's partner is sampled in addition to its group, so that groups of one have pairs."""

    def __call__(self, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return [E] bool: which of the pairs of rows `index_e2` ([E,2], better first) are compared."""
        raise NotImplementedError


@part("pairing")
class AllPairs(Pairing):
    """Every two completions of a prompt with different advantages."""

    says = "every two completions of a prompt are compared"

    def __call__(self, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return true for each pair."""
        return torch.ones(len(index_e2), dtype=torch.bool, device=index_e2.device)


@part("pairing")
class Extremes(Pairing):
    """The best completion of a prompt with its worst (GSHF, arXiv:2312.11456: max_min), or with its next best.

    Completions that tie at an end all count.
    """

    against: Literal["worst", "next"] = "worst"

    def __call__(self, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return true for pairs of a best completion and one of the worst, or of the next best."""
        reward_b, group_b = batch.total_reward_b, batch.group_b
        in_pair_b = ~out_of(index_e2, batch)
        best_b = highest(reward_b, group_b, in_pair_b)
        if self.against == "worst":
            other_b = highest(-reward_b, group_b, in_pair_b)
        else:
            other_b = highest(reward_b, group_b, in_pair_b & ~best_b)
        return best_b[index_e2[:, 0]] & other_b[index_e2[:, 1]]

    @override
    def words(self) -> str:
        other = "its worst" if self.against == "worst" else "the next best"
        return f"the best completion of a prompt is compared with {other}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        end = "-reward_b" if self.against == "worst" else "torch.where(best_b, -torch.inf, reward_b)"
        return f"""in_pair_b = torch.isin(torch.arange(len(group_b)), index_2e)
best_b = in_pair_b & (reward_b == torch.where(same_bb & in_pair_b, reward_b, -torch.inf).amax(1))
end_b = {end}
other_b = in_pair_b & (end_b == torch.where(same_bb & in_pair_b, end_b, -torch.inf).amax(1))
index_2e = index_2e[:, best_b[index_2e[0]] & other_b[index_2e[1]]]"""


@part("pairing")
class Gap(Pairing):
    """Pairs whose rewards differ by `least` or more (RS-DPO, arXiv:2402.10038; DNO-Prct, arXiv:2404.03715).

    With `chosen_from` the better completion has that reward or more.
    """

    least: NonNegative = 0.0
    chosen_from: float | None = None

    def __call__(self, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return whether R_w - R_l ≥ least and R_w ≥ chosen_from."""
        better_e, worse_e = batch.total_reward_b[index_e2.T]
        far_e = better_e - worse_e >= self.least
        return far_e if self.chosen_from is None else far_e & (better_e >= self.chosen_from)

    @override
    def words(self) -> str:
        good = "" if self.chosen_from is None else f" and the better one has at least {self.chosen_from:g}"
        return f"completions are compared whose rewards differ by {self.least:g} or more{good}"

    @override
    def formula(self) -> str:
        good = "" if self.chosen_from is None else f", R_w ≥ {self.chosen_from:g}"
        return f"over pairs with R_w - R_l ≥ {self.least:g}{good}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        good = "" if self.chosen_from is None else f" & (reward_b[index_2e[0]] >= {self.chosen_from!r})"
        far = f"reward_b[index_2e[0]] - reward_b[index_2e[1]] >= {self.least!r}"
        return f"index_2e = index_2e[:, ({far}){good}]"


@part("pairing")
class Across(Pairing):
    """A completion of the policy with one of an opponent: what `opponents` sampled for the same prompt (XPO)."""

    adds: ClassVar[bool] = True
    reads = (f"keys.{OPPONENT}",)
    says = "a completion of the policy is compared with one of its opponent's"
    plain = f"index_2e = index_2e[:, (keys['{OPPONENT}'][index_2e] == 1).sum(0) == 1]"

    def __call__(self, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return true for pairs of which one is an opponent's."""
        first_e, second_e = is_opponent(batch, self.name)[index_e2.T]
        return first_e ^ second_e


@part("pairing")
class Own(Pairing):
    """Two completions of which none is an opponent's: `opponents` samples beside them without being compared."""

    reads = (f"keys.{OPPONENT}",)
    says = "completions are compared without those of an opponent"
    plain = f"index_2e = index_2e[:, (keys['{OPPONENT}'][index_2e] != 1).all(0)]"

    def __call__(self, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return true for pairs without an opponent's completion."""
        return ~is_opponent(batch, self.name)[index_e2].any(1)


def highest(value_b: Tensor, group_b: Tensor, among_b: Tensor) -> Tensor:
    """Return [B] bool: rows among `among_b` ([B] bool) with the largest value of these in their group."""
    index_b, groups = levels.compact(group_b)
    lowest_b = torch.where(among_b, value_b, -torch.inf)
    top_g = lowest_b.new_full((groups,), -torch.inf).scatter_reduce(0, index_b, lowest_b, "amax")
    return among_b & (value_b == top_g[index_b])
