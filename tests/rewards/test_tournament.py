"""Tournaments of a group: who wins, who loses, how many comparisons it takes, and what a doubtful judge leads to."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.rewards.judging.comparing import FailedComparison, Judgement, Match
from grouprl.rewards.judging.judge import GroupPlace, placed
from grouprl.rewards.judging.judge_client import JudgeClient
from grouprl.rewards.judging.pair_judge import PairJudge
from grouprl.rewards.judging.tournament import comparisons, standings
from judge_server import judging


class Table:
    """A judge that knows the strength of each row, and counts what it is asked."""

    def __init__(self, strength: Sequence[float]) -> None:
        self.strength, self.rounds = strength, list[list[Match]]()

    def __call__(self, pairs: Sequence[Match]) -> list[Judgement]:
        self.rounds.append(list(pairs))
        return [0.5 + 0.5 * ((s := self.strength)[i] > s[j]) - 0.5 * (s[i] < s[j]) for i, j in pairs]

    @property
    def asked(self) -> list[Match]:
        return [pair for pairs in self.rounds for pair in pairs]


def rewards(groups: Sequence[Sequence[int]], judge) -> list[float]:
    found = standings(groups, judge)
    assert {each.status for each in found.values()} == {"ok"}
    return [found[row].reward for row in sorted(found)]


def test_eight_completions_take_eleven_comparisons():
    judge = Table([3, 1, 4, 1.5, 9, 2, 6, 5])
    assert rewards([range(8)], judge) == [0.5, 0, 0.5, 0.5, 1, 0.5, 0.5, 0.5]
    first = [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert judge.rounds == [first, [(0, 2), (4, 6)], [(2, 4)], [(1, 3), (5, 7)], [(1, 5)], [(4, 1)]]
    assert len(judge.asked) == comparisons(8) == 11


@pytest.mark.parametrize(("rows", "most"), [(0, 0), (1, 0), (2, 1), (3, 3), (4, 5), (5, 6), (7, 9), (16, 23)])
def test_so_many_comparisons_at_most(rows: int, most: int):
    assert comparisons(rows) == most


@given(st.lists(st.permutations(range(9)).flatmap(lambda p: st.integers(1, 9).map(lambda n: p[:n])), max_size=4))
def test_without_ties_the_strongest_row_wins_and_no_pair_is_asked_about_twice(strengths: list[list[int]]):
    flat = [each for strength in strengths for each in strength]
    rows = iter(range(len(flat)))
    groups = [[next(rows) for _ in strength] for strength in strengths]
    judge = Table(flat)
    found = standings(groups, judge)
    assert sorted(found) == list(range(len(flat)))
    assert len(judge.asked) == len({frozenset(pair) for pair in judge.asked})
    for group in groups:
        paid = [found[row].reward for row in group]
        assert sum(set(pair) <= set(group) for pair in judge.asked) <= comparisons(len(group))
        if len(group) == 1:
            assert paid == [0.5]
            continue
        assert group[paid.index(1)] == max(group, key=lambda row: flat[row])
        losers = [min(group[i : i + 2], key=lambda row: flat[row]) for i in range(0, len(group) - 1, 2)]
        assert group[paid.index(0)] == min(losers, key=lambda row: flat[row])
        assert sorted(paid)[1:-1] == [0.5] * (len(group) - 2)


def test_groups_play_their_rounds_together():
    judge = Table([1, 2, 3, 4, 5, 6, 7, 8])
    rewards([[0, 1, 2, 3], [4, 5, 6, 7]], judge)
    assert judge.rounds[0] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [len(each) for each in judge.rounds] == [4, 2, 2, 2]


def test_a_best_row_that_is_not_preferred_to_the_worst_makes_no_pair():
    """2 beats 3 and 0, 1 loses to 0 and 3: 2 is the best and 1 the worst, but 1 beats 2."""
    beats = {(0, 1), (2, 3), (2, 0), (3, 1), (1, 2)}
    asked = list[Match]()

    def judge(pairs: Sequence[Match]) -> list[Judgement]:
        asked.extend(pairs)
        return [float(pair in beats) for pair in pairs]

    assert rewards([range(4)], judge) == [0.5] * 4
    assert asked[-1] == (2, 1)


def test_in_a_draw_the_first_row_passes_on_and_a_drawn_end_makes_no_pair():
    judge = Table([2, 2, 2, 2])
    assert rewards([range(4)], judge) == [0.5] * 4
    assert judge.rounds == [[(0, 1), (2, 3)], [(0, 2)], [(1, 3)]]


def test_what_was_not_decided_is_a_draw_and_nothing_decided_is_no_reward():
    found = standings(
        [range(4)], lambda pairs: [None if pair == (0, 1) else float(pair[0] > pair[1]) for pair in pairs]
    )
    assert [found[row].reward for row in range(4)] == [0.5, 0, 0.5, 1]
    nothing = standings([range(4)], lambda pairs: [None] * len(pairs))
    assert {each.status for each in nothing.values()} == {"not_applicable"}


def test_a_comparison_that_failed_fails_its_group_and_no_other():
    def judge(pairs: Sequence[Match]) -> list[Judgement]:
        return [FailedComparison("no answer", late=True) if 0 in pair else float(pair[0] > pair[1]) for pair in pairs]

    found = standings([[0, 1, 2], [3, 4, 5]], judge)
    assert [found[row].status for row in range(3)] == ["timeout"] * 3
    assert [found[row].reward for row in (3, 4, 5)] == [0, 0.5, 1]


def test_a_judge_behind_an_endpoint_holds_tournaments():
    def longer(request) -> str:
        one, two = json.loads(request["messages"][1]["content"])["completions"]
        return json.dumps({"better": max(one, two, key=lambda each: len(each["text"]))["id"]})

    texts = ["abc", "a", "abcd", "ab", "abcdefghi", "abcde", "abcdefgh", "abcdef"]
    with judging(longer) as (url, got):
        judge = PairJudge(JudgeClient(url, model="m", key_env="", timeout=5.0, tries=2), knock_out=True)
        columns = placed(judge, [{} for _ in texts], [GroupPlace("g", n, "Count.") for n in range(8)])
        found = judge.verdicts(texts, columns, [str(n) for n in range(8)])
    assert [each.reward for each in found] == [0.5, 0, 0.5, 0.5, 1, 0.5, 0.5, 0.5]
    assert len(got) == 2 * 11
