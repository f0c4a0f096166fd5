"""KTO, BCO, TPO and DPO with ties: identities, slopes far away, partners, running means, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl import InputError, compose
from grouprl.algorithms.augment.papers.preferences.mismatched import partners
from grouprl.algorithms.augment.papers.preferences.running_score import after
from grouprl.algorithms.augment.papers.preferences.tie_margin import TieMargin
from grouprl.algorithms.link.papers.ties import Davidson, RaoKupper
from grouprl.algorithms.part import RunFacts
from small import f64, near, small

LIKED = {"past": {"score_mean": f64([0.0, 0.0, 0.0])}, "keys": {"mismatched": torch.tensor([0, 0, 1])}}


def labels(scores: list[float], mismatched: float, rewards: tuple[float, ...] = (1, 0, 0)) -> Any:
    """A liked and a disliked completion of one token each and a mismatched one, by their log-ratios."""
    fields = {name: dict(value) for name, value in LIKED.items()}
    batch = small(list(rewards), [1, 1, 1], groups=[0, 1, 0], old_bt=None, ref_bt=f64([[-2.0]] * 3), **fields)
    return batch, f64([[-2.0 + s] for s in (*scores, mismatched)]).requires_grad_()


def loss(name: str, batch: Any, logp_bt: torch.Tensor, **settings: Any) -> torch.Tensor:
    method = grouprl.method(name, **settings)
    return method.loss(logp_bt, method.prepare(batch)).value


@pytest.mark.parametrize(("name", "expected"), [("kto", 0.5), ("kto@trl", 0.5), ("bco", math.log(2))])
def test_where_policy_and_reference_agree(name, expected):
    batch, logp_bt = labels([0.0, 0.0], 0.0)
    near(loss(name, batch, logp_bt), expected)


def test_a_negative_baseline_is_none():
    """z0 = max(0, -3): 1 - σ(0.1·1) and 1 - σ(0.1·2)."""
    batch, logp_bt = labels([1.0, -2.0], -3.0)
    near(loss("kto", batch, logp_bt), (1 / (1 + math.exp(0.1)) + 1 / (1 + math.exp(0.2))) / 2)
    anchored = loss("kto@trl", batch.rows(torch.arange(2)), logp_bt[:2], loss_type="apo_zero_unpaired")
    near(anchored, float(loss("kto", batch, logp_bt).detach()))


def test_the_baseline_has_no_gradient_and_mismatched_rows_no_loss():
    batch, logp_bt = labels([1.0, -2.0], 5.0)
    (grad_bt,) = torch.autograd.grad(loss("kto", batch, logp_bt), logp_bt)
    assert not grad_bt[2].any()
    slope = [1 / (1 + math.exp(0.1 * (5 - 1))), 1 / (1 + math.exp(-0.1 * (5 + 2)))]
    near(grad_bt[:2, 0], [-0.1 * slope[0] * (1 - slope[0]) / 2, 0.1 * slope[1] * (1 - slope[1]) / 2])


@pytest.mark.parametrize("name", ["kto", "bco", "kto@trl"])
@pytest.mark.parametrize("far", [-500.0, -50.0, 50.0, 500.0])
def test_far_away_losses_and_slopes_are_finite(name, far):
    batch, logp_bt = labels([far, -far], 0.0)
    if name == "bco":
        batch, logp_bt = batch.rows(torch.arange(2)), logp_bt[:2]
    value = loss(name, batch, logp_bt)
    (grad_bt,) = torch.autograd.grad(value, logp_bt)
    assert torch.isfinite(value)
    assert torch.isfinite(grad_bt).all()
    expected = (0.0 if far > 0 else 1.0) if "kto" in name else max(0.0, -0.1 * far)
    near(value, expected, 0.01)


def test_classes_weigh_as_they_are_told():
    batch, logp_bt = labels([1.0, -2.0], 0.0)
    liked, both = (loss("kto", batch, logp_bt, undesirable=w) for w in (0.0, 1.0))
    near(loss("kto", batch, logp_bt, desirable=2.0, undesirable=3.0), float((3 * both - liked).detach()))


@pytest.mark.parametrize("name", ["kto", "bco", "tpo", "dpo_ties"])
def test_gradients_are_those_of_finite_differences(name):
    """The baseline of mismatched rows is detached, so that those stay as they are."""
    if name in ("kto", "bco"):
        batch, logp_bt = labels([0.7, 0.4], 0.3)
        places = [(0, 0), (1, 0)]
    else:
        batch = small([1, 0, 2, 0.5, 0.5, 0.1], [2, 1, 2, 1, 2, 1], [0, 0, 0, 1, 1, 1], ref_bt=f64([[-1.0, -1.5]] * 6))
        logp_bt = (-1.2 + torch.sin(3 * torch.arange(12).double()).view(6, 2) / 3).requires_grad_()
        places = [(0, 1), (1, 0), (2, 0), (3, 0), (4, 1)]
    method = grouprl.method(name)
    ready = method.prepare(batch)
    (grad_bt,) = torch.autograd.grad(method.loss(logp_bt, ready).value, logp_bt)
    for row, column in places:
        step_bt = torch.zeros_like(logp_bt)
        step_bt[row, column] = 1e-5
        with torch.no_grad():
            slope = (method.loss(logp_bt + step_bt, ready).value - method.loss(logp_bt - step_bt, ready).value) / 2e-5
        near(grad_bt[row, column], float(slope), 1e-8)


@pytest.mark.parametrize("sizes", [[1] * 5, [2] * 4, [1, 2, 1, 3, 2], [2, 2]])
def test_partners_are_never_of_the_same_prompt_and_each_comes_once(sizes):
    group_n = np.repeat(np.arange(len(sizes)) * 7, sizes)
    seen = set()
    for seed in range(60):
        partner_n = partners(group_n, seed)
        assert sorted(partner_n) == list(range(len(group_n)))
        assert (group_n[partner_n] != group_n).all()
        seen.add(tuple(partner_n))
    assert len(seen) > 1, "partners are drawn"
    assert list(partners(group_n, 3)) == list(partners(group_n, 3))


def test_rotation_gives_each_prompt_the_completion_before():
    assert partners(np.array([4, 5, 6, 7]), None).tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize("group_n", [[], [1], [1, 1], [1, 1, 2]])
def test_where_one_prompt_has_most_rows_there_are_no_partners(group_n):
    assert partners(np.array(group_n, dtype=np.int64), 1) is None


def test_the_running_mean_is_that_of_all_scores_so_far():
    count, mean = 0.0, 0.0
    for chunk in ([1.0, 2.0], [], [6.0]):
        count, mean = after(count, mean, f64(chunk))
    assert (count, mean) == (3.0, 3.0)


def test_a_pair_of_tpo_is_compared_without_the_gold_completion():
    """Its likelihood is 1.5 nats of one token; a group of two has none to imitate."""
    batch = small([1, 0, 2], [1, 1, 1], old_bt=None)
    logp_bt = f64([[-0.7], [-1.2], [-1.5]])
    near(loss("tpo", batch, logp_bt, beta=2.0), math.log(1 + math.exp(-1.0)) + 1.5)
    near(loss("tpo", batch, logp_bt, beta=2.0, gamma=0.5), math.log(1 + math.exp(-0.5)) + 1.5)
    two = small([1, 0], [1, 1], old_bt=None)
    near(loss("tpo", two, logp_bt[:2], beta=2.0), math.log(1 + math.exp(-1.0)))


@pytest.mark.parametrize("link", [Davidson(), RaoKupper()])
def test_the_chances_of_win_loss_and_tie_add_up_to_1(link):
    gap_e, margin_e = f64([-40.0, -3.0, 0.0, 2.5, 40.0]), torch.full((5,), 0.7, dtype=torch.float64)
    ways = (link(gap_e, margin_e), link(-gap_e, margin_e), link.of_ties(gap_e, margin_e))
    near(sum((-each).exp() for each in ways), [1.0] * 5, 1e-12)
    near(link.of_ties(gap_e, margin_e), link.of_ties(-gap_e, margin_e).tolist(), 1e-12)


@pytest.mark.parametrize("model", ["davidson", "rao_kupper"])
def test_without_ties_it_is_dpo(model):
    """As the parameter vanishes, a decided pair has DPO's loss."""
    logp_bt = f64([[-1.1], [-1.7]])
    pair = small([1, 0], [1, 1], old_bt=None, ref_bt=f64([[-2.0]] * 2))
    near(loss("dpo_ties", pair, logp_bt, model=model, margin=1e-9), float(loss("dpo", pair, logp_bt)), 1e-8)


@pytest.mark.parametrize("model", ["davidson", "rao_kupper"])
@pytest.mark.parametrize("far", [-500.0, -50.0, 50.0, 500.0])
def test_ties_far_apart_stay_finite(model, far):
    pair = small([1, 1], [1, 1], old_bt=None, ref_bt=f64([[-600.0]] * 2))
    logp_bt = f64([[-600.0 + far], [-600.0]]).requires_grad_()
    value = loss("dpo_ties", pair, logp_bt, model=model)
    (grad_bt,) = torch.autograd.grad(value, logp_bt)
    assert torch.isfinite(value)
    near(grad_bt[0, 0], math.copysign(0.05 if model == "davidson" else 0.1, far), 0.02)


@pytest.mark.parametrize(
    ("link", "best"), [(Davidson(), 3.0), (RaoKupper(), math.log(7))], ids=lambda x: type(x).__name__
)
def test_the_parameter_of_ties_learns_how_often_they_are(link, best):
    """Three of four pairs of equal scores are tied. Davidson's best m has 2m/(2 + 2m) = 3/4, so 3; Rao and Kupper's has
    σ(-m) = 1/8 of each win, so log 7."""
    part, memory = TieMargin(link=link, rate=1.0), {"log": 0.0}
    rewards = [1, 0, 1, 1, 1, 1, 1, 1]
    batch = small(rewards, groups=[0, 0, 1, 1, 2, 2, 3, 3], ref_bt=f64([[-1.0]] * 8), old_bt=f64([[-1.0]] * 8))
    for _ in range(200):
        memory["log"] -= part.slope(batch, memory)
    assert math.exp(memory["log"]) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("link", [Davidson(), RaoKupper()], ids=lambda x: type(x).__name__)
def test_the_parameter_of_ties_is_the_likeliest_one_of_unequal_scores(link):
    """Gaps of β·Δs = 2, 1, 0 and -1, the second and third tied: of all m on a grid the learned one loses least."""
    scores, rewards = [20.0, 0, 10.0, 0, 0, 0, -10.0, 0], [1, 0, 1, 1, 1, 1, 1, 0]
    olds = f64([[score - 30.0] for score in scores])
    batch = small(rewards, groups=[0, 0, 1, 1, 2, 2, 3, 3], ref_bt=f64([[-30.0]] * 8), old_bt=olds)
    part, memory = TieMargin(link=link, rate=1.0), {"log": 0.0}
    for _ in range(400):
        memory["log"] -= part.slope(batch, memory)
    won_e, tied_e, grid_m = f64([20.0, -10.0]), f64([10.0, 0.0]), torch.linspace(0.01, 5, 5000, dtype=torch.float64)
    loss_m = torch.stack([link(won_e, m.expand(2)).sum() + link.of_ties(tied_e, m.expand(2)).sum() for m in grid_m])
    assert math.exp(memory["log"]) == pytest.approx(float(grid_m[loss_m.argmin()]), abs=2e-3)


def test_the_parameter_of_ties_is_logged():
    pair = small([1, 1], ref_bt=f64([[-1.0]] * 2), past={"tie_margin": f64([0.7, 0.7])})
    method = grouprl.method("dpo_ties", rate=0.1)
    near(method.loss(f64([[-1.0], [-1.0]]), method.prepare(pair)).metrics["tie_margin"], 0.7)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"part": "labelled", "score": "shared_length"}, "exists for pairs only"),
        ({"part": "labelled", "link": "nca_pair"}, "both scores of a pair"),
        ({"part": "tied_pair", "margin": {"part": "constant", "value": 0.0}}, "how likely ties are"),
    ],
)
def test_parts_that_do_not_fit_are_refused(objective, message):
    with pytest.raises(InputError, match=message):
        compose({"name": "mine", "objective": objective, "advantage": "raw_reward", "aggregate": "sequence_mean"})


def test_a_step_of_one_prompt_has_no_other_to_borrow_from():
    score = grouprl.method("kto").objective.score
    assert "batch.prompts is 1" in score.refuse(RunFacts(prompts=1))[0]
    assert score.refuse(RunFacts(prompts=2)) == []


@pytest.mark.parametrize(("name", "told"), [("kto", True), ("bco", False)])
def test_metrics_of_labels_by_the_names_of_trl(name, told):
    """β times log-ratios 1, 4 of liked ones and -2 of a disliked one, before the baseline; log π = -2 + s."""
    fields = {"past": {"score_mean": f64([0.0] * 4)}, "keys": {"mismatched": torch.tensor([0, 0, 0, 0])}}
    batch = small([1, 0, 1, 0], [1] * 4, groups=[0, 1, 2, 2], old_bt=None, ref_bt=f64([[-2.0]] * 4), **fields)
    batch = batch.replace(stat_b=torch.tensor([True, True, True, False]))
    batch = batch.replace(loss_mask_bt=batch.mask_bt & batch.stats_b[:, None])
    logp_bt = f64([[-1.0], [-4.0], [2.0], [7.0]])
    method = grouprl.method(name)
    ready = method.prepare(batch)
    found = method.loss(logp_bt, ready).metrics
    near(found["rewards/chosen"], 0.25)
    near(found["rewards/rejected"], -0.2)
    near(found["rewards/margins"], 0.45)
    near(found["logps/chosen"], 0.5)
    near(found["logps/rejected"], -4.0)
    assert ("kl" in found) == told


def test_metrics_of_labels_add_up_over_micro_batches():
    batch, logp_bt = labels([1.0, -2.0], 0.0)
    batch, logp_bt = batch.rows(torch.arange(2)), logp_bt[:2].detach()
    method = grouprl.method("bco")
    ready = method.prepare(batch)
    pieces = [method.loss(logp_bt[i : i + 1], ready.rows(torch.tensor([i]))).metrics for i in range(2)]
    for metric, value in method.loss(logp_bt, ready).metrics.items():
        near(sum(each[metric] for each in pieces), value)


def test_a_step_without_disliked_completions_has_no_metric_of_them():
    batch, logp_bt = labels([1.0, -2.0], 0.0, rewards=(1, 1, 1))
    batch, logp_bt = batch.rows(torch.arange(2)), logp_bt[:2].detach()
    method = grouprl.method("bco")
    found = method.loss(logp_bt, method.prepare(batch)).metrics
    near(found["rewards/chosen"], -0.05)
    assert not {"rewards/rejected", "rewards/margins", "logps/rejected"} & found.keys()
