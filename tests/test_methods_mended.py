"""Formulas that once were not their papers', each by hand from what the paper or the authors' code says."""

from __future__ import annotations

import itertools
import math

import grouprl
from grouprl.parts.token_credit import information_gain
from small import f64, gradient, near, small


def bits(p: float) -> float:
    return 0.0 if p in (0.0, 1.0) else -(p * math.log2(p) + (1 - p) * math.log2(1 - p))


# --- KTAE -----------------------------------------------------------------------------------------------------------


def test_the_information_gain_of_a_token_is_never_negative_and_counts_both_sides():
    """All tables of groups of eight, by the definition: H(right) - Σ_x p(x)·H(right | x)."""
    for right in range(1, 8):
        wrong = 8 - right
        for a, b in itertools.product(range(right + 1), range(wrong + 1)):
            gain = float(information_gain(f64([a]), f64([b]), right, wrong))
            present = 0.0 if a + b == 0 else (a + b) / 8 * bits(a / (a + b))
            rest = 8 - a - b
            absent = 0.0 if rest == 0 else rest / 8 * bits((right - a) / rest)
            assert gain >= 0
            assert math.isclose(gain, bits(right / 8) - present - absent, abs_tol=1e-12)


def test_a_token_gains_as_much_where_it_is_missing_as_where_it_stands():
    """Exchanging completions with the token for those without tells the same of being right."""
    with_it = information_gain(f64([3.0]), f64([1.0]), 4.0, 4.0)
    without = information_gain(f64([1.0]), f64([3.0]), 4.0, 4.0)
    near(with_it, without)


def test_ktae_averages_over_tokens_and_bounds_a_wrong_tokens_loss():
    """Token mean over three tokens; the wrong token's ratio e^1.2 = 3.32 is beyond the dual clip 3."""
    batch = small([1.0, 0.0], [2, 1], correct_b=[True, False], truncated_b=[True, True])
    batch = batch.replace(token_bt=f64([[5, 5], [5, 0]]).long())
    method = grouprl.method("ktae", scale="none")
    near(gradient(method, batch, batch.old_bt), [[-0.5 / 3, -0.5 / 3], [0.5 / 3, 0.0]])
    near(gradient(method, batch, batch.old_bt + f64([[0.0, 0.0], [1.2, 0.0]])), [[-0.5 / 3, -0.5 / 3], [0.0, 0.0]])
