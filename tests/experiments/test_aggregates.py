"""Aggregates of runs: hand-computed values, limits, and what rliable makes of the same scores."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from grouprl.core.errors import InputError
from grouprl.experiments.aggregates import (
    curve_band,
    draws_of,
    improvement_interval,
    interquartile_mean,
    iqm_difference,
    iqm_interval,
    performance_profile,
    probability_of_improvement,
    profile_band,
    resampled,
)
from grouprl.experiments.significance import holm, paired_p_value, two_sided_t

VECTORS = Path(__file__).with_name("rliable.json")
CASES = json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]


def column(*values: float) -> np.ndarray:
    return np.array(values, float)[:, None]


def test_the_interquartile_mean_leaves_a_quarter_out_at_either_end() -> None:
    assert interquartile_mean(column(0, 1, 2, 100)) == 1.5
    assert interquartile_mean(column(0, 1, 2, 3, 100)) == 2.0  # 5 // 4 = 1 at either end
    assert interquartile_mean(column(1, 5)) == 3.0  # nothing to leave out


def test_the_interquartile_mean_does_not_depend_on_the_order_of_seeds() -> None:
    score_nm = np.random.default_rng(0).normal(size=(7, 3))
    assert interquartile_mean(score_nm[::-1]) == pytest.approx(interquartile_mean(score_nm), abs=1e-15)


def test_the_probability_of_improvement_counts_ties_half() -> None:
    assert probability_of_improvement(column(1, 2), column(2, 3)) == (0.5 + 3) / 4
    assert probability_of_improvement(column(1, 2), column(1, 2)) == 0.5


def test_a_profile_is_a_share_of_runs_above_a_level() -> None:
    assert performance_profile(column(0.1, 0.5, 0.9), np.array([0.0, 0.5, 0.9])).tolist() == pytest.approx(
        [1, 1 / 3, 0]
    )


def test_draws_stay_within_their_task() -> None:
    """Scores that differ between tasks only have an interval of no width."""
    score_nm = np.tile([[0.1, 0.9]], (4, 1))
    assert iqm_interval(score_nm) == pytest.approx((0.5, 0.5, 0.5))


def test_a_paired_difference_does_not_have_the_spread_that_seeds_share() -> None:
    shared = np.linspace(0, 1, 8)[:, None]
    found = iqm_difference(shared, shared + 0.1)
    assert found == pytest.approx((0.1, 0.1, 0.1), abs=1e-12)
    assert iqm_interval(shared).high - iqm_interval(shared).low > 0.2


def test_the_band_of_one_curve_repeated_is_that_curve() -> None:
    curve_p = np.linspace(0, 1, 5)
    for found in curve_band(np.tile(curve_p, (3, 1))):
        assert found == pytest.approx(curve_p)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{np.shape(case['a'])}")
def test_rliable_says_the_same(case: dict) -> None:
    a_nm, b_nm = np.array(case["a"]), np.array(case["b"])
    for name, score_nm in (("a", a_nm), ("b", b_nm)):
        found = iqm_interval(score_nm, draws=20_000)
        assert found.value == pytest.approx(case["iqm"][name], abs=1e-12)
        assert [found.low, found.high] == pytest.approx(case["iqm_interval"][name], abs=0.02)  # of 2,000 draws there
        level_l = np.array(case["levels"])
        assert performance_profile(score_nm, level_l) == pytest.approx(case["profile"][name], abs=1e-12)
        for ours, theirs in zip(profile_band(score_nm, level_l), case["profile_band"][name], strict=True):
            assert ours == pytest.approx(theirs, abs=1 / score_nm.size + 1e-9)  # a share is a multiple of this
    above = improvement_interval(a_nm, b_nm)
    assert above.value == pytest.approx(case["improvement"], abs=1e-12)
    assert [above.low, above.high] == pytest.approx(
        case["improvement_interval"], abs=0.02 + 1 / (a_nm.size * len(a_nm))
    )


def test_an_improvement_is_that_of_all_pairs_of_a_draw() -> None:
    """Of unequal numbers of seeds: the pairs of each draw counted one by one."""
    rng = np.random.default_rng(3)
    a_nm, b_nm = rng.integers(0, 4, (3, 2)) / 2, rng.integers(0, 4, (5, 2)) / 2
    a_dnm = resampled(a_nm, draws_of((3, 2), 7, 40))
    b_dnm = resampled(b_nm, draws_of((5, 2), 8, 40))
    pairs = [
        np.mean([[(y > x) + 0.5 * (y == x) for x, y in itertools.product(a, b)] for a, b in zip(a_m, b_m, strict=True)])
        for a_m, b_m in zip(np.moveaxis(a_dnm, 2, 1), np.moveaxis(b_dnm, 2, 1), strict=True)
    ]
    low, high = np.percentile(pairs, (2.5, 97.5))
    assert improvement_interval(a_nm, b_nm, seed=7, draws=40)[1:] == pytest.approx((low, high), abs=1e-12)


def test_many_seeds_fit_into_memory() -> None:
    """A thousand seeds of two arms: the pairs of every draw would be five thousand million."""
    rng = np.random.default_rng(0)
    tracemalloc.start()
    found = improvement_interval(rng.normal(size=(1000, 1)), rng.normal(size=(1000, 1)), draws=200)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.low < 0.5 < found.high
    assert most < 1e8


@pytest.mark.parametrize(("seeds", "least", "most"), [(3, 0.68, 0.84), (5, 0.83, 0.93), (10, 0.9, 0.97)])
def test_intervals_of_few_seeds_are_too_narrow_by_what_the_docs_say(seeds: int, least: float, most: float) -> None:
    rng = np.random.default_rng(seeds)
    held = 0
    for trial in range(250):
        found = iqm_interval(rng.normal(size=(seeds, 1)), trial, draws=300)
        held += found.low <= 0 <= found.high
    assert least <= held / 250 <= most


def test_students_t_is_that_of_the_tables() -> None:
    for t, freedom in ((12.706205, 1), (4.302653, 2), (2.776445, 4), (2.228139, 10), (1.959964, 1e6)):
        assert two_sided_t(t, freedom) == pytest.approx(0.05, abs=1e-6)
    assert two_sided_t(0.0, 3) == pytest.approx(1.0)
    assert two_sided_t(-2.776445, 4) == two_sided_t(2.776445, 4)


def test_one_task_is_the_plain_paired_test() -> None:
    """Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t = 3.4641 with 2 degrees of freedom."""
    assert paired_p_value(column(1, 2, 3)) == pytest.approx(two_sided_t(2 * 3**0.5, 2))
    assert paired_p_value(column(1, 2, 3)) == pytest.approx(0.074180, abs=1e-6)


def test_tasks_are_strata() -> None:
    """Two tasks of equal spread have twice the degrees of freedom, and a spread between them does not count."""
    found = paired_p_value(np.array([[1.0, 11], [2, 12], [3, 13]]))
    error = (2 * (1 / 3) / 4) ** 0.5
    assert found == pytest.approx(two_sided_t(7 / error, 4))


def test_differences_without_spread() -> None:
    assert paired_p_value(column(0, 0)) == 1.0
    assert paired_p_value(column(0.5, 0.5)) == 0.5  # two equal signs are one half by chance, however large they are
    assert paired_p_value(column(*[-0.5] * 5)) == 1 / 16
    assert paired_p_value(column(*[3.0] * 6)) == 1 / 32
    assert paired_p_value(np.array([[1.0, 11]] * 3)) == 1 / 4  # tasks share their seeds
    with pytest.raises(InputError, match="two"):
        paired_p_value(column(0.5))


def test_holm_steps_down() -> None:
    """0.01·4, then 0.02·3 = 0.06, 0.03·2 = 0.06, and 0.04·1 is held up to 0.06."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
