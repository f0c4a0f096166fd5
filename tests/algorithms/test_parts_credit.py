"""Credit by comparing completions token by token: shared ends, key tokens, prefix trees; and the likelihood guard."""

from __future__ import annotations

import itertools
from math import comb, exp, log2

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.algorithms.advantage.papers.prefix_tree import PrefixTree
from grouprl.algorithms.advantage_transform.papers.token_credit import (
    KeyTokens,
    SharedEnds,
    fisher_strength,
    information_gain,
)
from grouprl.algorithms.objective.papers.probability import Probability
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.regularize.papers.likelihood import LikelihoodGuard
from grouprl.algorithms.token_weight.papers.once_per_node import OncePerNode
from grouprl.core.errors import InputError
from small import f64, near, prepared, ragged, slopes, small


def ids(rows: list[list[int]]) -> torch.Tensor:
    return ragged([[float(x) for x in row] for row in rows], -1.0).long()


def completions(tokens: list[list[int]], rewards: list[float], **fields):
    return small(rewards, [len(row) for row in tokens], token_bt=ids(tokens), **fields)


# --- shared ends -----------------------------------------------------------------------------------------------------

PLAIN = {"entropy_coef": 0.0, "entropy_limit": None, "spread": False}


def ends(tokens: list[list[int]], advantages: list[float], part: SharedEnds | None = None, **fields):
    batch = completions(tokens, [0.0] * len(tokens), **fields)
    return (part or SharedEnds(**PLAIN))(batch.broadcast(f64(advantages)), batch)


def test_a_shared_prefix_is_doubled_for_the_good_and_spared_for_the_bad():
    near(ends([[1, 2, 3], [1, 2, 4]], [1.0, -1.0]), [[2.0, 2.0, 1.0], [0.0, 0.0, -1.0]])


def test_a_shared_suffix_is_counted_from_the_right():
    near(ends([[5, 1, 2], [1, 2]], [1.0, -1.0]), [[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]])


def test_agreement_in_the_middle_is_no_conflict():
    near(ends([[1, 9, 2], [3, 9, 4]], [1.0, -1.0]), [[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])


def test_equal_completions_of_both_signs_count_both_ends():
    near(ends([[1, 2], [1, 2]], [1.0, -1.0]), [[4.0, 4.0], [0.0, 0.0]])
    near(ends([[1, 2], [1, 2]], [1.0, -1.0], SharedEnds(**{**PLAIN, "spread": True})), [[2.0, 2.0], [0.0, 0.0]])


def test_no_conflict_without_both_signs_or_across_groups():
    near(ends([[1, 2], [1, 2]], [1.0, 1.0]), [[1.0, 1.0]] * 2)
    near(ends([[1, 2], [1, 2]], [1.0, -1.0], groups=[0, 1]), [[1.0, 1.0], [-1.0, -1.0]])
    near(ends([[1, 2], [1, 2]], [1.0, 0.0]), [[1.0, 1.0], [0.0, 0.0]])


def test_entropy_is_taken_off_and_uncertain_completions_are_left_out():
    """Uniform over more than two tokens is beyond ln 2, the limit's origin."""
    part = SharedEnds(positive=1.0, negative=1.0, spread=False)
    out = ends([[1], [2], [3]], [1.0, -1.0, 0.0], part, entropy_bt=[[0.5], [1.0986], [0.2]])
    near(out, [[0.95], [0.0], [-0.02]])


def test_token_ids_are_asked_for():
    with pytest.raises(InputError, match="token_bt"):
        SharedEnds(**PLAIN)(f64([[1.0]]), small([1.0]))
    with pytest.raises(InputError, match="int64"):
        small([1.0]).replace(token_bt=f64([[1.0]]))


# --- key tokens ------------------------------------------------------------------------------------------------------


def exact_p(a: int, b: int, right: int, wrong: int) -> float:
    marked, total = a + b, comb(right + wrong, a + b)
    p = [
        comb(right, k) * comb(wrong, marked - k) / total for k in range(max(0, marked - wrong), min(right, marked) + 1)
    ]
    seen = comb(right, a) * comb(wrong, b) / total
    return sum(x for x in p if x <= seen * (1 + 1e-9))


@settings(max_examples=40, deadline=None)
@given(right=st.integers(1, 8), wrong=st.integers(1, 8), data=st.data())
def test_fishers_exact_test(right, wrong, data):
    a, b = data.draw(st.integers(0, right)), data.draw(st.integers(0, wrong))
    if a + b == 0:
        return
    p = exact_p(a, b, right, wrong)
    expected = 0.0 if p > 1 - 1e-9 else exp(-2 * p)
    near(fisher_strength(f64([float(a)]), f64([float(b)]), right, wrong), [expected], 1e-9)


def test_information_gain_by_hand():
    rest = 0.75 * -((2 / 3) * log2(2 / 3) + (1 / 3) * log2(1 / 3))  # three of four completions, one of them apart
    near(information_gain(f64([2.0, 1.0, 2.0]), f64([2.0, 0.0, 1.0]), 2.0, 2.0)[:2], [0.0, 1 - rest])
    near(information_gain(f64([2.0]), f64([1.0]), 2.0, 2.0), [1 - rest])


def keys(tokens: list[list[int]], right: list[bool], truncated: bool = True, top: float = 1.0):
    batch = completions(tokens, [0.0] * len(tokens), correct_b=right, truncated_b=[truncated] * len(tokens))
    return KeyTokens(top=top)(torch.zeros(batch.size, dtype=torch.float64), batch)


def test_key_tokens_saturate_and_common_ones_get_nothing():
    out = keys([[7, 1], [7, 1], [7, 2], [7, 2]], [True, True, False, False])
    near(out, [[0.0, 1.0], [0.0, 1.0], [0.0, -1.0], [0.0, -1.0]])
    near(keys([[7, 1], [7, 2]], [True, False], top=0.5), [[0.0, 0.5], [0.0, -0.5]])


def test_the_bonus_is_the_same_in_right_and_wrong_completions():
    out = keys([[1, 2, 3], [1, 5, 2], [1, 4, 4], [3, 4, 4]], [True, True, False, False])
    near(out[0, 0], out[2, 0])
    assert 0 < out[0, 0] < 1


def test_one_sided_groups_and_end_tokens_get_nothing():
    assert not keys([[1, 2], [1, 3]], [True, True]).any()
    assert not keys([[1, 2], [1, 3]], [False, False]).any()
    near(keys([[1, 9], [2, 8]], [True, False], truncated=False), [[1.0, 0.0], [-1.0, 0.0]])


# --- prefix tree -----------------------------------------------------------------------------------------------------


def test_credit_sits_where_completions_branch():
    tree = PrefixTree()(completions([[4, 5, 6], [4, 7, 6], [4, 5, 8]], [1.0, 0.0, 0.5]))
    near(tree, [[0.0, 0.75, 0.5], [0.0, -0.75, 0.0], [0.0, 0.75, -0.5]])


def test_equal_rewards_or_one_completion_give_no_credit():
    assert not PrefixTree()(completions([[1, 2], [1, 3]], [0.3, 0.3])).any()
    assert not PrefixTree()(completions([[1, 2], [1, 3]], [0.0, 1.0], groups=[0, 1])).any()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_tree_is_what_a_dictionary_of_prefixes_says(data):
    rows = data.draw(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=2, max_size=6))
    rewards = data.draw(st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=len(rows), max_size=len(rows)))
    batch = completions(rows, rewards)
    tree, once = PrefixTree()(batch), OncePerNode()(batch)
    for i, row in enumerate(rows):
        for t in range(len(row)):
            same = [r for other, r in zip(rows, rewards, strict=True) if other[: t + 1] == row[: t + 1]]
            through = [r for o, r in zip(rows, rewards, strict=True) if o[:t] == row[:t] and len(o) > t]
            rest = len(through) - len(same)
            expected = sum(same) / len(same) - (sum(through) - sum(same)) / rest if rest else 0.0
            near(tree[i, t], expected)
            near(once[i, t], 1 / len(same))
    nodes = {tuple(row[: t + 1]) for row, t in itertools.product(rows, range(4)) if t < len(row)}
    near(once.sum(), float(len(nodes)))


def test_the_probability_objective():
    loss_bt, grad_bt = slopes(Probability(), [[0.5]], prepared([[2.0]]))
    near(loss_bt, [[-2 * exp(-0.5)]])
    near(grad_bt, [[-2 * exp(-0.5)]])


# --- the likelihood guard --------------------------------------------------------------------------------------------


def guard(log_ratio: list[list[float]], advantages: list[list[float]], mask: list[list[bool]] | None = None, **options):
    batch = prepared(advantages)
    if mask is not None:
        batch = batch.replace(loss_mask_bt=torch.tensor(mask))
    logp_bt = (batch.old_bt + ragged(log_ratio)).requires_grad_()
    loss_bt = LikelihoodGuard(coef=1.0, **options)(logp_bt, batch).loss_bt
    (grad_bt,) = torch.autograd.grad(loss_bt.sum(), logp_bt)
    return loss_bt.detach(), grad_bt


def test_nothing_is_paid_where_nothing_fell():
    loss_bt, grad_bt = guard([[0.0, 0.3]], [[1.0, 1.0]])
    assert not loss_bt.any()
    assert not grad_bt.any()


def test_a_token_that_fell_in_a_stretch_that_rose_is_free():
    near(guard([[-0.1, 0.3]], [[1.0, 1.0]])[0], [[0.0, 0.0]])
    near(guard([[-0.1, 0.3]], [[1.0, 1.0]], gate="none")[0], [[0.1, 0.0]])
    loss_bt, grad_bt = guard([[-0.3, 0.1]], [[1.0, 1.0]])
    near(loss_bt, [[0.3, 0.0]])
    near(grad_bt, [[-1.0, 0.0]])


def test_each_stretch_between_holes_has_its_own_gate():
    """The first stretch falls by 0.2, the second rises by 0.5: the completion as a whole rose."""
    log_ratio, advantages, mask = [[-0.2, 0.0, -0.1, 0.6]], [[1.0] * 4], [[True, False, True, True]]
    near(guard(log_ratio, advantages, mask)[0], [[0.2, 0.0, 0.0, 0.0]])
    near(guard(log_ratio, advantages, mask, gate="response")[0], [[0.0, 0.0, 0.0, 0.0]])
    falls = [[-0.9, 0.0, -0.1, 0.6]]
    near(guard(falls, advantages, mask, gate="response")[0], [[0.9, 0.0, 0.1, 0.0]])


def test_bad_completions_are_not_guarded_but_undecided_ones_are():
    near(guard([[-0.2], [-0.2], [-0.2]], [[-1.0], [0.0], [1.0]])[0], [[0.0], [0.2], [0.2]])
    zero_b = LikelihoodGuard().zero_rows(prepared([[-1.0], [0.0], [1.0]]))
    assert zero_b.tolist() == [True, False, False]


def test_one_update_per_rollout_is_named():
    assert LikelihoodGuard().idle(RunFacts(updates_per_rollout=1))
    assert LikelihoodGuard().idle(RunFacts(updates_per_rollout=2)) == []
