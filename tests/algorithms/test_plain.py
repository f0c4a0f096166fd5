"""Functions that printed methods call, by hand-computed values."""

from __future__ import annotations

import torch

from grouprl.algorithms.plain import (
    centered,
    differs,
    mean,
    pairs_to_rows,
    rank,
    same_prefix,
    shared_start,
    spread,
    standardised,
    sum_by_place,
)

VALUE = torch.tensor([1.0, 3.0, 8.0, 5.0], dtype=torch.float64)
PAIRED = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)
"""Two values that are compared, one alone, and one that is compared with nothing."""


def test_statistics_of_the_values_that_a_row_marks() -> None:
    assert mean(VALUE, PAIRED).tolist() == [2.0, 2.0, 8.0, 0.0]
    assert differs(VALUE, PAIRED).tolist() == [True, True, False, False]
    assert spread(VALUE, PAIRED, 0).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert spread(VALUE, PAIRED).tolist() == [2**0.5, 2**0.5, 0.0, 0.0]
    assert centered(VALUE, PAIRED).tolist() == [-1.0, 1.0, 0.0, 0.0]
    assert standardised(VALUE, PAIRED, 1.0, 0).tolist() == [-0.5, 0.5, 0.0, 0.0]
    assert standardised(VALUE, PAIRED, 0.0, 0).tolist() == [-1.0, 1.0, 0.0, 0.0]


def test_weights_count_values_several_times() -> None:
    weight_nn = torch.tensor([[3.0, 1.0, 0.0, 0.0]] * 4, dtype=torch.float64)
    assert mean(VALUE, weight_nn).tolist() == [1.5] * 4
    assert spread(VALUE, weight_nn, 0)[0] == 0.75**0.5


def test_ranks_count_lower_values_and_equal_ones_before() -> None:
    same_nn = torch.tensor([[1, 1, 1, 0]] * 3 + [[0, 0, 0, 1]], dtype=torch.bool)
    assert rank(torch.tensor([2.0, 1.0, 2.0, 0.0]), same_nn).tolist() == [1, 0, 2, 0]


def test_places_are_counted_among_the_tokens_of_the_mask() -> None:
    mask_bt = torch.tensor([[1, 0, 1], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    value_bt = torch.tensor([[1.0, 9.0, 2.0], [10.0, 20.0, 9.0], [5.0, 6.0, 7.0]])
    value_bt = torch.where(mask_bt, value_bt, 0)
    assert sum_by_place(value_bt, mask_bt, torch.tensor([0, 0, 1])).tolist() == [[11, 0, 22], [11, 22, 0], [5, 6, 7]]


def test_prefixes_are_the_same_up_to_the_first_other_token() -> None:
    token_bt, active_bt = torch.tensor([[1, 2, 3], [1, 4, 3], [1, 2, 3]]), torch.ones(3, 3, dtype=torch.bool)
    same_bbt = same_prefix(token_bt, active_bt, torch.tensor([0, 0, 1]))
    assert same_bbt[0].tolist() == [[True] * 3, [True, False, False], [False] * 3]


def test_starts_are_shared_while_good_and_bad_rows_agree() -> None:
    token_bt = torch.tensor([[1, 2, 3], [1, 2, 4], [1, 5, 3]])
    sign_bt = torch.tensor([[1.0] * 3, [-1.0] * 3, [1.0] * 3])
    shared_bt = shared_start(token_bt, sign_bt, torch.ones(3, 3, dtype=torch.bool), torch.zeros(3, dtype=torch.int64))
    assert shared_bt.tolist() == [[True, True, False], [True, True, False], [True, False, False]]


def test_a_pair_counts_half_at_each_of_its_rows() -> None:
    index_2e, group_b = torch.tensor([[0, 0, 3], [1, 2, 4]]), torch.tensor([0, 0, 0, 1, 1])
    loss_e, known_b = torch.tensor([1.0, 2.0, 7.0], dtype=torch.float64), torch.ones(5, dtype=torch.bool)
    loss_b = pairs_to_rows(loss_e, index_2e, group_b, known_b)
    assert loss_b.tolist() == [2.25, 0.75, 1.5, 7.0, 7.0]
    assert (loss_b[:3].mean(), loss_b[3:].mean()) == (1.5, 7.0)  # the mean over the pairs of each group
