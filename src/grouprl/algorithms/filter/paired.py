"""Selection of the groups in which there is something to compare."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.losses import counted, ordered_pairs, out_of
from grouprl.algorithms.pairing.pairing import AllPairs, Pairing
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.stage_checks import chosen_pairs
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError


@part("filter")
class PairedGroups(Filter):
    """Keep groups with two completions of different rewards; the others leave the loss and its denominators.

    A tie, a completion that stands alone and two completions of which one has no token do not count as pairs, so that a
    loss of pairs is the mean over pairs. With `ties` completions of equal rewards are a pair, too. `pairing` is the
    objective's choice of pairs: with it, only completions in a chosen pair stay.

    Raises:
        InputError: `ties` beside a choice among pairs of different rewards.
    """

    ties: bool = False
    pairing: Pairing = AllPairs()
    guards = True

    def __post_init__(self) -> None:
        if self.ties and self.pairing != AllPairs():
            raise InputError(
                f"paired_groups has ties and the pairing '{self.pairing.name}'",
                "a pairing chooses among pairs of different rewards",
                "Leave one of the two out",
            )

    def __call__(self, batch: Batch) -> Batch:
        """Drop completions that are in no pair."""
        if self.ties:
            alone_b = levels.count(batch.group_b, counted(batch), batch.dtype) < 2
            return drop(batch, alone_b, from_statistics=True)
        return drop(batch, ~paired_rows(batch, self.pairing), from_statistics=True)

    @override
    def words(self) -> str:
        if self.pairing != AllPairs():
            return "leave out completions that are in no pair that is compared, also from the denominators"
        what = "two completions" if self.ties else "two completions of different rewards"
        return f"leave out groups without {what}, also from the denominators"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion: nothing would be left."""
        if run.group_size == 1 and not self.pairing.adds:
            return ["paired_groups leaves out every group of one completion. Use batch.group_size of 2 or more"]
        return []

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if self.pairing != AllPairs():
            if not (chosen := self.pairing.code()):
                return ""
            lines = [
                "known_b = counts_b & active_bt.any(1)",
                "better_bb = same_bb & known_b[:, None] & known_b & (reward_b[:, None] > reward_b)",
                "index_2e = better_bb.nonzero().T",
                chosen,
                "paired_b = torch.isin(torch.arange(len(group_b)), index_2e)",
            ]
        elif self.ties:
            lines = ["paired_b = (same_bb & (counts_b & active_bt.any(1))).sum(1) > 1"]
        else:
            lines = ["paired_b = differs(reward_b, same_bb & (counts_b & active_bt.any(1)))"]
        lines += ["active_bt = active_bt & paired_b[:, None]", "counts_b = counts_b & paired_b"]
        return "\n".join([*lines, "same_bb = same_bb & counts_b"])


def paired_rows(batch: Batch, pairing: Pairing) -> Tensor:
    """Return [B] bool: completions with tokens that are in a pair of different rewards which `pairing` chooses."""
    reward_b = batch.total_reward_b
    if pairing == AllPairs():
        return levels.differs(reward_b, batch.group_b, counted(batch))
    index_e2 = ordered_pairs(reward_b, batch)
    return ~out_of(index_e2[chosen_pairs(pairing, batch, index_e2)], batch)
