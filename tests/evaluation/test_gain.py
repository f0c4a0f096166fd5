"""The interval of a gain: paired by prompt, never a point, within what values allow, kept in the record."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.evaluation.gain import PromptValues, difference, gains, paired, recorded_gain
from grouprl.evaluation.pass_at_k import Estimate, mean_interval, pass_at_k_each, wilson
from grouprl.monitor.outcome import verdict


def shares(*values: float, completions: int = 1) -> PromptValues:
    return PromptValues.of(np.array(values, float), completions, shares=True)


def test_independent_shares_get_newcombes_interval() -> None:
    """Newcombe 1998 (Statistics in Medicine 17), method 10 of independent proportions: 56/70 and 48/80."""
    gain = difference(wilson(48 / 80, 80), wilson(56 / 70, 70))
    assert gain == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


def test_paired_shares_get_newcombes_interval_by_hand() -> None:
    """Of 20 prompts 2 are right before and after, 7 only after, none only before: φ = 22 / sqrt(2·18·9·11)."""
    before, after = shares(*[1] * 2, *[0] * 18), shares(*[1] * 9, *[0] * 11)
    (p, low, high), (q, q_low, q_high) = wilson(0.1, 20), wilson(0.45, 20)
    phi = 22 / math.sqrt(2 * 18 * 9 * 11)
    down = math.sqrt((q - q_low) ** 2 + (high - p) ** 2 - 2 * phi * (q - q_low) * (high - p))
    up = math.sqrt((q_high - q) ** 2 + (p - low) ** 2 - 2 * phi * (q_high - q) * (p - low))
    assert paired(before, after) == pytest.approx((0.35, 0.35 - down, 0.35 + up), abs=1e-12)
    alone = difference(before.estimate(), after.estimate())
    assert alone.low < 0.35 - down, "prompts that are taken for different ones give a wider interval"


def test_a_gain_on_every_prompt_is_no_point() -> None:
    gain = paired(shares(*[0] * 24), shares(*[1] * 24))
    assert gain is not None
    assert gain.low < gain.value == 1 == gain.high


def test_prompts_that_one_side_does_not_know_do_not_count() -> None:
    before, after = shares(0, 1, math.nan, 0, 1), shares(1, 1, 1, math.nan)
    assert paired(before, after) == paired(shares(0, 1), shares(1, 1))
    assert paired(shares(0, math.nan), shares(1, 1)) is None
    assert set(gains({"reward": before, "greedy": before}, {"reward": after, "new": after})) == {"reward"}


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60))
def test_the_order_of_prompts_does_not_matter_and_sides_mirror(pairs: list[tuple[bool, bool]]) -> None:
    old, new = (shares(*map(float, side)) for side in zip(*pairs, strict=True))
    gain, back = paired(old, new), paired(new, old)
    assert gain is not None
    assert back is not None
    assert gain == pytest.approx((-back.value, -back.high, -back.low), abs=1e-12)
    assert paired(shares(*old.value_q[::-1]), shares(*new.value_q[::-1])) == pytest.approx(gain, abs=1e-9)
    assert -1 - 1e-9 <= gain.low <= gain.value <= gain.high <= 1 + 1e-9


def test_the_interval_covers_the_truth_where_prompts_differ_in_difficulty() -> None:
    """Among 400 evaluations the paired interval holds the true gain in 95 %, and is narrower than the other."""
    rng, true, held, narrower = np.random.default_rng(0), 0.1, 0, 0
    for _ in range(400):
        easy_q = rng.beta(0.4, 0.4, 60) * 0.9
        before, after = (PromptValues.of(rng.binomial(8, p_q) / 8, 8, shares=True) for p_q in (easy_q, easy_q + true))
        gain, alone = paired(before, after), difference(before.estimate(), after.estimate())
        assert gain is not None
        held += gain.low <= true <= gain.high
        narrower += gain.high - gain.low < alone.high - alone.low
    assert 0.92 <= held / 400 <= 0.99
    assert narrower == 400


def held(prompts: int, completions: int, k: int, trials: int = 300) -> float:
    """The share of evaluations whose interval of pass@k holds the truth; the chances of prompts are beta(2, 2)."""
    rng, count = np.random.default_rng(prompts), 0
    true = 1 - math.prod((2 + i) / (4 + i) for i in range(k))
    for _ in range(trials):
        right_q = rng.binomial(completions, rng.beta(2, 2, prompts))
        value_q = pass_at_k_each(np.full(prompts, completions), right_q, k)
        found = PromptValues.of(value_q, completions, shares=True).estimate()
        count += found.low <= true <= found.high
    return count / trials


@pytest.mark.parametrize(("completions", "k"), [(1, 1), (4, 1), (4, 2), (16, 1), (16, 8)])
def test_intervals_hold_as_often_as_the_docs_say(completions: int, k: int) -> None:
    assert 0.9 <= held(64, completions, k) <= 0.985
    assert 0.92 <= held(256, completions, k) <= 0.985


def test_intervals_of_a_few_prompts_are_too_narrow_for_large_k() -> None:
    assert held(8, 16, 8) < 0.8


def test_the_interval_of_a_mean_stays_among_the_values_seen() -> None:
    value_q = np.array([0.0] * 11 + [0.8])
    assert mean_interval(value_q).low < 0
    found = PromptValues.of(value_q, 1, shares=False, least=0.0, most=1.0).estimate()
    assert found.low == 0
    assert found.high < 1


def test_values_survive_the_file() -> None:
    for values in (shares(0, math.nan, 0.5, completions=4), PromptValues((0.2, 3.0), 1, False, -1.0, 3.0)):
        again = PromptValues.from_json(json.loads(json.dumps(values.as_json())))
        assert again == values
        assert again.estimate() == values.estimate()


def test_a_record_that_states_its_gain_decides() -> None:
    before = {"eval/pass@1": 0.07, "eval/pass@1_low": 0.02, "eval/pass@1_high": 0.25}
    after = {"eval/pass@1": 0.30, "eval/pass@1_low": 0.15, "eval/pass@1_high": 0.50}
    assert verdict(before, after).kind == "unclear"  # as if of different prompts: [-0.005, 0.44]
    stated = {"eval/pass@1_gain": 0.23, "eval/pass@1_gain_low": 0.05, "eval/pass@1_gain_high": 0.40}
    found = verdict(before, after | stated)
    assert found.kind == "learned"
    assert found.words == "Learned: held-out sampled pass@1 0.07 → 0.30, difference +0.23 [+0.05, +0.40]."
    assert recorded_gain(before, after | stated, "eval/pass@1") == Estimate(0.23, 0.05, 0.40)
    between = before | stated  # a gain counts from the evaluation before training, not from a later one
    assert recorded_gain(between, after | stated, "eval/pass@1") == difference(
        Estimate(0.07, 0.02, 0.25), Estimate(0.30, 0.15, 0.50)
    )
