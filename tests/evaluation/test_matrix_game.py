"""Games of preferences in closed form: rock, paper, scissors; win rates with intervals."""

from __future__ import annotations

import pytest
import torch

from grouprl import Edges, InputError
from grouprl.evaluation.matrix_game import duality_gap, proximal_step, regularised_nash, wilson, win_rates

CIRCLE = torch.tensor([[0.5, 0.95, 0.05], [0.05, 0.5, 0.95], [0.95, 0.05, 0.5]], dtype=torch.float64)
REF = torch.tensor([0.5, 0.0, -0.5], dtype=torch.float64).softmax(0)
START = torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64).softmax(0)


def kl(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one * (one.log() - other.log())).sum())


def test_only_the_even_mixture_cannot_be_exploited():
    even, pure = torch.full((3,), 1 / 3, dtype=torch.float64), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    assert duality_gap(CIRCLE, even) == pytest.approx(0, abs=1e-12)
    assert duality_gap(CIRCLE, pure) == pytest.approx(0.9)  # paper wins 0.95, so 2·0.45
    with pytest.raises(InputError, match="add up to 1"):
        duality_gap(CIRCLE * 0.9, even)


def test_the_regularised_policy_answers_itself():
    nash = regularised_nash(CIRCLE, REF, 0.05)
    answer = (REF.log() + CIRCLE @ nash / 0.05).softmax(0)
    torch.testing.assert_close(nash, answer, rtol=0, atol=1e-10)
    assert duality_gap(CIRCLE, nash) == pytest.approx(0.054, abs=1e-3)


def test_one_step_cycles_where_two_converge():
    """The published numbers: β = 0.05, η = 0.2, 400 steps from softmax(2, 0, -1)."""
    nash, one, two = regularised_nash(CIRCLE, REF, 0.05), START, START
    for _ in range(400):
        one = proximal_step(CIRCLE, one, one, REF, 0.05, 0.2)
        ahead = proximal_step(CIRCLE, two, two, REF, 0.05, 0.2)
        two = proximal_step(CIRCLE, two, ahead, REF, 0.05, 0.2)
    assert kl(nash, one) == pytest.approx(0.562, abs=2e-3)
    assert kl(nash, two) < 1e-12


def test_against_the_reference_a_large_step_is_the_exact_answer():
    step = proximal_step(CIRCLE, START, REF, REF, 0.1, 1e12)
    torch.testing.assert_close(step, (REF.log() + CIRCLE @ REF / 0.1).softmax(0), rtol=0, atol=1e-9)


def test_win_rates_count_both_directions_and_know_their_uncertainty():
    edges = Edges(torch.tensor([[0, 1], [1, 2], [3, 0]]), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    found = win_rates(edges, torch.tensor([0, 1, 0, 1]), 3)  # kinds 0 beats 1, 1 loses to 0, 1 beats 0
    assert found.count_kk[0, 1] == found.count_kk[1, 0] == 3
    assert float(found.rate_kk[0, 1]) == pytest.approx(2 / 3)
    assert float(found.rate_kk[1, 0]) == pytest.approx(1 / 3)
    assert float(found.rate_kk[0, 2]) == 0.5
    assert (float(found.low_kk[0, 2]), float(found.high_kk[0, 2])) == (0.0, 1.0)
    assert 0 < float(found.low_kk[0, 1]) < 2 / 3 < float(found.high_kk[0, 1]) < 1


def test_wilsons_interval_of_8_of_10():
    low, high = wilson(torch.tensor(0.8, dtype=torch.float64), torch.tensor(10.0))
    assert (float(low), float(high)) == (pytest.approx(0.4901625, abs=1e-6), pytest.approx(0.9433178, abs=1e-6))


def test_a_weak_pull_to_the_reference_is_no_reason_to_circle() -> None:
    """Everybody beats the next of a circle for sure, and the answer is known: nobody has a reason to move."""
    count, beta = 5, 0.01
    prefer_kk = torch.full((count, count), 0.5, dtype=torch.float64)
    for kind in range(count):
        prefer_kk[kind, (kind + 1) % count], prefer_kk[(kind + 1) % count, kind] = 1.0, 0.0
    ref_k = torch.tensor([0.3, 0.1, 0.25, 0.15, 0.2], dtype=torch.float64)
    nash_k = regularised_nash(prefer_kk, ref_k, beta, steps=20_000)
    torch.testing.assert_close((ref_k.log() + prefer_kk @ nash_k / beta).softmax(0), nash_k, atol=1e-10, rtol=0)
