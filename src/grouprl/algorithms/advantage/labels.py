"""Objectives on labels: correct completions are separated from wrong ones by a classifier's loss or a likelihood.

`Labels` writes the label of each completion as a signed advantage; the objectives read sign and size. A whole
completion has one loss, and `sequence_mean` averages completions.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch

Size = Literal["one", "balanced", "class_mean", "odds"]
HELD = (0.02, 0.98)
"""Bounds within which a success rate is held in a quotient (NFT)."""
_SIZE = {
    "one": "1",
    "balanced": "G/(2·completions with the same label), so that both classes weigh the same",
    "class_mean": "G/(completions with the same label), so that a sum over a group is a mean over each class",
    "odds": "1 where right and p/(1-p) where wrong, p the group's share of correct completions",
}


def success(batch: Batch, reader: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return ([B] 1 where right, [B] its mean in the group, [B] bool: the group holds both) over counted rows."""
    right_b = batch.need("correct_b", reader).to(batch.dtype)
    weight_b = batch.stats_b.to(batch.dtype)
    mixed_b = levels.differs(right_b, batch.group_b, weight_b) & batch.stats_b
    return right_b, levels.mean(right_b, batch.group_b, weight_b), mixed_b


@part("advantage")
class Labels(Advantage):
    """+size for correct completions and -size for wrong ones, by raw correctness.

    Sizes: `one`; `balanced` G/(2 n_c), n_c completions of the label in the group (PACS); `class_mean` G/n_c (DisCO);
    `odds` 1 and p/(1-p) (NFT). In a group without both labels every size is 1 with `one_sided="one"`, 0 with "zero".
    """

    size: Size = "one"
    one_sided: Literal["one", "zero"] = "zero"
    reads = ("correct_b",)

    def __call__(self, batch: Batch) -> Tensor:
        """Return A = ±size."""
        right_b, share_b, mixed_b = success(batch, self.name)
        own_b = torch.where(right_b > 0, share_b, 1 - share_b).clamp(min=1e-9)
        held_b = share_b.clamp(*HELD)
        odds_b = torch.where(right_b > 0, 1, held_b / (1 - held_b))
        sizes = {"one": torch.ones_like(own_b), "balanced": 0.5 / own_b, "class_mean": 1 / own_b, "odds": odds_b}
        lone_b = torch.full_like(own_b, float(self.one_sided == "one")) * batch.stats_b
        return batch.broadcast((2 * right_b - 1) * torch.where(mixed_b, sizes[self.size], lone_b))

    @override
    def code(self) -> str:
        sizes = {
            "one": "1.0",
            "balanced": "0.5 / own_b",
            "class_mean": "1 / own_b",
            "odds": "torch.where(correct_b, 1, held_b / (1 - held_b))",
        }
        lines = ["share_b = mean(correct_b.to(reward_b.dtype), same_bb)"]
        if "own_b" in sizes[self.size]:
            lines.append("own_b = torch.where(correct_b, share_b, 1 - share_b).clamp(min=1e-9)")
        if "held_b" in sizes[self.size]:
            lines.append(f"held_b = share_b.clamp{HELD}")
        lines.append("mixed_b = counts_b & differs(correct_b.to(reward_b.dtype), same_bb)")
        lone = "counts_b.to(reward_b.dtype)" if self.one_sided == "one" else "0"
        lines.append(f"adv_b = (2 * correct_b - 1) * torch.where(mixed_b, {sizes[self.size]}, {lone})")
        return "\n".join([*lines, "adv_bt = adv_b[:, None] * mask_bt"])

    @override
    def words(self) -> str:
        lone = {"one": "1", "zero": "0"}[self.one_sided]
        return f"+ for correct completions, - for wrong ones; size {_SIZE[self.size]}; {lone} in one-sided groups"

    @override
    def formula(self) -> str:
        return {
            "one": "A = ±1",
            "balanced": "A = ±G/(2·n_c)",
            "class_mean": "A = ±G/n_c",
            "odds": "A = 1 if right, -p/(1-p) if wrong",
        }[self.size]

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which never hold both labels."""
        if run.group_size == 1 and self.one_sided == "zero":
            return [
                "labels compares right and wrong completions of one prompt, but batch.group_size is 1. Use "
                "batch.group_size of 2 or more"
            ]
        return []
