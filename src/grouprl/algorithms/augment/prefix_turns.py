"""Continuing from the middle of an episode: to branch it, to cut and rewrite it, to try again, or to
patch an action.
"""

from __future__ import annotations

import numpy as np

from grouprl.algorithms.augment.resampling import again
from grouprl.core.errors import InputError
from grouprl.records.episode_records import Turn
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples
from grouprl.records.text_samples import as_text


def turns_of(samples: ScoredSamples, row: int) -> list[tuple[Turn, tuple[int, ...]]]:
    """Return every turn of the episode that `row` belongs to, of any agent, with its token ids, in order.

    Raises InputError if rows of the episode are missing, or `row` is not an episode.
    """
    if samples.records is None or samples.records[row] is None:
        raise InputError(f"row {row} is not an episode", "only what was acted out turn by turn can be acted out again")
    rows = np.flatnonzero(samples.extras["keys.episode"] == samples.extras["keys.episode"][row])
    found: dict[int, tuple[Turn, tuple[int, ...]]] = {}
    for each in rows.tolist():
        record, ids = samples.records[each], np.array(as_text(samples).response_ids[each])
        turn_t = samples.extras["turn_bt"][each, : len(ids)]
        for place, turn in enumerate(() if record is None else record.turns):
            found[turn.number] = (turn, tuple(ids[turn_t == place].tolist()))
    if sorted(found) != list(range(len(found))):
        absent = next(number for number in range(len(found) + 1) if number not in found)
        raise InputError(
            f"turn {absent} of the episode of row {row} is missing",
            "an episode is replayed from its beginning",
            "Keep all rows of an episode together until it is replayed",
        )
    return [found[number] for number in sorted(found)]


def led(samples: ScoredSamples, row: int, turns: int, *, skip: int = 0, **changes: object) -> RolloutRequest:
    """Return a request for one more episode that begins with the first `turns` turns of that of `row`, with the same
    random seed.

    It is numbered as in `again`; `changes` are fields of the request. The observations are checked when the turns are
    replayed. To patch an action, put other ids at the end of `prefix_turns` and omit the last text of
    `prefix_observations`.
    """
    known = turns_of(samples, row)
    if not 0 <= turns <= len(known):
        raise InputError(f"{turns} turns of an episode of {len(known)} are to be replayed")
    requested: dict[str, object] = {
        "prefix_turns": tuple(ids for _, ids in known[:turns]),
        "prefix_observations": tuple(turn.seen for turn, _ in known[:turns]),
        "luck": int(samples.extras["keys.luck"][row]),
    }
    return again(samples, row, skip, **(requested | changes))
