"""Rewards against a baseline answer, through the gates of judges and of a KL (CGPO)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.filter.constraints import constraint_names, holds_code, satisfied
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch

GREEDY = "greedy"


@part("reward_transform")
class CalibratedReward(RewardTransform):
    """R ← v·k·σ(r(x, y) - r(x, ȳ)): zero where a judge objects, less the further from the reference (CGPO).

    v is 1 if every component in `constraints` is at least one half. r(x, ȳ) is the reward of the greedy completion, or
    with another `baseline` the component of that name. k is max(0, 1 - KL/`kl_limit`), KL = log π_old/π_ref of the
    completion, or with `kl_gate: hard` 1 up to the limit and 0 beyond; 1 without a limit. It exceeds 1 where the
    estimate of the KL is negative, as the paper's formula does (arXiv:2409.20370).
    """

    constraints: tuple[str, ...] = ()
    baseline: str = GREEDY
    kl_limit: Annotated[float, Field(gt=0)] | None = None
    kl_gate: Literal["linear", "hard"] = "linear"

    def __call__(self, batch: Batch) -> Batch:
        """Return the gated, calibrated reward."""
        base_b = batch.need(self._field, self.name)
        reward_b = torch.sigmoid(batch.total_reward_b - base_b) * self._gate(batch)
        held_b = satisfied(batch, self.constraints, self.name)
        return batch.replace(reward_b=torch.where(held_b, reward_b, 0), token_reward_bt=None)

    def _gate(self, batch: Batch) -> Tensor | float:
        if self.kl_limit is None:
            return 1.0
        log_bt = batch.need("old_bt", self.name) - batch.need("ref_bt", self.name)
        kl_b = torch.where(batch.mask_bt, log_bt, 0).sum(1)
        if self.kl_gate == "hard":
            return (kl_b <= self.kl_limit).to(batch.dtype)
        return (1 - kl_b / self.kl_limit).clamp(min=0)

    @property
    def _field(self) -> str:
        return "greedy_reward_b" if self.baseline == GREEDY else f"rewards.{self.baseline}"

    @override
    def needs(self) -> tuple[str, ...]:
        kl = ("old_bt", "ref_bt") if self.kl_limit is not None else ()
        return (self._field, *constraint_names(self.constraints), *kl)

    @override
    def words(self) -> str:
        judged = f", 0 unless {' and '.join(self.constraints)} hold" if self.constraints else ""
        gate = "" if self.kl_limit is None else f", gated by the KL to the reference up to {self.kl_limit:g} nats"
        against = "the greedy completion's" if self.baseline == GREEDY else f"the component {self.baseline}"
        return f"the reward is σ(reward - {against}){judged}{gate}"

    @override
    def formula(self) -> str:
        limit = self.kl_limit
        gates = {"linear": f"·max(0, 1 - KL/{limit or 1:g})", "hard": f"·1[KL ≤ {limit or 1:g}]"}
        gate = gates[self.kl_gate] if limit else ""
        return f"R ← {'v·' if self.constraints else ''}σ(r(x, y) - r(x, ȳ)){gate}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        base = self._field if self.baseline == GREEDY else f"rewards[{self.baseline!r}]"
        lines = [f"reward_b = (reward_b - {base}).sigmoid()"]
        if self.kl_limit is not None:
            linear = f"(1 - kl_b / {self.kl_limit!r}).clamp(min=0)"
            gate = linear if self.kl_gate == "linear" else f"(kl_b <= {self.kl_limit!r})"
            lines += ["kl_b = torch.where(mask_bt, old_bt - ref_bt, 0).sum(1)", f"reward_b = reward_b * {gate}"]
        if self.constraints:
            lines.append(f"reward_b = torch.where({holds_code(self.constraints)}, reward_b, 0)")
        return "\n".join(lines)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a KL gate without a reference model."""
        if self.kl_limit is not None and not run.has_reference:
            return ["the KL gate needs a reference model. Set model.reference: initial, or kl_limit to null"]
        return []
