"""Homes: everybody's home is found if and only if nobody is asked about before the host."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from grouprl import InputError
from grouprl.envs.builtin.sub_tasks import CITIES, Homes, told, word_counts
from grouprl.testing import check_environment
from homes import ANY, Told, earned, forests


def test_a_chain_by_hand() -> None:
    """Bob lives with Ann, Cid with Bob: asked about in the order Ann, Cid, Bob, Cid is lost and Bob is found."""
    tasks = told([-1, 0, 1], ["rome", "oslo", "oslo"])
    assert [task.text for task in tasks] == ["ann lives in rome", "bob lives with ann", "cid lives with bob"]
    assert {task.answer for task in tasks} == {"rome"}
    rewards, correct = earned(tasks, [0, 2, 1])
    assert rewards == pytest.approx([0.5 / 3, 0.0, 0.5 / 3 + 0.5 * 2 / 3])
    assert correct == 0
    assert earned(tasks, [0, 2, 1], match=0.0)[0] == pytest.approx([0, 0, 2 / 3])
    assert earned(tasks, [0, 1, 2], match=1.0) == ([pytest.approx(1 / 3)] * 3, 1.0)


def test_an_unknown_home_is_copied() -> None:
    rewards, _ = earned(told([-1, 0, 1], ["rome"] * 3), [1, 0, 2], match=1.0)
    assert rewards == pytest.approx([0, 1 / 3, 0])


@pytest.mark.parametrize(("count", "expected"), [(3, 16), (4, 125)])
def test_an_order_is_best_if_and_only_if_hosts_come_first(count: int, expected: int) -> None:
    every = forests(count)
    assert len(every) == expected, "(n + 1)^(n - 1) forests, Cayley"
    for hosts in every:
        tasks, best = told(hosts, CITIES[:count] + ("rome",) * count), 0.0
        for order in permutations(range(count)):
            rewards, correct = earned(tasks, order)
            first = all(hosts[person] in (-1, *order[:place]) for place, person in enumerate(order))
            assert (sum(rewards) == pytest.approx(1)) == (correct == 1) == first
            best = max(best, sum(rewards))
        assert best == pytest.approx(1)


def test_who_is_told_in_order_and_who_is_not() -> None:
    def shuffled(world: Homes) -> int:
        draws = [world.draw(ANY, seed) for seed in range(200)]
        return sum(earned(tasks, range(world.count))[1] < 1 for tasks in draws)

    assert shuffled(Homes(4, in_order=1.0)) == 0
    assert 60 < shuffled(Homes(4, in_order=0.5)) < 100
    assert 120 < shuffled(Homes(4, in_order=0.0)) < 180


def test_what_is_seen() -> None:
    world = Told(told([-1, 0], ["rome", "oslo"]))
    first = world.reset(ANY, 0)
    words = world.words

    def counted(numbers: np.ndarray) -> dict[str, float]:
        return {word: float(n) for word, n in zip(words, numbers, strict=True) if n}

    values = first.values
    assert isinstance(values, dict)
    assert counted(values["choices"][1]) == {"bob": 1, "ann": 1, "with": 1}
    assert counted(values["state"][: len(words)]) == {"ann": 2, "bob": 1, "rome": 1, "in": 1, "with": 1}
    assert counted(values["state"][len(words) :]) == {}
    step = world.step(1)
    shown = step.observation
    assert np.asarray(shown.legal).tolist() == [True, False]
    assert counted(shown.values["state"][len(words) :]) == {"bob": 1, "unknown": 1}  # type: ignore[attr-defined]
    assert shown.text == "ann lives in rome bob lives with ann\nfound: bob unknown"
    with pytest.raises(InputError, match="'bob' was done before"):
        world.step(1)
    assert world.step(0).observation.legal is None  # type: ignore[comparison-overlap]


def test_it_keeps_the_rules_of_environments() -> None:
    check_environment(Homes, ANY, [0, 1, 2, 3, 4], spaces=Homes().spaces)


def test_what_it_cannot_be() -> None:
    with pytest.raises(InputError, match="An order needs two"):
        Homes(1)
    with pytest.raises(InputError, match="match is a share"):
        Homes(3, match=2.0)
    with pytest.raises(InputError, match="There are 6 names"):
        Homes(7)
    with pytest.raises(InputError, match="form a circle"):
        told([1, 0], ["rome", "rome"])
    with pytest.raises(InputError, match="no episode was under way"):
        Homes().step(0)
    world = Homes()
    world.reset(ANY, 0)
    with pytest.raises(InputError, match="called twice"):
        world.reset(ANY, 0)


def test_words_are_counted_up_to_a_bound() -> None:
    assert word_counts("a b a a", ("a", "b", "c")).tolist() == [3, 1, 0]
    assert word_counts("a " * 20, ("a",)).tolist() == [8]
