"""Credit for what several completions of a group share: the mean of theirs."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.papers.prefix_tree import nodes
from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.turn_returns import has_turn, next_turn, on_tokens, same_actions, turn_means
from grouprl.core import levels
from grouprl.core.batch import Batch

TERMINAL = -2
"""State after the last turn."""


@part("advantage_transform")
class SharedSteps(AdvantageTransform):
    """Give a step that several trajectories of a group share the mean of their advantages (SALT, arXiv:2510.20022).

    A step is shared where turns begin in the same state, act with the same tokens and lead to the same state, or to
    the end; also the `window` states before must be the same. A trajectory that takes a step twice counts once in its
    mean. A turn in a state without key (-1) is shared with none and keeps its advantage.
    """

    window: Annotated[int, Field(ge=0)] = 0
    equation = "A_k ← mean_{{i with the same step}} A_i"
    reads = ("turn_bt", "state_bs", "token_bt")

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return the mean of A over the trajectories that share the step, [B,T]."""
        state_bs = batch.need("state_bs", self.name)
        there_bs = has_turn(batch, state_bs.shape[1], self.name)
        own_bs = turn_means(adv_bt, batch.active_bt, batch, there_bs, self.name)
        id_n, known_bs = self._steps(batch, state_bs, there_bs)
        row_n = torch.arange(len(there_bs), device=id_n.device)[:, None].expand_as(there_bs).flatten()
        weight_n = (known_bs & batch.stats_b[:, None]).flatten().to(adv_bt.dtype)
        weight_n = weight_n / levels.count(levels.cross(id_n, row_n), weight_n, adv_bt.dtype).clamp(min=1)
        mean_bs = levels.mean(own_bs.flatten(), id_n, weight_n).view_as(own_bs)
        shared_bs = known_bs & batch.stats_b[:, None] & (levels.count(id_n, weight_n).view_as(own_bs) > 1)
        change_bs = torch.where(shared_bs, mean_bs - own_bs, 0)
        return torch.where(batch.active_bt, adv_bt + on_tokens(change_bs, batch, self.name), 0)

    @override
    def code(self) -> str:
        back = "torch.nn.functional.pad(known_bs, ({0}, 0), value=-2)[:, : turns]"
        earlier = "".join(f", {back.format(k)}" for k in range(1, self.window + 1))
        return (
            "turns = state_bs.shape[1]\n"
            "there_bs = turns_there(turn_bt, mask_bt, turns)\n"
            "known_bs = torch.where(there_bs, state_bs, -1)\n"
            f"after_bs = next_turn(known_bs, there_bs, {TERMINAL})\n"
            "action_bs = numbered_actions(token_bt, turn_bt, mask_bt, turns)\n"
            "group_bs = group_b[:, None].expand_as(state_bs)\n"
            f"step_bsk = torch.stack([group_bs, known_bs, action_bs, after_bs{earlier}], 2)\n"
            "step_nk, row_n = step_bsk.flatten(0, 1), torch.arange(len(group_b)).repeat_interleave(turns)\n"
            "counted_n = (there_bs & (known_bs != -1) & (after_bs != -1) & counts_b[:, None]).flatten()\n"
            "like_nn = (step_nk[:, None] == step_nk).all(2) & counted_n  # the same step of the group\n"
            "own_n = mean_of_turns(adv_bt, active_bt, turn_bt, turns).flatten()\n"
            "once_n = (like_nn & (row_n[:, None] == row_n)).sum(1).clamp(min=1)\n"
            "once_nn = like_nn.to(adv_bt.dtype) / once_n  # each row counts once\n"
            "change_n = torch.where(counted_n & (once_nn.sum(1) > 1), mean(own_n, once_nn) - own_n, 0)\n"
            "adv_bt = adv_bt + to_tokens(change_n.view_as(state_bs).to(adv_bt.dtype), turn_bt, mask_bt)"
        )

    def _steps(self, batch: Batch, state_bs: Tensor, there_bs: Tensor) -> tuple[Tensor, Tensor]:
        """Return [B·S] number of each turn's step; [B,S] bool: turns that have one."""
        state_bs = torch.where(there_bs, state_bs, -1)
        after_bs = next_turn(state_bs, there_bs, TERMINAL)
        known_bs = there_bs & (state_bs != -1) & (after_bs != -1)
        parts = [
            batch.group_b[:, None].expand_as(state_bs),
            state_bs,
            same_actions(batch, there_bs, self.name),
            after_bs,
        ]
        for back in range(1, self.window + 1):
            parts.append(torch.nn.functional.pad(state_bs, (back, 0), value=TERMINAL)[:, : state_bs.shape[1]])
        return levels.cross(*(x.flatten() for x in parts)), known_bs

    @override
    def words(self) -> str:
        past = f", after the same {self.window} states," if self.window else ""
        return f"a step (state, action, next state) that trajectories of a group share{past} gets their mean advantage"


@part("advantage_transform")
class SharedPrefix(AdvantageTransform):
    """Give a token that several episodes of a group share, with all before it, the mean of their advantages (ARPO).

    Branched episodes share what was sampled before they parted (arXiv:2507.19849, hard attribution). A token is shared
    if it follows the same tokens of the policy in a turn that began in the same state; the first turn always begins so.
    While the ratios of a shared token are equal, plain advantages have the same effect (soft attribution).
    """

    says = "tokens that episodes of a group share, with all before them, get the mean of their advantages"
    equation = "A_t ← mean_{{i through (prefix, y_t)}} A_i"
    reads = ("token_bt", "turn_bt", "state_bs")

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return the mean of A over the episodes that share the token, [B,T]."""
        state_bs = batch.need("state_bs", self.name)
        has_turn(batch, state_bs.shape[1], self.name)
        turn_bt = torch.where(batch.mask_bt, batch.need("turn_bt", self.name), 0).clamp(min=0)
        state_bt = torch.where(turn_bt == 0, 0, state_bs.gather(1, turn_bt))
        shared_bt = batch.active_bt & batch.stats_b[:, None] & (state_bt >= 0)
        node_bt, _ = nodes(batch)
        id_n = levels.cross(node_bt[shared_bt], state_bt[shared_bt])
        out_bt = adv_bt.clone()
        out_bt[shared_bt] = levels.mean(adv_bt[shared_bt], id_n)
        return out_bt

    def idle(self, run: RunFacts) -> list[str]:
        """Say that nothing is shared if groups hold one completion."""
        return ["shared_prefix has no effect: a group of one shares nothing"] if run.group_size == 1 else []
