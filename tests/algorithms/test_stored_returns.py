"""Stored trajectories drawn by their returns: chances by hand, their limits, and what cannot be drawn."""

from __future__ import annotations

import numpy as np
import pytest

import grouprl
from grouprl.algorithms.curriculum.papers.stored_returns import StoredReturns, chances
from grouprl.algorithms.part import RunFacts


def test_the_mass_of_a_few_good_trajectories_is_that_of_the_formula() -> None:
    """5 of 100 with return 1: .05 e^10/(.05 e^10 + .95)."""
    return_n = np.array([1.0] * 5 + [0.0] * 95)
    p_n = chances(return_n, None, 0.1)
    assert p_n[:5].sum() == pytest.approx(0.99914, abs=1e-5)
    assert p_n.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(chances(7 * return_n - 3, None, 0.1), p_n)  # a scale and a shift change nothing


def test_a_return_that_the_beginning_explains_is_no_merit() -> None:
    """G = 10·s_0 exactly but for the last, which earns 4 more: the regression leaves the merit alone."""
    start_n1 = np.array([[0.0], [1.0], [2.0], [0.0], [1.0], [2.0]])
    return_n = 10 * start_n1[:, 0]
    assert chances(return_n, start_n1, 0.1) == pytest.approx(1 / 6)
    return_n[0] += 4
    plain_n, less_n = chances(return_n, None, 0.1), chances(return_n, start_n1, 0.1)
    assert plain_n.argmax() in (2, 5)
    assert less_n.argmax() == 0


def test_limits_of_the_temperature() -> None:
    return_n = np.array([0.0, 0.5, 1.0])
    np.testing.assert_allclose(chances(return_n, None, 1e9), 1 / 3)
    np.testing.assert_allclose(chances(return_n, None, 1e-3), [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(chances(np.full(3, 2.0), None, 0.1), 1 / 3)
    np.testing.assert_allclose(chances(return_n, np.zeros((3, 0)), 0.1), chances(return_n, None, 0.1))


def test_what_is_sampled_or_grouped_is_refused() -> None:
    part = StoredReturns()
    assert not part.refuse(RunFacts(stored=True, group_size=1, examples=4))
    assert "are sampled" in part.refuse(RunFacts(group_size=1))[0]
    assert "one by one" in part.refuse(RunFacts(stored=True, group_size=2))[0]


def test_the_entry_is_cloning_with_another_choice() -> None:
    method = grouprl.method("weighted_bc", temperature=0.2, against="nothing")
    assert method.curriculum == StoredReturns(temperature=0.2, against="nothing")
    assert method.objective == grouprl.method("sft").objective
