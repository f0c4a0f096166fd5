"""Rewards of several components, each judged in its group before they are added up (GDPO, arXiv:2601.05242)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage, Relative
from grouprl.algorithms.lines import compared
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.levels import Alone


@part("advantage")
class DecoupledComponents(Advantage):
    """Σ_k w_k·(r_k - mean_g r_k)/(std_g r_k + eps) over any number of reward components.

    A sum normalised once lets the component of widest spread dominate the others; here each has unit spread in its
    group first. `weights` names the components and weighs them; empty: every component of the reward, weight 1 (a
    reward without components is its own only one, as in verl). A component that a row lacks (NaN) is left out of the
    component's statistics and adds 0 to that row; a component that the reward does not give raises InputError. A
    component without spread in a group adds exactly 0 there. Token rewards are not a component and do not count.
    """

    weights: Mapping[str, float] = Field(default_factory=dict)
    eps: Annotated[float, Field(ge=0)] = 1e-6
    alone: Alone = "zero"
    scale: Literal["sample_std", "none"] = "sample_std"
    """"none" only subtracts the group's mean from each component (verl's norm_adv_by_std_in_grpo false)."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return A = Σ_k w_k·A_k."""
        total_b = torch.zeros_like(batch.reward_b)
        for weight, value_b in self._components(batch):
            counts_b = (batch.stats_b & value_b.isfinite()).to(batch.dtype)
            normalised_b = levels.relative(
                value_b.nan_to_num(0.0),
                batch.group_b,
                scale=self.scale,
                eps=self.eps,
                alone=self.alone,
                weight_n=counts_b,
            )
            total_b = total_b + weight * normalised_b
        return batch.broadcast(total_b)

    @override
    def code(self) -> str:
        weights = {name: weight for name, weight in self.weights.items() if weight != 0}
        each = ", ".join(f'({weight!r}, rewards["{name}"])' for name, weight in weights.items())
        own = '[(1.0, value_b) for name, value_b in rewards.items() if not name.startswith("#")]'
        one = compared("value_b.nan_to_num(0.0)", "known_bb", self.scale, self.eps)
        raw = (
            "    one_b = torch.where(known_bb.sum(1) > 1, one_b, value_b.nan_to_num(0.0))\n"
            if self.alone == "raw"
            else ""
        )
        return (
            "adv_b = torch.zeros_like(reward_b)\n"
            f"for weight, value_b in {f'[{each}]' if self.weights else f'{own} or [(1.0, reward_b)]'}:\n"
            "    known_bb = same_bb & value_b.isfinite()\n"
            f"    one_b = {one}\n"
            f"{raw}"
            "    adv_b = adv_b + weight * one_b * (counts_b & value_b.isfinite())\n"
            "adv_bt = adv_b[:, None] * mask_bt"
        )

    def _components(self, batch: Batch) -> list[tuple[float, Tensor]]:
        """Return (weight, [B] values) of every component that counts."""
        own = [name for name in batch.rewards if not name.startswith("#")]
        weights = {name: weight for name, weight in self.weights.items() if weight != 0}
        if not self.weights:
            weights = dict.fromkeys(own, 1.0)
        for name in weights:
            if name not in batch.rewards:
                known = f"Its components are {', '.join(own)}" if own else "The reward has no parts"
                raise InputError(
                    f"{self.name} needs batch.rewards.{name}, which this reward does not give", remedy=known
                )
        if not self.weights and not own:
            return [(1.0, batch.total_reward_b)]
        return [(weight, batch.rewards[name].to(batch.dtype)) for name, weight in weights.items()]

    @override
    def needs(self) -> tuple[str, ...]:
        return tuple(f"rewards.{name}" for name, weight in self.weights.items() if weight != 0)

    @override
    def formula(self) -> str:
        below = f" / (std_g r_k + {self.eps:g})" if self.scale == "sample_std" else ""
        return f"A = Σ_k w_k (r_k - mean_g r_k){below}"

    @override
    def words(self) -> str:
        which = ", ".join(f"{weight:g} · {name}" for name, weight in self.weights.items()) or "all of them, weight 1"
        spread = "divided by its own spread, " if self.scale == "sample_std" else ""
        return f"each component of the reward relative to its group, {spread}added up ({which})"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which have nothing to be compared with."""
        return Relative(alone=self.alone).refuse(run)
