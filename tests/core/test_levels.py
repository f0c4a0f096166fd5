"""Arithmetic over segments, against numbers worked out by hand and against plain loops."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clamps import with_slope
from grouprl.core import levels
from grouprl.core.errors import InputError
from small import f64, near

ID = torch.tensor([7, 3, 7, 7, 3])
VALUE = f64([1.0, 10.0, 2.0, 6.0, 20.0])


def test_totals_means_and_counts_are_given_at_every_element():
    near(levels.total(VALUE, ID), [9, 30, 9, 9, 30])
    near(levels.mean(VALUE, ID), [3, 15, 3, 3, 15])
    near(levels.count(ID), [3, 2, 3, 3, 2])


def test_weights_leave_values_out_but_not_their_places():
    weight = f64([1, 0, 1, 0, 1])
    near(levels.mean(VALUE, ID, weight), [1.5, 20, 1.5, 1.5, 20])
    near(levels.mean(VALUE, ID, f64([0, 1, 0, 0, 1])), [0, 15, 0, 0, 15])


def test_standard_deviations():
    near(levels.std(VALUE, ID, sample=True), [7**0.5, 50**0.5, 7**0.5, 7**0.5, 50**0.5])
    near(levels.std(VALUE, ID, sample=False), [(14 / 3) ** 0.5, 5, (14 / 3) ** 0.5, (14 / 3) ** 0.5, 5])


def test_a_constant_segment_has_no_spread_in_floating_point_either():
    value, same = torch.full((7,), 0.1, dtype=torch.float64), torch.zeros(7, dtype=torch.int64)
    assert not levels.std(value, same, sample=True).any()
    assert not levels.relative(value, same, eps=0.0).any()
    assert not levels.differs(value, same).any()


def test_leave_one_out():
    near(levels.leave_one_out_mean(VALUE, ID), [4, 20, 3.5, 1.5, 10])
    one = torch.zeros(4, dtype=torch.int64)
    near(levels.leave_one_out_std(f64([1, 0, 0, 0]), one), [0, 3**-0.5, 3**-0.5, 3**-0.5])


def test_leave_one_out_spread_of_equal_others_is_exactly_zero():
    value, one = f64([1.0, 0.1, 0.1, 0.1]), torch.zeros(4, dtype=torch.int64)
    assert levels.leave_one_out_std(value, one)[0] == 0
    out = levels.relative(value, one, center="leave_one_out", scale="leave_one_out_std")
    near(out[0], 0.9)


def test_extremes_ranks_and_softmax():
    near(levels.extreme(VALUE, ID, largest=True), [6, 20, 6, 6, 20])
    near(levels.extreme(VALUE, ID, f64([1, 1, 1, 0, 1]), largest=True), [2, 20, 2, 2, 20])
    assert levels.rank(VALUE, ID).tolist() == [0, 0, 1, 2, 1]
    assert levels.rank(f64([5.0, 5.0, 1.0]), torch.zeros(3, dtype=torch.int64)).tolist() == [1, 2, 0]
    soft = levels.softmax(f64([0.0, 1000.0, math.log(3), 0.0, 1000.0]), ID)
    near(soft, [0.2, 0.5, 0.6, 0.2, 0.5])


def test_the_log_of_a_softmax_is_among_those_that_count():
    """0, log 3 and 0 in segment 7, of which the last does not count; 1000 nats apart in segment 3."""
    value_n = f64([0.0, 1000.0, math.log(3), math.inf, 0.0]).requires_grad_()
    found_n = levels.log_softmax(value_n, ID, f64([1, 1, 1, 0, 1]))
    near(found_n, [math.log(0.25), 0.0, math.log(0.75), 0.0, -1000.0])
    (slope_n,) = torch.autograd.grad(found_n[2], value_n)
    near(slope_n, [-0.25, 0.0, 0.25, 0.0, 0.0])
    near(levels.log_softmax(f64([5.0]), torch.tensor([2]), f64([0.0])), [0.0])


def test_levels_cross():
    turn = torch.tensor([0, 0, 1, 0, 0])
    crossed = levels.cross(ID, turn)
    assert len(set(crossed.tolist())) == 3
    assert crossed[0] == crossed[3] != crossed[2]


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("none", (0.75, -0.25)),
        ("sample_std", (1.5, -0.5)),
        ("population_std", (3**0.5, -(3**-0.5))),
    ],
)
def test_conventions_of_the_group_relative_advantage(scale, expected):
    one = torch.zeros(4, dtype=torch.int64)
    out = levels.relative(f64([1, 0, 0, 0]), one, scale=scale, eps=0.0)
    near(out, [expected[0], expected[1], expected[1], expected[1]])


def test_the_convention_of_leaving_one_out_in_mean_and_spread():
    one = torch.zeros(4, dtype=torch.int64)
    out = levels.relative(f64([1, 0, 0, 0]), one, center="leave_one_out", scale="leave_one_out_std", eps=0.0)
    near(out, [1.0, -(3**-0.5), -(3**-0.5), -(3**-0.5)])


def test_a_segment_of_one():
    value, own = f64([3.0, 1.0, 2.0]), torch.tensor([0, 1, 1])
    near(levels.relative(value, own, scale="none"), [0, -0.5, 0.5])
    near(levels.relative(value, own, scale="none", alone="raw"), [3, -0.5, 0.5])
    with pytest.raises(InputError, match="group 0 has one member"):
        levels.relative(value, own, alone="refuse")


def test_without_comparison_every_value_stays():
    near(levels.relative(f64([3.0, 1.0]), torch.tensor([0, 1]), center="none", scale="none"), [3, 1])


def test_rows_of_no_weight_neither_count_nor_get_anything():
    out = levels.relative(f64([1, 0, 100]), torch.zeros(3, dtype=torch.int64), scale="none", weight_n=f64([1, 1, 0]))
    near(out, [0.5, -0.5, 0])


def test_leave_one_out_is_a_multiple_of_the_centred_value():
    value, one = f64([3.0, 1.0, 7.0, 2.0]), torch.zeros(4, dtype=torch.int64)
    loo = levels.relative(value, one, center="leave_one_out", scale="none")
    near(loo, 4 / 3 * levels.relative(value, one, center="mean", scale="none"))
    near(loo.sum(), 0.0)


def test_wrong_shapes_are_refused():
    with pytest.raises(InputError, match="one id per value"):
        levels.mean(f64([1.0, 2.0]), torch.tensor([0]))
    with pytest.raises(InputError, match="int64"):
        levels.mean(f64([1.0]), torch.tensor([0.0]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5)), min_size=1, max_size=12))
def test_against_plain_loops(pairs):
    ids, values = [p[0] for p in pairs], [p[1] for p in pairs]
    id_n, value_n = torch.tensor(ids), f64(values)
    segments = [[v for i, v in pairs if i == key] for key in ids]
    near(levels.mean(value_n, id_n), [statistics.fmean(s) for s in segments], 1e-9)
    near(levels.std(value_n, id_n, sample=False), [statistics.pstdev(s) for s in segments], 1e-6)
    near(levels.std(value_n, id_n, sample=True), [statistics.stdev(s) if len(s) > 1 else 0 for s in segments], 1e-6)
    near(levels.extreme(value_n, id_n, largest=False), [min(s) for s in segments])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(-3, 3)), min_size=2, max_size=10),
    st.floats(0.1, 10),
    st.floats(-5, 5),
)
def test_normalised_values_do_not_depend_on_shift_and_scale(pairs, factor, shift):
    id_n, value_n = torch.tensor([p[0] for p in pairs]), torch.round(f64([p[1] for p in pairs]), decimals=1)
    moved_n = value_n * factor + shift
    if not torch.equal(levels.differs(value_n, id_n), levels.differs(moved_n, id_n)):
        return
    out, moved = (levels.relative(v, id_n, eps=0.0) for v in (value_n, moved_n))
    near(moved, out, 1e-6)


def test_ids_in_order_are_numbered_as_any_others():
    for id_n in (torch.arange(5), torch.arange(5).flip(0), torch.tensor([0, 0, 1]), torch.arange(1, 4)):
        index_n, count = levels.compact(id_n)
        unique, wanted_n = torch.unique(id_n, return_inverse=True)
        assert count == len(unique)
        assert torch.equal(index_n, wanted_n)


@pytest.mark.parametrize("of_clamp", [1.0, 0.0])
def test_the_gradient_of_a_log_softmax_that_one_element_has_alone_is_whole(
    of_clamp: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "clamp", with_slope(of_clamp))
    value_n = torch.tensor([0.0, -500.0, 3.0], dtype=torch.float64, requires_grad=True)
    found_n = levels.log_softmax(value_n, torch.tensor([4, 4, 7]), torch.ones(3))
    found_n[1].backward()
    assert value_n.grad is not None
    assert value_n.grad.tolist() == [-1.0, 1.0, 0.0]


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.randoms())
def test_the_total_of_segments_of_one_value_is_that_of_any_others(values: list[float], luck) -> None:
    value_n, order = torch.tensor([*values, -0.0], dtype=torch.float64), list(range(len(values) + 1))
    luck.shuffle(order)
    found_n = levels.total(value_n, torch.tensor(order))
    twice_n = levels.total(torch.cat([value_n, torch.zeros(1, dtype=torch.float64)]), torch.tensor([*order, order[-1]]))
    assert found_n.tolist() == twice_n[:-1].tolist()
    assert torch.signbit(found_n).tolist() == torch.signbit(twice_n[:-1]).tolist()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.float64])
@pytest.mark.parametrize("ids", [[0, 1, 2], [0, 1, 1]])
def test_a_total_has_the_type_of_its_values(dtype: torch.dtype, ids: list[int]) -> None:
    assert levels.total(torch.ones(3, dtype=dtype), torch.tensor(ids)).dtype == dtype
