"""What passes between rooms: token ids and the tree of their beginnings, histories of prompts, rows as plain data."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fake_context import FakeContext
from grouprl.core.errors import InputError
from grouprl.records.prompt_history import KEEP, PromptHistory, Visit
from grouprl.records.serialize import pack, unpack
from grouprl.records.shared_prefixes import common_beginning, histories
from grouprl.records.tokens import Tokens, read_rows

IDS = st.lists(st.integers(0, 2), max_size=6).map(tuple)


@given(IDS, IDS)
def test_a_common_beginning_is_as_long_as_rows_are_alike(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    assert common_beginning(first, second) == len(list(alike))


@given(st.lists(IDS, min_size=1, max_size=6))
def test_a_tree_has_a_place_for_every_distinct_beginning(rows: list[tuple[int, ...]]) -> None:
    """Two tokens share a place where everything up to them is the same, and nowhere else."""
    tree = histories(rows)
    beginnings = {row[: end + 1] for row in rows for end in range(len(row))}
    assert tree.distinct == len(beginnings)
    place_of = {}
    for at, path in zip(tree.order, tree.paths(), strict=True):
        for end in range(len(rows[at])):
            assert place_of.setdefault(rows[at][: end + 1], path[end]) == path[end]
    assert sorted(place_of.values()) == list(range(len(beginnings)))


def test_a_prompt_of_two_completions_is_read_once() -> None:
    tokens = Tokens.of([[7, 8], [7, 8], [9]], [[1, 2], [1, 3, 4], [5]])
    assert read_rows(tokens) == [(7, 8, 1), (7, 8, 1, 3), (9,)], "nothing is predicted from the last token"
    assert (tokens.tree.distinct, tokens.tree.ratio) == (5, 8 / 5)
    assert tokens.targets().tolist() == [1, 2, 1, 3, 4, 5]
    assert tokens.present_bt().tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    assert tokens.rows([2, 0]).response_ids == ((5,), (1, 2))
    assert tokens.rows(torch.tensor([0, 1, 2])) is tokens


def test_rows_with_agents_are_not_joined_to_rows_without() -> None:
    plain = Tokens.of([[1]], [[2]])
    with pytest.raises(InputError, match="rows with agents cannot be joined"):
        plain.joined([plain.of_agents([0])])
    with pytest.raises(InputError, match="The prompt of row 1 has no tokens"):
        Tokens.of([[1], []], [[2], [3]])


def visit(step: int, rewards: list[float]) -> Visit:
    mean, std = float(np.mean(rewards)), float(np.std(rewards, ddof=1))
    return Visit(step, len(rewards), sum(x > 0 for x in rewards), mean, std, advantage=0.5, lengths=(3, 4))


def test_moments_are_those_of_the_mixture_of_all_visits() -> None:
    """Each visit counts alike: the mean of the means; the mean variance and the spread of the means."""
    history, groups = PromptHistory(), [[0.0, 1.0, 1.0], [0.0, 0.0], [1.0, 2.0, 4.0, 0.0]]
    for step, rewards in enumerate(groups):
        history.write(5, visit(step, rewards))
    means = [np.mean(x) for x in groups]
    past = history.past([5, 6])
    assert past["visits"].tolist() == [3.0, 0.0]
    assert past["mean"] == pytest.approx([np.mean(means), 0.0])
    variance = np.mean([np.var(x, ddof=1) for x in groups]) + np.var(means)
    assert past["std"] == pytest.approx([np.sqrt(variance), 0.0])


def test_a_history_goes_on_from_plain_data() -> None:
    history, other = PromptHistory(), PromptHistory()
    for step in range(KEEP + 2):
        history.write(1, visit(step, [float(step), 0.0]))
    other.restore(json.loads(json.dumps(history.state())))
    assert other.visits(1) == history.visits(1)
    assert [v.step for v in other.visits(1)] == list(range(2, KEEP + 2)), "the latest visits"
    assert other.moments(1) == history.moments(1)
    assert other.moments(1).visits == KEEP + 2
    assert (other.rate(1), other.rate(2, unseen=0.25)) == (0.5, 0.25)


def test_rows_come_back_from_plain_data_with_their_prompts() -> None:
    context = FakeContext()
    samples = context.sample(context.take(2))
    prompts = ("another prompt", *samples.prompts[1:])
    packed = pack(replace(samples, prompts=prompts))
    found = unpack(packed, context.task)
    assert found.prompts == prompts
    assert found.examples == samples.examples
    assert found.rollout.tokens == samples.rollout.tokens
    assert torch.equal(found.rollout.logp_bt, samples.rollout.logp_bt)
    np.testing.assert_array_equal(found.scores.reward_b, samples.scores.reward_b)
    np.testing.assert_array_equal(found.group_b, samples.group_b)


def test_rows_of_another_task_are_refused() -> None:
    context = FakeContext()
    packed = pack(context.sample(context.take(1)))
    packed["example_ids"] = ["foreign" for _ in packed["example_ids"]]
    with pytest.raises(InputError, match="has no prompt 'foreign'"):
        unpack(packed, context.task)
