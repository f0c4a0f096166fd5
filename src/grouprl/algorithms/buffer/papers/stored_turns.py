"""A store of turns for off-policy learning: observation, action, reward and next observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grouprl.algorithms.turn_returns import turn_rewards, turns_of, with_the_rest
from grouprl.core.batch import Batch
from grouprl.core.json_types import State
from grouprl.records.text_samples import TextSamples

Ids = list[list[int]]
COLUMNS = ("first", "start", "end", "later", "question")
"""int64 [M] of each turn: positions in `ids` where its row begins, where its action begins and ends, and where its next
observation ends (-1: none follows); and the number of the prompt.
"""


@dataclass(frozen=True)
class Turns:
    """N turns of a store."""

    seen: Ids
    """Tokens that the policy had read before the action: all tokens of the row so far."""
    done: Ids
    """Tokens of the action."""
    reward_n: Tensor
    later: Ids
    """Tokens read before the next action; those of this turn if none follows."""
    over_n: Tensor
    """[N] bool: turns that no other follows."""
    prompt_n: np.ndarray
    """[N] number of the prompt in the training split."""

    def __len__(self) -> int:
        return len(self.seen)

    def take(self, index: np.ndarray) -> Turns:
        """Return the turns `index` [K]."""
        where = torch.from_numpy(index)
        seen, done, later = ([rows[i] for i in index] for rows in (self.seen, self.done, self.later))
        return Turns(seen, done, self.reward_n[where], later, self.over_n[where], self.prompt_n[index])


def add_turns(store: dict[str, object], rows: TextSamples, batch: Batch, capacity: int, room: int | None) -> None:
    """Append the turns of rows, laid out as `batch`, and forget the oldest rows beyond `capacity` turns.

    Reward of a row beyond that of its turns is counted in its last turn. Turns with more than `room` tokens before them
    (None: no limit) are left out, because no action of full length could be sampled there again.
    """
    there_bs = turns_of(batch, "the store of turns")
    reward_bs = _earned(batch, there_bs)
    turn_bt = torch.where(batch.mask_bt, batch.turn_bt if batch.turn_bt is not None else 0, -1)
    ids: list[int] = []
    found: list[tuple[int, ...]] = []
    rewards: list[float] = []
    for b in range(len(rows)):
        prompt, first = len(rows.prompt_ids[b]), len(ids)
        ids += [*rows.prompt_ids[b], *rows.response_ids[b]]
        spans = _spans(turn_bt[b], there_bs[b], first + prompt)
        laters = [start for _, start, _ in spans[1:]] + [-1]
        for (turn, start, end), later in zip(spans, laters, strict=True):
            if room is None or start - first <= room:
                found.append((first, start, end, later, int(rows.index_b[b])))
                rewards.append(float(reward_bs[b, turn]))
    _append(store, ids, found, rewards)
    _forget(store, capacity)


def turns_stored(store: State) -> int:
    """Return how many turns there are."""
    return len(store["reward"]) if "reward" in store else 0


def read_turns(store: State, index: Sequence[int] | np.ndarray) -> Turns:
    """Return the turns `index` [N]."""
    where = torch.as_tensor(np.asarray(index))
    first_n, start_n, end_n, later_n, prompt_n = (store[name][where].tolist() for name in COLUMNS)
    spans = list(zip(first_n, start_n, end_n, later_n, strict=True))
    ids = store["ids"]
    return Turns(
        seen=[ids[first:start].tolist() for first, start, _, _ in spans],
        done=[ids[start:end].tolist() for _, start, end, _ in spans],
        reward_n=store["reward"][where],
        later=[ids[first : start if later < 0 else later].tolist() for first, start, _, later in spans],
        over_n=store["later"][where] < 0,
        prompt_n=np.array(prompt_n, dtype=np.int64),
    )


def _earned(batch: Batch, there_bs: Tensor) -> Tensor:
    """Return [B,S] the reward of each turn."""
    if batch.turn_reward_bs is None:
        batch = batch.replace(turn_reward_bs=torch.zeros(there_bs.shape, dtype=batch.dtype))
    width = batch.need("turn_reward_bs", "the store of turns").shape[1]
    there_bs = torch.nn.functional.pad(there_bs, (0, width - there_bs.shape[1]))
    return with_the_rest(*turn_rewards(batch, there_bs, "the store of turns"), there_bs)


def _spans(turn_t: Tensor, there_s: Tensor, offset: int) -> list[tuple[int, int, int]]:
    """Return (turn, start of its tokens, end of its tokens) of each turn of a row."""
    spans = []
    for turn in there_s.nonzero()[:, 0].tolist():
        where_n = (turn_t == turn).nonzero()[:, 0]
        spans.append((turn, offset + int(where_n[0]), offset + int(where_n[-1]) + 1))
    return spans


def _append(store: State, ids: list[int], found: list[tuple[int, ...]], rewards: list[float]) -> None:
    before = len(store["ids"]) if "ids" in store else 0
    table_mc = torch.tensor(found, dtype=torch.int64).view(-1, len(COLUMNS))
    table_mc[:, :4] = torch.where(table_mc[:, :4] < 0, -1, table_mc[:, :4] + before)
    new = {name: table_mc[:, c].clone() for c, name in enumerate(COLUMNS)}
    new |= {"ids": torch.tensor(ids, dtype=torch.int32), "reward": torch.tensor(rewards, dtype=torch.float32)}
    for name, values in new.items():
        store[name] = torch.cat([store[name], values]) if name in store else values


def _forget(store: State, capacity: int) -> None:
    """Leave out the oldest rows until at most `capacity` turns are left; the newest row always stays."""
    over = len(store["reward"]) - capacity
    if over <= 0:
        return
    cut = int(store["first"][over])
    if int(store["first"][over - 1]) == cut:  # the row that is cut through goes whole, unless it is the last
        behind = store["first"] > cut
        cut = int(store["first"][behind].min()) if bool(behind.any()) else cut
    recent_m = store["first"] >= cut
    for name in (*COLUMNS, "reward"):
        store[name] = store[name][recent_m].clone()
    for name in ("first", "start", "end", "later"):
        store[name] = torch.where(store[name] < 0, -1, store[name] - cut)
    store["ids"] = store["ids"][cut:].clone()
