"""Advantages with several agents, each compared with rows that are fairly comparable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.lines import compared
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.levels import Alone, Center, Scale
from grouprl.core.numbers import NonNegative

if TYPE_CHECKING:
    from torch import Tensor

OF_BATCH = ("group", "batch", "agent")
"""Groupings that every batch has."""


def one_agent(name: str, run: RunFacts) -> list[str]:
    """Say that a part for several agents has no effect if the task has one agent."""
    return [] if run.agents > 1 else [f"{name} has no effect: the task has one agent"]


@part("advantage")
class RoleRelative(Advantage):
    """Each agent's rows relative to what it is fairly compared with: (R - center) / (spread + eps).

    `keys` names the grouping of each agent in turn, the last one that of all further agents: 'group' (its rows for the
    same prompt), 'episode' (those of the same episode: attempts at one proposed problem), 'batch' (all its rows). The
    rows of the agents in `whitened` are standardised over their tokens instead, (R - mean)/sqrt(var + 1e-8) with n-1,
    as in REINFORCE++: a completion counts once for each of its tokens.
    """

    keys: Annotated[tuple[str, ...], Field(min_length=1)] = ("group",)
    center: Center = "mean"
    scale: Scale = "sample_std"
    eps: NonNegative = 1e-6
    alone: Alone = "zero"
    whitened: tuple[Annotated[int, Field(ge=0)], ...] = ()

    def __call__(self, batch: Batch) -> Tensor:
        """Return the advantages A_b, the same for all tokens of a row, [B,T]."""
        agent_b = batch.need("agent_b", self.name)
        groupings = [self._grouping(batch, key) for key in self.keys]
        id_b = groupings[-1]
        for agent, of_agent_b in enumerate(groupings):
            id_b = torch.where(agent_b == agent, of_agent_b, id_b)
        adv_b = levels.relative(
            batch.total_reward_b,
            levels.cross(agent_b, id_b),
            center=self.center,
            scale=self.scale,
            eps=self.eps,
            alone=self.alone,
            weight_n=batch.stats_b.to(batch.dtype),
        )
        adv_bt, reward_bt = batch.broadcast(adv_b), batch.broadcast(batch.total_reward_b)
        for agent in self.whitened:
            own = batch.replace(stat_b=batch.stats_b & (agent_b == agent))
            by_token = Whiten(key=self.keys[min(agent, len(self.keys) - 1)], count="token", variance="sample")
            adv_bt = torch.where((agent_b == agent)[:, None], by_token(reward_bt, own), adv_bt)
        return adv_bt

    @override
    def code(self) -> str:
        if self.center != "mean" or self.scale == "leave_one_out_std":
            return ""
        ids = [
            {"group": "group_b", "batch": "torch.zeros_like(group_b)", "agent": "agent_b"}.get(key, f'keys["{key}"]')
            for key in self.keys
        ]
        lines = [f"fair_b = {ids[-1]}"]
        lines += [f"fair_b = torch.where(agent_b == {agent}, {of}, fair_b)" for agent, of in enumerate(ids[:-1])]
        lines.append("role_bb = counts_b & (agent_b[:, None] == agent_b) & (fair_b[:, None] == fair_b)")
        lines.append(f"adv_b = {compared('reward_b', 'role_bb', self.scale, self.eps)} * counts_b")
        if self.alone == "raw":
            lines.append("adv_b = torch.where(role_bb.sum(1) > 1, adv_b, reward_b * counts_b)")
        lines.append("adv_bt = adv_b[:, None] * mask_bt")
        for agent in self.whitened:
            of = ids[min(agent, len(ids) - 1)]
            lines += [
                f"own_b = counts_b & (agent_b == {agent})",
                f"token_bb = (own_b & ({of}[:, None] == {of})) * active_bt.sum(1)  # rows weigh by length",
                "by_token_b = centered(reward_b, token_bb) / (spread(reward_b, token_bb).square() + 1e-08).sqrt()",
                "by_token_bt = by_token_b[:, None] * (active_bt & own_b[:, None])",
                f"adv_bt = torch.where((agent_b == {agent})[:, None], by_token_bt, adv_bt)",
            ]
        return "\n".join(lines)

    def _grouping(self, batch: Batch, key: str) -> Tensor:
        return batch.grouping(key) if key in OF_BATCH else batch.need(f"keys.{key}", self.name)

    @override
    def needs(self) -> tuple[str, ...]:
        return ("agent_b", *(f"keys.{key}" for key in self.keys if key not in OF_BATCH))

    @override
    def words(self) -> str:
        which = ", ".join(f"agent {i} of its {key}" for i, key in enumerate(self.keys))
        scale = "" if self.scale == "none" else f", divided by the {self.scale.replace('_', ' ')} + {self.eps:g}"
        whitened = ", ".join(f"agent {agent}" for agent in self.whitened)
        tokens = f"; {whitened} standardised over all its tokens" if whitened else ""
        return f"reward minus the {self.center.replace('_', '-')} of the agent's own rows{scale}: {which}{tokens}"

    @override
    def formula(self) -> str:
        spread = "" if self.scale == "none" else f" / (std + {self.eps:g})"
        return f"A = (R - mean R){spread} over {', '.join(f'{key} for agent {i}' for i, key in enumerate(self.keys))}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that keys of several agents have no effect if the task has one."""
        return one_agent(self.name, run) if len(self.keys) > 1 else []
