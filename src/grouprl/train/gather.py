"""One step's experience: choose questions, draw answers, explore, refill, replay; and what is learnt from it for later.

Every stage that a method does not have is the plain one: questions in their order, equally many answers each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grouprl.batch import SOURCES, Batch
from grouprl.data.ask import Ask
from grouprl.data.collected import Collected, join, sort_by_group, subset
from grouprl.data.ledger import Visit
from grouprl.errors import RunError
from grouprl.train.account import NO_ROWS, Fates, dropped
from grouprl.train.desk import RunDesk

if TYPE_CHECKING:
    from grouprl.overlap.ahead import Ahead

Round = tuple[Collected, Collected | None, Fates]
"""Rows of one round; rows that exploration took away, drawn but not trained on, and why each of these is not."""


@dataclass(frozen=True)
class Gathered:
    """What a step collected: everything drawn (also what help replaced), the rows to train on, in how many rounds.

    `fate_b` [B] says of each drawn row why it was dropped (see `account`).
    """

    drawn: Collected
    wanted: Collected
    rounds: int
    fate_b: Fates


def gather(desk: RunDesk) -> Gathered | None:
    """Collect one step's rows; None when the method asks nothing in this step."""
    method = desk.method
    refill, replay = method.refill, method.replay
    missing, limit = desk.prompts if replay is None else replay.fresh(desk), getattr(refill, "max_rounds", 1)
    parts: list[Collected] = []
    good: list[Collected] = []
    fates: list[Fates] = []
    for _ in range(limit):
        found = _round(desk, missing) if desk.ahead is None else _ahead(desk.ahead, missing)
        if found is None:
            break
        part, gone, gone_b = found
        whole, fate_b = part if gone is None else join([part, gone]), dropped(part, ahead=desk.ahead is not None)
        kept = subset(part, part.kept_b)
        if refill is not None and len(kept):
            wanted_b = refill.wanted(desk.batch(kept)).numpy()
            fate_b[np.flatnonzero(part.kept_b)[~wanted_b]] = "refill"
            kept = subset(kept, wanted_b)
        parts.append(whole)
        fates += [fate_b, gone_b]
        good.append(kept)
        missing -= len(set(kept.ordinal_b.tolist()))
        if missing <= 0:
            break
    if not parts and replay is None:
        return None
    wanted = join(good) if good else None
    if replay is not None:
        wanted = replay.mix(wanted, desk)
    if wanted is None:
        return None
    drawn, fate_b = (join(parts), np.concatenate(fates)) if parts else (wanted, np.full(len(wanted), "", "<U14"))
    if replay is not None:
        fate_b[(fate_b == "") & ~among(drawn, wanted)] = replay.takes
    return Gathered(drawn, sort_by_group(wanted), len(parts), fate_b)


def _ahead(ahead: Ahead, count: int) -> Round | None:
    """The next `count` groups of those that were asked ahead of training; nothing is explored there."""
    drawn = ahead.round(count)
    return None if drawn is None else (drawn, None, NO_ROWS)


def _round(desk: RunDesk, count: int) -> Round | None:
    """Ask `count` questions; None when nothing is left to ask."""
    method = desk.method
    asks = choose(desk, count) if count > 0 else []
    if not asks:
        return None
    collected = desk.draw(asks)
    if method.greedy_baseline:
        collected = _with_greedy(desk, asks, collected)
    plain, fate_b = collected, dropped(collected)
    for part in method.explore:
        collected = part(collected, desk)
        if not len(collected):
            raise RunError(f"{part.name} left no row of {len(asks)} questions; a step needs at least one")
        fate_b[(fate_b == "") & ~among(plain, collected)] = part.takes
    gone_b = ~among(plain, collected)
    return (collected, subset(plain, gone_b), fate_b[gone_b]) if gone_b.any() else (collected, None, NO_ROWS)


def choose(desk: RunDesk, count: int) -> Sequence[Ask]:
    """Choose `count` questions, with how often and in what way each is answered; fewer where there are no more."""
    method = desk.method
    asks: Sequence[Ask] = desk.take(count) if method.curriculum is None else method.curriculum.choose(count, desk)
    if method.allocation is not None:
        asks = [ask for ask in method.allocation.allot(asks, desk) if ask.answers > 0]
    return asks if method.sampling is None else method.sampling.adjust(asks, desk)


def among(rows: Collected, others: Collected) -> NDArray[np.bool_]:
    """[B] bool: which of `rows` are there among the others, too."""
    there = set(others.row_keys)
    return np.array([key in there for key in rows.row_keys], dtype=bool)


def _with_greedy(desk: RunDesk, asks: Sequence[Ask], collected: Collected) -> Collected:
    reward_b = desk.collector.greedy_reward(asks, collected.group_b)
    return replace(collected, greedy_reward_b=reward_b, kept_b=collected.kept_b & np.isfinite(reward_b))


def remember(desk: RunDesk, gathered: Gathered, judged: Batch | None) -> None:
    """Write the step into the ledger and let the data parts see it. Only rows drawn for this step count.

    Of an episode with several rows the first one is written.
    """
    drawn, wanted = gathered.drawn, gathered.wanted
    rows = drawn.kept_b & (drawn.source_b == SOURCES["drawn"])
    lengths_b = drawn.length_b
    if desk.keeps_ledger:
        size = _mean_advantage(wanted, judged)
        counted, ordinal_b = rows & drawn.first_b, drawn.ordinal_b
        for ordinal in dict.fromkeys(ordinal_b[counted].tolist()):
            of_group = counted & (ordinal_b == ordinal)
            visit = _visit(desk.step, drawn, of_group, lengths_b, size.get(ordinal, 0.0))
            desk.ledger.write(int(drawn.index_b[of_group][0]), visit)
    desk.observe(wanted, judged)
    if rows.any():
        desk.last_entropy = float(drawn.rollout.entropy_bt.numpy()[rows].sum() / lengths_b[rows].sum())


def _visit(step: int, drawn: Collected, rows: np.ndarray, lengths_b: np.ndarray, advantage: float) -> Visit:
    reward_b, correct_b = drawn.scores.reward_b[rows], drawn.scores.correct_b[rows]
    return Visit(
        step=step,
        answers=len(reward_b),
        right=int(correct_b.sum()),
        mean=float(reward_b.mean()),
        std=float(reward_b.std(ddof=1)) if len(reward_b) > 1 else 0.0,
        advantage=advantage,
        lengths=tuple(sorted(lengths_b[rows][correct_b].tolist())),
    )


def _mean_advantage(wanted: Collected, judged: Batch | None) -> dict[int, float]:
    """Mean |advantage| of each question that was trained on."""
    if judged is None:
        return {}
    adv_bt, count_b = judged.need("advantage_bt", "the ledger").abs(), judged.mask_bt.sum(1)
    size_b = (adv_bt.sum(1) / count_b).double().numpy()
    groups, where_b = np.unique(wanted.ordinal_b, return_inverse=True)
    means = np.bincount(where_b, weights=size_b) / np.bincount(where_b)
    return dict(zip(groups.tolist(), means.tolist(), strict=True))
