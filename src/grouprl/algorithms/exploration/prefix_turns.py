"""Going on from the middle of an episode: to branch it, cut it and write it anew, try again, patch an action."""

from __future__ import annotations

from typing import Any

import numpy as np

from grouprl.algorithms.exploration.resampling import again
from grouprl.core.errors import InputError
from grouprl.rollout.episode import Turn
from grouprl.rollout.requests import Ask
from grouprl.rollout.samples import Collected


def turns_of(collected: Collected, row: int) -> list[tuple[Turn, tuple[int, ...]]]:
    """Return every turn of the episode that `row` belongs to, whoever acted, with its token ids, in order.

    Raises InputError where rows of the episode are missing, or `row` is no episode.
    """
    if collected.records is None or collected.records[row] is None:
        raise InputError(f"row {row} is no episode", "only what was acted out turn by turn can be acted out again")
    rows = np.flatnonzero(collected.extras["keys.episode"] == collected.extras["keys.episode"][row])
    found: dict[int, tuple[Turn, tuple[int, ...]]] = {}
    for each in rows.tolist():
        record, ids = collected.records[each], np.array(collected.rollout.response_ids[each])
        turn_t = collected.extras["turn_bt"][each, : len(ids)]
        for place, turn in enumerate(() if record is None else record.turns):
            found[turn.number] = (turn, tuple(ids[turn_t == place].tolist()))
    if sorted(found) != list(range(len(found))):
        absent = next(number for number in range(len(found) + 1) if number not in found)
        raise InputError(
            f"turn {absent} of the episode of row {row} is missing",
            "an episode is acted out again from its beginning",
            "Keep all rows of an episode together until then",
        )
    return [found[number] for number in sorted(found)]


def led(collected: Collected, row: int, turns: int, *, skip: int = 0, **changes: Any) -> Ask:
    """Return an ask for one more episode that begins with the first `turns` turns of that of `row`, luck and all.

    It is numbered as `again` does it; `changes` are fields of the ask. What the turns showed is checked when they are
    acted out again. To patch an action, put other ids at the end of `lead_turns` and leave the last text of
    `lead_seen` away.
    """
    known = turns_of(collected, row)
    if not 0 <= turns <= len(known):
        raise InputError(f"{turns} turns of an episode of {len(known)} are to be acted out again")
    asked: dict[str, Any] = {
        "lead_turns": tuple(ids for _, ids in known[:turns]),
        "lead_seen": tuple(turn.seen for turn, _ in known[:turns]),
        "luck": int(collected.extras["keys.luck"][row]),
    }
    return again(collected, row, skip, **(asked | changes))
