"""The arithmetic of the benchmarks of sampling, updating and growth; nothing here depends on how fast the machine
is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import engines
import growth
import report
import sampling
import timing
import updating
from grouprl.policy.passes import padding_ratio, sharing_ratio
from grouprl.rollout import generate
from timing import Taken


def test_calls_take_turns_and_who_begins_changes():
    order = []
    found = timing.alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["b", "a", "a", "b", "b", "a"]
    assert {name: len(taken) for name, taken in found.items()} == {"a": 2, "b": 2}


def test_ratios_are_taken_round_by_round():
    slow, fast = [Taken(4, 2), Taken(9, 3)], [Taken(1, 1), Taken(3, 2)]
    assert timing.ratios(slow, fast) == [2, 1.5]
    assert timing.ratios(slow, fast, "wall") == [4, 3]
    assert timing.cpu(slow) == 2.5


@pytest.mark.parametrize("case", sampling.CASES, ids=lambda case: case.words)
def test_lengths_fit_the_case(case):
    found = sampling.lengths(case)
    assert len(found) == case.rows
    assert max(found) == case.tokens
    assert (sum(found) < 0.4 * case.rows * case.tokens) == case.skewed


def test_both_sides_sample_the_same_lengths():
    case = sampling.Case("small", 2, 3, 4, 12, 1.0, skewed=True, hidden=16, layers=1)
    policy, length_b = sampling.policy_of(case), sampling.lengths(case)
    ids = torch.tensor([[1, 5, 6, 7]] * case.rows)
    ends = [sampling.EndAt(4, torch.tensor(length_b))]
    theirs = policy.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=12, pad_token_id=0,
        stopping_criteria=ends,
    )  # fmt: skip
    ours = generate(policy, ids.tolist(), n=1, max_new_tokens=12, seeds=range(case.rows), budgets=length_b)
    assert [len(x) for x in ours.response_ids] == length_b
    assert theirs.shape[1] == 4 + max(length_b)
    assert sampling.EndAt(4, torch.tensor([2, 3]))(torch.zeros(2, 6), None).tolist() == [True, False]


def test_ways_of_updating_are_compared_by_the_tokens_they_save():
    packed, lean, shared, own = updating.cases()
    assert packed.ratio == lean.ratio == padding_ratio(packed.tokens) > 2
    assert shared.ratio == own.ratio == sharing_ratio(shared.tokens) == 16 * (384 + 48) / (2 * 384 + 16 * 48)


def test_exponents_of_powers():
    sizes = [1.0, 2.0, 4.0]
    assert growth.exponent(sizes, [3 * x**1.5 for x in sizes]) == pytest.approx(1.5)
    assert growth.exponent(sizes, [7.0] * 3) == pytest.approx(0.0, abs=1e-12)


def test_every_axis_varies_one_size():
    for axis, (_, points) in growth.AXES.items():
        others = {tuple(v for k, v in vars(point).items() if k != axis) for point in points}
        assert len(others) == 1
        assert len({getattr(point, axis) for point in points}) == len(points)
    assert set(growth.WORDS) == set(growth.AXES)


def test_a_point_is_measured_in_a_process_of_its_own():
    point = growth.Point(prompts=2, group=2, prompt=4, completion=4, hidden=16, layers=1)
    found = growth.apart(growth.measure_sampling, point, 1) | growth.apart(growth.measure_updating, point, 1)
    assert set(found) == set(growth.KEYS)
    assert found["sample_s"] > 0
    assert found["cache_mb"] == (2 * 4 + 4 * 4) * 1 * 2 * 16 * 4 / 2**20


def test_peak_is_that_of_the_call_alone():
    """In a fresh process: of a large one that idles, a kernel may take pages back while the call adds its own."""
    code = "import growth; held = bytearray(2**26); print(growth.peak(lambda: bytearray(2**27)))"
    place = {**os.environ, "PYTHONPATH": str(Path(growth.__file__).parent)}
    done = subprocess.run([sys.executable, "-c", code], env=place, capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(128, abs=8)


def test_verdicts_name_what_was_missed():
    near, far = {"ratio": 2.0, "goal": 1.5, "over_products": 1.9}, {"ratio": 1.0, "goal": 2.0, "over_products": 2.6}
    assert engines.verdict([("a", near)]) == "Every goal beside `generate` is met. All within 2 × products."
    found = engines.verdict([("a", near), ("b", far)])
    assert "Missed: b (1.00 of 2)." in found
    assert "Above 2 × products: b (2.6)." in found
    job = {
        "ratio": {"cpu": {"median": 1.5}}, "goal": 2.0, "ours_over_products": 2.0, "trl": {"cpu": 3.0},
        "products": {"seconds": 1.0},
    }  # fmt: skip
    assert "1.50 of 2, missed; 2.0 × products. TRL's step takes 3.0 ×" in report.verdict({"jobs": {"B": job}})
    assert "stands at 1.5 × products" in report.verdict({"jobs": {"B": job}})
