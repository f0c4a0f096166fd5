"""Achievements of stored trajectories: which one comes next, and which of another trajectory is the same (PPO-AD)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from grouprl.core.answering import Answering
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.protocols import PolicyInputs
from grouprl.records.unlocking import NOW

Arrays = Tensor | Mapping[str, Tensor]
"""An array, or named arrays."""
SAME = 0.5
"""Share of an achievement from which on the plan pairs it with another."""


@runtime_checkable
class StepInputs(PolicyInputs, Protocol, metaclass=Answering):
    """Rows of observations and actions, with their final observations (`grouprl.policy.ArrayInputs`)."""

    @property
    def observation_bt(self) -> Arrays:
        """[B,T,…] what was seen before each action."""

    @property
    def length_b(self) -> Tensor:
        """[B] the number of actions of each row."""

    def by_position(self, value_bt: Tensor, /) -> Tensor:
        """Return values [B,T,…] of all positions [N,…], row after row."""

    def positions(self) -> Self:
        """Return every position as a row of its own, row after row."""

    def extended(self) -> Self | None:
        """Return the rows with their final observation as one position more."""


class Unlockings(NamedTuple):
    """N actions of trajectories that unlock something, one after the other."""

    inputs: PolicyInputs
    """[N] a row for each action."""
    before: Arrays
    """[N,…] what was seen before each action, without the last unlocking."""
    after: Arrays
    """[N,…] what was seen after it."""
    row_n: Tensor
    """[N] int64: the number of its trajectory, from 0."""
    unlocked_n: Tensor
    """[N] bool: whether the action unlocked an achievement."""
    target_n: Tensor
    """[N] what its value is held to."""


class SamePairs(NamedTuple):
    """P achievements with the same one of another trajectory, all as numbers of actions [P]."""

    source_p: Tensor
    same_p: Tensor
    other_p: Tensor
    """Any achievement of the other trajectory."""


def trajectories(inputs: StepInputs, paid_n: Tensor, target_n: Tensor, above: float) -> Unlockings:
    """Return those rows that unlock something: an action that was paid more than `above` does.

    Raises:
        InputError: final observations are not known.
    """
    wide = inputs.extended()
    if wide is None:
        raise InputError(
            "rows without a final observation",
            "an achievement is the change from one observation to the next",
            "Sample rows from an environment, or give ArrayInputs.final_b",
        )
    row_n = torch.arange(len(inputs.length_b)).repeat_interleave(inputs.length_b)
    kept_n = torch.isin(row_n, row_n[paid_n > above])
    return Unlockings(
        inputs.positions().rows(kept_n.nonzero()[:, 0].tolist()),
        _each(_now(inputs.observation_bt), lambda x: inputs.by_position(x)[kept_n]),
        _each(_now(wide.observation_bt), lambda x: inputs.by_position(x[:, 1:])[kept_n]),
        row_n[kept_n].unique(return_inverse=True)[1],
        paid_n[kept_n] > above,
        target_n[kept_n],
    )


def paid_by_action(batch: Batch, reader: str) -> Tensor:
    """Return [B,T] what the environment paid for each action; 0 where there is none."""
    turn_bt, paid_bs = batch.need("turn_bt", reader), batch.need("turn_reward_bs", reader)
    return torch.where(turn_bt >= 0, paid_bs.gather(1, turn_bt.clamp(min=0)), 0)


def last_of_rows(row_n: Tensor) -> Tensor:
    """Return whether an action is the last one of its row, [N]."""
    return torch.cat([row_n[1:] != row_n[:-1], row_n.new_ones(min(1, len(row_n))).bool()])


def next_unlocks(row_n: Tensor, unlocked_n: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of the action that unlocks next, this one included, and whether there is one, [N] both.

    After the last achievement of a row it is the row's last action.
    """
    place_n = torch.arange(len(row_n))
    ends_n = unlocked_n | last_of_rows(row_n)
    next_n = torch.where(ends_n, place_n, len(row_n)).flip(0).cummin(0).values.flip(0)
    return next_n, unlocked_n[next_n]


def steps_of(found: Unlockings, at_n: Tensor, known_n: Tensor | None = None) -> tuple[Arrays, Arrays]:
    """Return what was seen before and after actions; zeros after those that are not `known_n`."""

    def kept(x: Tensor) -> Tensor:
        return x[at_n] if known_n is None else x[at_n] * known_n.view(-1, *[1] * (x.dim() - 1)).to(x.dtype)

    return _each(found.before, lambda x: x[at_n]), _each(found.after, kept)


def shuffled_in_rows(row_n: Tensor, luck: np.random.Generator) -> Tensor:
    """Return for each action the number of another one of its row, every one once, [N]."""
    mixed_n = torch.from_numpy(luck.permutation(len(row_n)))
    return mixed_n[row_n[mixed_n].argsort(stable=True)]


def transport(cost_pst: Tensor, there_pst: Tensor, reg: float, iterations: int) -> Tensor:
    """Return the transport plan [P,S,T] that minimises the cost minus `reg` times its entropy and moves all it can.

    Every source and target has mass 1, and min(S, T) of it is moved; entries that are not there have none. By
    projections in turn on the rows' limit, the columns' and the total (Dykstra's algorithm; Benamou et al. 2015,
    section 5, arXiv:1412.5154).
    """
    total_p = torch.minimum(there_pst.any(2).sum(1), there_pst.any(1).sum(1))[:, None, None].to(cost_pst.dtype)
    plan = torch.where(there_pst, (-cost_pst / reg).exp(), 0)
    gained = [torch.ones_like(plan) for _ in range(3)]
    for number in range(3 * iterations):
        raised, which = plan * gained[number % 3], number % 3
        mass = raised.sum((1, 2) if which == 2 else 2 - which, keepdim=True)
        limit = total_p if which == 2 else torch.minimum(mass, torch.ones_like(mass))
        plan = torch.where(mass > 0, raised * (limit / mass), 0)
        gained[which] = torch.where(plan > 0, raised / plan, 1)
    return plan


def matched(
    found: Unlockings, phi_nh: Tensor, targets: int, reg: float, iterations: int, luck: np.random.Generator
) -> SamePairs:
    """Return the same achievements of each trajectory and of up to `targets` others, by their representations.

    `phi_nh` [K,H] are those of the actions that unlock, in their order. Two are the same if the plan of `transport`
    moves more than half of one to the other, at a cost of 1 - cosine.
    """
    at_k = found.unlocked_n.nonzero()[:, 0]
    count_r = found.row_n[at_k].bincount()
    place_rk = _padded(torch.arange(len(at_k)), count_r)
    pair_p2 = _row_pairs(len(count_r), targets, luck)
    source_ps, target_pt = place_rk[pair_p2[:, 0]], place_rk[pair_p2[:, 1]]
    there_pst = (source_ps >= 0)[:, :, None] & (target_pt >= 0)[:, None]
    phi_kh = phi_nh.double().cpu()
    plan_pst = transport(1 - phi_kh[source_ps] @ phi_kh[target_pt].mT, there_pst, reg, iterations)
    pair_m, s_m, t_m = (plan_pst > SAME).nonzero(as_tuple=True)
    any_m = torch.from_numpy(luck.random(len(pair_m))) * count_r[pair_p2[pair_m, 1]]
    return SamePairs(at_k[source_ps[pair_m, s_m]], at_k[target_pt[pair_m, t_m]], at_k[target_pt[pair_m, any_m.long()]])


def _row_pairs(rows: int, targets: int, luck: np.random.Generator) -> Tensor:
    """Return [P,2] each row with up to `targets` different others."""
    count = min(targets, rows - 1)
    drawn = [luck.permutation(rows - 1)[:count] for _ in range(rows)]
    pairs = [(row, int(other) + (other >= row)) for row, others in enumerate(drawn) for other in others]
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


def _padded(value_k: Tensor, count_r: Tensor) -> Tensor:
    """Return values in rows [R,K], -1 beyond their lengths."""
    return torch.nn.utils.rnn.pad_sequence(list(value_k.split(count_r.tolist())), True, -1)


def _now(observation: Arrays) -> Arrays:
    """Return what is seen now, without the last unlocking."""
    return observation[NOW] if isinstance(observation, Mapping) and NOW in observation else observation


def _each(value: Arrays, change: Callable[[Tensor], Tensor]) -> Arrays:
    return change(value) if isinstance(value, Tensor) else {name: change(x) for name, x in value.items()}
