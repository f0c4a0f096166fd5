"""ADPO: greedy D-optimal design by hand and by dense algebra, what it does not read, and runs that choose by it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

import grouprl
from grouprl.algorithms.curriculum.papers.informative_pairs import InformativePairs, d_optimal, of_pairs
from grouprl.algorithms.part import RunFacts
from pretraining_runs import config, records, run
from small import f64, near

PAIRS = {
    "task": {"name": "preferences", "longest": 3},
    "warmup": {"steps": 10, "batch": 16, "lr": 1e-2},
    "batch": {"prompts": 4, "group_size": 2},
    "eval": {"every": 0, "final_prompts": 2},
    "data": {"prompts": 24},
}
METHOD = {"name": "adpo", "among": 12, "size": 16}


def eye(size: int) -> torch.Tensor:
    return torch.eye(size, dtype=torch.float64)


def features(count: int, size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    feature_nd = torch.randn(count, size, generator=generator, dtype=torch.float64)
    return feature_nd, torch.rand(count, generator=generator, dtype=torch.float64) / 4


def test_the_second_choice_is_orthogonal_to_the_first_by_hand():
    """H = diag(5/4, 1) after the first: ¼·(0.98·⅘ + 0.01) < ¼·0.81, though its length is the larger."""
    feature_nd = f64([[0.9, 0.0], [math.sqrt(0.98), 0.1], [0.0, 0.9], [1.0, 0.0]])
    order, inverse_dd, gain = d_optimal(eye(2), feature_nd, f64([0.25] * 4), 2)
    assert order == [3, 2]
    near(inverse_dd, torch.diag(f64([0.8, 1 / 1.2025])))
    assert gain == pytest.approx(math.log(1.25 * 1.2025))


def test_it_is_the_determinant_of_the_information():
    (feature_nd, weight_n), ridge = features(12, 5), 0.3
    order, inverse_dd, gain = d_optimal(eye(5) / ridge, feature_nd, weight_n, 7)
    chosen_md = feature_nd[order]
    matrix_dd = ridge * eye(5) + (chosen_md.T * weight_n[order]) @ chosen_md
    near(inverse_dd @ matrix_dd, eye(5))
    assert gain == pytest.approx(float(torch.logdet(matrix_dd) - 5 * math.log(ridge)))
    first = [
        float(torch.logdet(ridge * eye(5) + w * torch.outer(x, x))) for x, w in zip(feature_nd, weight_n, strict=True)
    ]
    assert order[0] == first.index(max(first))


def test_pairs_chosen_in_two_steps_are_those_chosen_in_one():
    feature_nd, weight_n = features(9, 4)
    order, inverse_dd, gain = d_optimal(eye(4), feature_nd, weight_n, 5)
    first, half_dd, one = d_optimal(eye(4), feature_nd, weight_n, 2)
    left = [place for place in range(9) if place not in first]
    second, whole_dd, other = d_optimal(half_dd, feature_nd[left], weight_n[left], 3)
    assert [*first, *(left[place] for place in second)] == order
    near(whole_dd, inverse_dd)
    assert one + other == pytest.approx(gain)


def test_information_never_falls_and_is_more_than_that_of_random_pairs():
    feature_nd, weight_n = features(40, 6)
    grown = [d_optimal(eye(6), feature_nd, weight_n, count)[2] for count in range(9)]
    assert grown[0] == 0
    assert all(one < other for one, other in itertools.pairwise(grown))
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(50):
        few = torch.randperm(40, generator=generator)[:8]
        found.append(d_optimal(eye(6), feature_nd[few], weight_n[few], 8)[2])
    assert grown[8] > max(found)


def test_no_more_are_chosen_than_there_are_and_each_once():
    feature_nd, weight_n = features(3, 2)
    assert sorted(d_optimal(eye(2), feature_nd, 0 * weight_n, 5)[0]) == [0, 1, 2]


def test_features_and_weights_of_pairs_by_hand():
    """σ'(ln 3) = ¾·¼; a pair that lost a row has nothing to tell."""
    feature_bd = f64([[3.0, 1.0], [5.0, 0.0], [7.0, 7.0], [1.0, 1.0], [0.0, 2.0]])
    logit_b = f64([math.log(3), 1.0, 500.0, 0.0, -600.0])
    feature_nd, weight_n = of_pairs(feature_bd, logit_b, torch.tensor([0, 1, 2, 0, 2]), 3)
    near(feature_nd, f64([[2.0, 0.0], [0.0, 0.0], [7.0, 5.0]]))
    near(weight_n, f64([3 / 16, 0.0, 0.0]))


def test_the_order_within_a_pair_changes_nothing():
    feature_bd, logit_b = features(16, 4)
    pair_b = torch.arange(16) // 2
    turned = pair_b.flip(0), feature_bd.flip(0), logit_b.flip(0)
    one = d_optimal(eye(4), *of_pairs(feature_bd, logit_b, pair_b, 8), 4)
    two = d_optimal(eye(4), *of_pairs(turned[1], turned[2], turned[0], 8), 4)
    assert one[0] == two[0]
    near(one[1], two[1])


def chosen(folder: Path) -> list[int]:
    """The pairs that a run has chosen, in their order."""
    from grouprl.storage.checkpoint import newest
    from grouprl.storage.run_folder import RunFolder

    found, _ = newest(RunFolder.open(folder))
    assert found is not None
    return found.data["memory"]["curriculum.informative_pairs"]["taken"]


def test_a_run_chooses_without_reading_verdicts(tmp_path):
    """Noise turns half of the verdicts of the same words round; the first step has the same pairs."""
    noisy = PAIRS | {"task": {**PAIRS["task"], "noise": 0.5}, "steps": 1}
    assert chosen(run(tmp_path / "clean", METHOD, **PAIRS | {"steps": 1})) == chosen(
        run(tmp_path / "noisy", METHOD, **noisy)
    )


def test_a_run_takes_each_pair_once_before_any_comes_back(tmp_path):
    folder = run(tmp_path / "run", METHOD, **PAIRS | {"steps": 6})
    assert sorted(chosen(folder)) == list(range(24))
    steps = records(folder, "train")
    assert [step["information_gain"] > 0 for step in steps] == [True] * 6
    assert steps[-1]["information"] == pytest.approx(sum(step["information_gain"] for step in steps))
    again = run(tmp_path / "again", METHOD, **PAIRS | {"steps": 7})
    assert len(chosen(again)) == 4


def test_a_run_reads_what_the_policy_and_its_reference_say(tmp_path, monkeypatch):
    """At the first step z = 0, so that every weight is ¼; later the policy has moved. β scales φ and z."""
    seen: list[tuple[torch.Tensor, ...]] = []
    read = InformativePairs.read

    def both(part, among, context):
        found, twice = read(part, among, context), read(InformativePairs(size=16, beta=0.2), among, context)
        seen.append((*found, *twice))
        return found

    monkeypatch.setattr(InformativePairs, "read", both)
    run(tmp_path / "run", METHOD, **PAIRS | {"steps": 2, "optim": {"lr": 1e-2}})
    near(seen[0][1], torch.full((12,), 0.25))
    assert (seen[1][1] < 0.25).all()
    for feature_nd, weight_n, doubled_nd, less_n in seen:
        near(doubled_nd, 2 * feature_nd)
        z_n = (4 * weight_n).rsqrt().clamp(min=1).acosh()  # σ'(z) = ¼ sech²(z/2): half of |z|
        near(less_n, 0.25 / (2 * z_n).cosh() ** 2, 1e-6)


def test_runs_in_which_it_cannot_choose_are_refused_or_told():
    part = InformativePairs(among=8)
    assert not part.refuse(RunFacts(stored=True, group_size=2, examples=9))
    assert "stored pairs" in part.refuse(RunFacts(group_size=2, examples=9))[0]
    assert "Set it to 2" in part.refuse(RunFacts(stored=True, group_size=3, examples=9))[0]
    assert "data.prompts" in part.refuse(RunFacts(stored=True, group_size=2))[0]
    assert not part.idle(RunFacts(stored=True, prompts=7, examples=20))
    for facts in (RunFacts(prompts=8, examples=20), RunFacts(prompts=4, examples=4)):
        assert "no effect" in part.idle(facts)[0]
    with pytest.raises(grouprl.InputError, match="stored pairs"):
        grouprl.train(config({"name": "adpo"}, batch={"prompts": 4, "group_size": 2}))
