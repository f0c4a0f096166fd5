"""The entropy law and the sigmoid law: known curves are found again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grouprl.core.errors import InputError
from grouprl.monitor.laws import fit_entropy_law, fit_sigmoid_law


def sigmoid(c: float, start: float = 0.2, ceiling: float = 0.6, b: float = 1.5, mid: float = 3000.0) -> float:
    return start + (ceiling - start) / (1 + (mid / c) ** b)


def test_a_line_in_e_to_the_entropy():
    """e^H = 1, 2, 3 and R = 0.6, 0.5, 0.4: a = 0.1, b = 0.7."""
    law = fit_entropy_law([0.0, math.log(2), math.log(3)], [0.6, 0.5, 0.4])
    assert (law.a, law.b, law.ceiling, law.r2) == pytest.approx((0.1, 0.7, 0.6, 1.0))
    assert law.predict(math.log(4)) == pytest.approx(0.3)
    assert law.warnings == ()


def test_least_squares_by_hand():
    """x = 1, 2, 3 and R = 0.5, 0.6, 0.4: slope -0.05, mean 0.5 at x = 2; 1 - 0.015/0.02 is explained."""
    law = fit_entropy_law([0.0, math.log(2), math.log(3)], [0.5, 0.6, 0.4])
    assert (law.a, law.b, law.r2) == pytest.approx((0.05, 0.6, 0.25))


def test_what_makes_the_law_doubtful_is_said():
    assert "too little" in fit_entropy_law([0.5, 0.501, 0.502], [0.1, 0.09, 0.08]).warnings[0]
    assert "rises with entropy" in fit_entropy_law([0.1, 0.5, 0.9], [0.1, 0.2, 0.3]).warnings[0]


def test_the_sigmoid_is_found_again():
    compute = np.geomspace(200, 50_000, 40)
    law = fit_sigmoid_law(compute, [sigmoid(c) for c in compute], start=0.2)
    assert law.ceiling == pytest.approx(0.6, abs=1e-3)
    assert (law.exponent, law.midpoint) == pytest.approx((1.5, 3000.0), rel=1e-2)
    assert law.predict(3000.0) == pytest.approx(0.4, abs=1e-3), "half of the gain at the midpoint"
    assert law.r2 > 0.9999


def test_noise_moves_the_ceiling_little():
    compute = np.geomspace(300, 40_000, 60)
    noise = np.random.default_rng(0).normal(0, 0.005, len(compute))
    law = fit_sigmoid_law(compute, [sigmoid(c) for c in compute] + noise, start=0.2)
    assert law.ceiling == pytest.approx(0.6, abs=0.02)
    assert law.exponent == pytest.approx(1.5, rel=0.1)


def test_half_of_the_curve_tells_the_end():
    compute = np.geomspace(300, 10_000, 40)
    law = fit_sigmoid_law(compute, [sigmoid(c) for c in compute], start=0.2)
    assert law.predict(100_000.0) == pytest.approx(sigmoid(100_000.0), abs=0.01)


def test_units_scale_the_midpoint_alone():
    compute = np.geomspace(300, 40_000, 30)
    rates = [sigmoid(c) for c in compute]
    one, two = (fit_sigmoid_law(k * compute, rates, start=0.2) for k in (1.0, 60.0))
    assert (two.ceiling, two.exponent, two.midpoint) == pytest.approx(
        (one.ceiling, one.exponent, 60 * one.midpoint), rel=1e-3
    )


def test_the_early_transient_can_be_left_out():
    compute = np.geomspace(300, 40_000, 30)
    rates = [sigmoid(c) for c in compute]
    rates[:3] = [0.05, 0.5, 0.05]
    assert fit_sigmoid_law(compute, rates, start=0.2, skip=float(compute[3])).ceiling == pytest.approx(0.6, abs=1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fit_entropy_law([0.1, 0.2], [1, 2]), "2 points"),
        (lambda: fit_entropy_law([0.1] * 3, [1, 2, 3]), "all entropies are the same"),
        (lambda: fit_entropy_law([0.1, 0.2, math.nan], [1, 2, 3]), "not finite"),
        (lambda: fit_entropy_law([0.1, 0.2, 0.3], [1, 2]), "shape"),
        (lambda: fit_sigmoid_law([0, 1, 2, 3], [0.1, 0.2, 0.3, 0.4], start=0.0), "above 0"),
        (lambda: fit_sigmoid_law([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], start=0.5), "no pass rate exceeds"),
        (lambda: fit_sigmoid_law([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], start=0.0, skip=3), "Lower skip"),
        (lambda: fit_sigmoid_law([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.35], start=0.0).predict(0), "above 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
