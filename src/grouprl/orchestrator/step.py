"""One step's experience: choose questions, draw answers, explore, refill, replay; and what is learnt from it for later.

What is asked and drawn comes from the run's source (`grouprl.protocols.SampleSource`); this is what is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grouprl.core.batch import SOURCES, Batch
from grouprl.orchestrator.accounting import Fates, dropped
from grouprl.orchestrator.context import RunDesk
from grouprl.orchestrator.synchronous import among
from grouprl.rollout.history import Visit
from grouprl.rollout.samples import Collected, join, sort_by_group, subset


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
        found = desk.rounds.round(missing)
        if found is None:
            break
        part, gone, gone_b = found
        whole, fate_b = part if gone is None else join([part, gone]), dropped(part, ahead=desk.rounds.ahead)
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
