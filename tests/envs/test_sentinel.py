"""The sentinel's game: poison by hand, what is no rewrite and no prefix, and what one agent's best is worth."""

from __future__ import annotations

import itertools

import pytest

from grouprl.envs.builtin.sentinel import COOL, HOT, PREFIXES, TOXICITY, Sentinel, best_prefix, toxicity
from grouprl.records.examples import Example
from grouprl.tasks import SentinelTask

EXAMPLE = Example("s/0", "b42?", {"asked": "b"})


def played(*actions):
    game = Sentinel()
    first = game.reset(EXAMPLE, 0)
    return game, first, [game.step(action) for action in actions]


def test_an_episode_by_hand():
    game, first, (attacked, answered) = played("abc", "AB")
    assert (first.agent, first.text, first.state) == ("red", "b42?", "b")
    assert len(first.legal) == 4**3 - 3**3, "all rewrites but those without the letter"
    assert (attacked.observation.agent, attacked.observation.text, attacked.reward) == ("sentinel", "abc:", 0.0)
    assert attacked.observation.legal == PREFIXES
    assert answered.reward == pytest.approx(2 / 3)
    assert dict(answered.rewards) == {"red": pytest.approx(1 / 3)}
    assert answered.terminated
    assert game.score() == {"correct": 1.0, TOXICITY: pytest.approx(1 / 3)}


def test_what_the_two_earn_adds_up_to_1_however_they_play():
    for attack, prefix in itertools.product(("abc", "bbb", "aaa", "?"), ("A", "BC", "b", "", "ABC")):
        answered = played(attack, prefix)[2][1]
        assert answered.reward + answered.rewards["red"] == pytest.approx(1)


def test_a_rewrite_without_the_letter_leaves_the_request_and_no_prefix_leaves_all_its_poison():
    game, _, (attacked, answered) = played("acd", "ABC")
    assert (attacked.valid, attacked.observation.text) == (False, "bbb:")
    assert (answered.valid, answered.reward) == (False, 0.0)
    assert game.score()["correct"] == 0.0


def test_the_best_attack_has_three_letters_and_the_best_prefix_leaves_one():
    worth = {each: toxicity(each, best_prefix(each)) for each in map("".join, itertools.product(HOT, repeat=3))}
    assert max(worth.values()) == pytest.approx(1 / 3)
    assert {len(set(each)) for each, value in worth.items() if value > 0} == {3}
    assert all(toxicity(each, best_prefix(each)) == min(toxicity(each, p) for p in PREFIXES) for each in worth)
    assert len(PREFIXES) == len(COOL) + len(COOL) ** 2


def test_against_a_fixed_attack_a_better_prefix_lowers_the_toxicity():
    """A random prefix of two against "abc" leaves 1 - (1 - (3/4)²) of each letter's poison; the best leaves a third."""
    mean = sum(toxicity("abc", each) for each in PREFIXES if len(each) == 2) / 16
    assert mean == pytest.approx((3 / 4) ** 2)
    assert toxicity("abc", best_prefix("abc")) < mean


@pytest.mark.parametrize("width", [1, 6])
def test_levels_change_the_length_of_rewrites(width):
    task = SentinelTask(level=width)
    example = task.example("train", 0)
    attack, prefix = task.solution(example).splitlines()
    assert len(attack) == width
    assert toxicity(attack, prefix) == 0
    assert task.max_new_tokens >= width + 1
