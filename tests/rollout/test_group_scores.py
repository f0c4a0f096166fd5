"""Rewards that compare the episodes of a group."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from grouprl.core.errors import InputError
from grouprl.envs.environment_pool_choice import open_stage
from grouprl.records.examples import Example
from grouprl.rewards.contract import Failure
from grouprl.rollout.episodes import Episodes, Start
from grouprl.rollout.group_scores import with_group_scores

BROKEN = Failure("it hung", "", "timeout")


@dataclass
class Ranked:
    """Pays the place of an episode's seed in its group."""

    name: str = "ranked"
    scores_groups: bool = True
    calls: list = field(default_factory=list)

    async def score_group(self, names, /):
        self.calls.append(tuple(names))
        order = sorted(seed for _, seed in names)
        return [None if seed == 9 else {"place": float(order.index(seed)), "correct": 1.0} for _, seed in names]


def episodes(outcomes, rows):
    """Episodes of which only what is scored is filled in: row b belongs to episode rows[b]."""
    left = dict.fromkeys(Episodes.__dataclass_fields__, None)
    verdicts = tuple(outcomes[row] for row in rows)
    return Episodes(**{**left, "verdicts": verdicts, "outcomes": tuple(outcomes), "episode_b": np.array(rows)})


def starts(seeds):
    return [Start(Example("q", ""), seed) for seed in seeds]


def test_each_group_is_compared_by_itself():
    task = Ranked()
    zero = {"correct": 0.0}
    outcomes = [dict(zero), {**zero, "turn": 1.0}, BROKEN, dict(zero), dict(zero)]
    found = with_group_scores(task, episodes(outcomes, [0, 1, 1, 2, 3, 4]), starts([5, 3, 1, 8, 9]), "aaabb")
    assert task.calls == [(("q", 5), ("q", 3)), (("q", 8), ("q", 9))]  # one that failed is not compared
    expected = [
        {"correct": 1.0, "place": 1.0},
        {"correct": 1.0, "turn": 1.0, "place": 0.0},
        BROKEN,
        {"correct": 1.0, "place": 0.0},
        zero,  # it did not reach its end
    ]
    assert list(found.outcomes) == expected
    assert list(found.verdicts) == [expected[row] for row in (0, 1, 1, 2, 3, 4)]  # all rows of an episode alike


def test_other_tasks_are_left_alone():
    given = episodes([{"correct": 1.0}], [0])
    assert with_group_scores(SimpleNamespace(), given, starts([1]), "a") is given
    assert with_group_scores(Ranked(scores_groups=False), given, starts([1]), "a") is given


def test_a_group_is_in_one_process():
    with pytest.raises(InputError, match="compare the episodes of a group"):
        open_stage(Ranked(), 2)
