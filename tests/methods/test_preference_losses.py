"""Losses of pairs: numbers by hand, identities at policy = reference, slopes far away, ties and empty rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import grouprl
from grouprl import Batch, InputError, compose
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.link.noise import Smoothed
from small import f64, near, small

LENGTHS = [6, 5, 15, 12, 5, 6]
POLICY = f64([-12.0, -15.0, -30.0, -24.0, -7.5, -9.0])
REFERENCE = f64([-13.0, -13.5, -29.0, -26.0, -8.0, -8.0])
HAND: dict[str, tuple[str, dict[str, Any], list[float]]] = {
    "sigmoid": ("dpo", {}, [0.575939, 0.854355, 0.620957]),
    "hinge": ("slic", {}, [0.75, 1.3, 0.85]),
    "ipo": ("ipo", {"length": "mean"}, [20.551111, 27.387778, 22.404444]),
    "exo": ("exo", {}, [2.339545, 3.286512, 2.505517]),
    "nca": ("nca", {}, [1.327074, 1.465664, 1.349888]),
    "robust": ("rdpo", {}, [0.544689, 0.891855, 0.602207]),
    "sppo_hard": ("sppo", {"beta": 0.1}, [28.25, 85.0, 36.25]),
    "apo_zero": ("apo_zero", {}, [0.937591, 1.074813, 0.962523]),
    "apo_down": ("apo_down", {}, [0.962803, 1.049463, 0.975068]),
    "discopop": ("discopop", {"beta": 0.1}, [0.777443, 0.855580, 0.849338]),
    "forward_kl": ("f_dpo", {"divergence": "forward_kl"}, [0.508463, 0.830611, 0.593124]),
    "js": ("f_dpo", {}, [0.626146, 0.754222, 0.652068]),
    "alpha": ("f_dpo", {"divergence": "alpha"}, [0.553465, 0.829412, 0.609934]),
    "simpo": ("simpo", {"gamma": 1.0}, [0.313262, 1.313262, 1.313262]),
    "cpo": ("cpo", {"nll_coef": 0.0}, [0.554355, 1.037488, 0.620957]),
    "orpo": ("orpo", {"nll_coef": 0.0}, [0.028875, 0.069315, 0.069315]),
    "h_dpo": ("h_dpo", {}, [0.589185, 0.820330, 0.627924]),
}
"""Entry, settings and the loss of each of three pairs: TRL's losses on these log-probs."""
RATIOS = ("dpo", "cdpo", "rdpo", "ipo", "slic", "exo", "discopop", "nca", "apo_zero", "apo_down", "sppo", "f_dpo")


def spread(value_b: torch.Tensor, mask_bt: torch.Tensor) -> torch.Tensor:
    return torch.where(mask_bt, (value_b / mask_bt.sum(1))[:, None], 0)


def three_pairs() -> tuple[Batch, torch.Tensor]:
    mask_bt = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    ref_bt = spread(REFERENCE, mask_bt)
    batch = small([1, 0] * 3, groups=[0, 0, 1, 1, 2, 2], mask_bt=mask_bt, old_bt=None, ref_bt=ref_bt)
    return batch, spread(POLICY, mask_bt)


def pair(better: float, worse: float, reference: float = -1.0) -> tuple[Batch, torch.Tensor]:
    """One pair of single tokens."""
    batch = small([1, 0], [1, 1], old_bt=None, ref_bt=f64([[reference], [reference]]))
    return batch, f64([[better], [worse]]).requires_grad_()


def loss(name: str, batch: Batch, logp_bt: torch.Tensor, **settings: Any) -> torch.Tensor:
    method = grouprl.method(name, **settings)
    return method.loss(logp_bt, method.prepare(batch)).value


@pytest.mark.parametrize("key", HAND)
def test_each_pair_by_hand(key):
    name, settings, expected = HAND[key]
    batch, logp_bt = three_pairs()
    for number, value in enumerate(expected):
        rows = torch.tensor([2 * number, 2 * number + 1])
        near(loss(name, batch.rows(rows), logp_bt[rows], **settings), value, 1e-6)
    near(loss(name, batch, logp_bt, **settings), sum(expected) / 3, 1e-6)


@pytest.mark.parametrize(("divergence", "expected"), [("forward_kl", 22.0031), ("js", 23.9545), ("alpha", 22.8518)])
def test_offsets_of_other_divergences_move_least_squares(divergence, expected):
    """TRL's offsets cancel in a difference of sums and not in one of means: of 21.9560, 23.9176 and 22.7519 without."""
    score = {"part": "f_divergence", "divergence": divergence, "length": "mean"}
    spec = {"objective": {"part": "pair", "score": score, "link": "squared"}, "advantage": "raw_reward"}
    method = compose({"name": "mine", **spec, "aggregate": "sequence_mean"}).method
    batch, logp_bt = three_pairs()
    near(method.loss(logp_bt, method.prepare(batch)).value, expected, 1e-4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dpo", math.log(2)),
        ("cdpo", math.log(2)),
        ("rdpo", math.log(2)),
        ("ipo", 1 / (4 * 0.1**2)),
        ("slic", 1.0),
        ("nca", 2 * math.log(2)),
        ("apo_zero", 1.0),
        ("apo_down", 1.0),
        ("sppo", 0.5 * 1000.0**2),
        ("discopop", 0.5 * math.log(2) + 0.5),
        ("f_dpo", math.log(2)),
        ("ld_dpo", math.log(2)),
        ("aot", math.log(2)),
        ("aot_unpaired", math.log(2)),
        ("exo", 0.5 * (math.log(0.5 / 0.999) + math.log(0.5 / 0.001))),
    ],
)
def test_where_policy_and_reference_agree(name, expected):
    batch, _ = three_pairs()
    near(loss(name, batch, batch.ref_bt), expected)


@pytest.mark.parametrize("gap", [-500.0, -50.0, 50.0, 500.0])
@pytest.mark.parametrize("name", [*RATIOS, "h_dpo", "ld_dpo", "aot", "aot_unpaired", "simpo", "cpo", "orpo", "alphapo"])
def test_far_away_losses_and_slopes_are_finite(name, gap):
    batch, logp_bt = pair(-600 + gap / 2, -600 - gap / 2, reference=-600.0)
    value = loss(name, batch, logp_bt)
    (grad_bt,) = torch.autograd.grad(value, logp_bt)
    assert torch.isfinite(value)
    assert torch.isfinite(grad_bt).all()


@pytest.mark.parametrize(
    ("name", "settings", "wrong", "right"),
    [
        ("dpo", {}, -0.1, 0.0),
        ("slic", {}, -0.1, 0.0),
        ("cdpo", {}, -0.09, 0.01),
        ("rdpo", {}, -0.1 * 0.9 / 0.8, -0.1 * 0.1 / 0.8),
        ("ipo", {}, -1010.0, 990.0),
        ("discopop", {"beta": 0.1}, -0.1, 0.0),
        ("exo", {}, 0.0, 0.0),
    ],
)
def test_slopes_500_nats_away(name, settings, wrong, right):
    """Of the chosen log-prob: βσ(-βΔ) is β where the pair is in the wrong order and 0 where it is right."""
    for gap, expected in ((-500.0, wrong), (500.0, right)):
        batch, logp_bt = pair(-600 + gap, -600.0, reference=-600.0)
        (grad_bt,) = torch.autograd.grad(loss(name, batch, logp_bt, **settings), logp_bt)
        near(grad_bt[0, 0], expected, 1e-9)


@pytest.mark.parametrize(
    "name", [*RATIOS, "h_dpo", "ld_dpo", "aot", "aot_unpaired", "simpo", "cpo", "orpo", "alphapo", "mpo"]
)
def test_gradients_are_those_of_finite_differences(name):
    batch, logp_bt = three_pairs()
    logp_bt = (logp_bt + 0.01 * torch.sin(torch.arange(logp_bt.numel()).view_as(logp_bt))).requires_grad_()
    method = grouprl.method(name)
    ready = method.prepare(batch)
    (grad_bt,) = torch.autograd.grad(method.loss(logp_bt, ready).value, logp_bt)
    for row, column in ((0, 0), (1, 2), (2, 14), (3, 11), (5, 5)):
        step_bt = torch.zeros_like(logp_bt)
        step_bt[row, column] = 1e-5
        with torch.no_grad():
            slope = (method.loss(logp_bt + step_bt, ready).value - method.loss(logp_bt - step_bt, ready).value) / 2e-5
        near(grad_bt[row, column], float(slope), 1e-4 * max(1.0, abs(float(slope))))


def test_the_unbiased_loss_is_the_clean_one_on_average():
    for gap in (-30.0, -1.0, 0.0, 2.5, 30.0):
        batch, logp_bt = pair(gap, 0.0)
        swapped, _ = pair(0.0, gap)
        clean = loss("dpo", batch, logp_bt)
        flipped = loss("rdpo", swapped, logp_bt.flip(0))
        near(0.9 * loss("rdpo", batch, logp_bt) + 0.1 * flipped, float(clean.detach()))


@pytest.mark.parametrize(("name", "flips"), [("rdpo", 0.5), ("rdpo", 0.7), ("exo", 0.0), ("cdpo", 0.6)])
def test_shares_of_wrong_labels_that_mean_nothing_are_refused(name, flips):
    with pytest.raises(InputError, match="flips"):
        grouprl.method(name, flips=flips)


def test_one_completion_has_the_shorter_ones_length_of_full_tokens():
    """d = 1 on each of 4 and 2 tokens: s(w) = 2 + ½·2 and s(l) = 2."""
    batch = small([1, 0], [4, 2], old_bt=None, ref_bt=torch.full((2, 4), -2.0, dtype=torch.float64))
    logp_bt = torch.full((2, 4), -1.0, dtype=torch.float64)
    near(loss("ld_dpo", batch, logp_bt), math.log(1 + math.exp(-0.1)))
    near(loss("ld_dpo", batch, logp_bt, alpha=0.0), math.log(2))
    near(loss("ld_dpo", batch, logp_bt, alpha=1.0), math.log(1 + math.exp(-0.2)))


def test_the_power_tends_to_the_logarithm():
    """(1 - p^-α)/α at α = 1e-6 and log p = -1.3."""
    score = grouprl.method("alphapo", alpha=1e-6).objective.score
    batch, _ = pair(0.0, 0.0)
    near(score(f64([[-1.3], [-1.3]]), batch), [-1.3, -1.3], 1e-5)
    assert float(score(f64([[-1.3], [-1.3]]), batch)[0]) == pytest.approx(-1.300000845, abs=1e-9)


def test_odds_near_certainty_and_far_from_it():
    score = grouprl.method("orpo").objective.score
    batch, _ = pair(0.0, 0.0)
    near(score(f64([[math.log(0.25)], [-1e-9]]), batch), [math.log(1 / 3), math.log(1e9)], 1e-6)
    assert torch.isfinite(score(f64([[0.0], [-700.0]]), batch)).all()


def test_simpo_without_margin_is_dpo_without_reference():
    """Completions of one token: 2·(mean) is β = 2 of the sum, and CPO has no reference."""
    batch, logp_bt = pair(-0.7, -1.2)
    near(loss("simpo", batch, logp_bt, gamma=0.0), float(loss("cpo", batch, logp_bt, beta=2.0, nll_coef=0.0)))


def test_ties_and_empty_completions_are_no_pair():
    """The third group is a tie, the fourth has an empty completion: the mean is over the first two pairs."""
    batch, logp_bt = three_pairs()
    mask_bt = torch.zeros(10, 15, dtype=torch.bool)
    mask_bt[:6] = batch.mask_bt
    mask_bt[6, :3] = mask_bt[7, :2] = mask_bt[8, :4] = True
    ref_bt = torch.nn.functional.pad(batch.ref_bt, (0, 0, 0, 4))
    rewards, groups = [1, 0, 1, 0, 1, 0, 0.1, 0.1, 1, 0], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    longer = small(rewards, groups=groups, mask_bt=mask_bt, old_bt=None, ref_bt=ref_bt)
    leaf_bt = torch.nn.functional.pad(logp_bt, (0, 0, 0, 4)).requires_grad_()
    value = loss("dpo", longer, leaf_bt)
    near(value, 0.683751, 1e-6)
    assert not torch.autograd.grad(value, leaf_bt)[0][6:].any()


@pytest.mark.parametrize("name", ["dpo", "cpo", "aot", "mpo", "orpo"])
def test_a_step_without_pairs_has_no_loss(name):
    batch, logp_bt = three_pairs()
    near(loss(name, batch.replace(reward_b=torch.ones(6, dtype=torch.float64)), logp_bt), 0.0)


def test_rewards_of_one_order_make_one_loss():
    """However close or far apart they are, and wherever they stand."""
    batch, logp_bt = three_pairs()
    for rewards in ([1e12 + 1, 1e12] * 3, [1e-300, 0.0] * 3, [-1.0, -7.0, 3.0, 2.0, 0.2, 0.1]):
        near(loss("dpo", batch.replace(reward_b=f64(rewards)), logp_bt), 0.683751, 1e-6)


def test_a_ranked_list_is_all_its_pairs():
    """Three completions of scores 1, 0 and -1 have gaps 1, 1 and 2."""
    batch = small([3, 2, 1], [1, 1, 1], old_bt=None, ref_bt=f64([[-1.0]] * 3))
    expected = (2 * math.log(1 + math.exp(-0.1)) + math.log(1 + math.exp(-0.2))) / 3
    near(loss("dpo", batch, f64([[0.0], [-1.0], [-2.0]])), expected)


def test_likelihood_of_chosen_completions_is_a_mean_over_their_tokens():
    """In a ranked list only the best is chosen; 12 nats over 6 tokens and 30 over 15 are 42/21, by completion 2."""
    batch, logp_bt = three_pairs()
    plain, added = (loss("cpo", batch, logp_bt, nll_coef=c) for c in (0.0, 1.0))
    near(added - plain, (12 + 30 + 7.5) / (6 + 15 + 5))
    ranked = small([3, 2, 1], [1, 1, 1], old_bt=None)
    values = f64([[-0.5], [-1.0], [-2.0]])
    near(loss("cpo", ranked, values) - loss("cpo", ranked, values, nll_coef=0.0), 0.5)


def test_a_margin_that_cannot_act_is_refused():
    spec = {"objective": {"part": "pair", "link": "nca_pair", "margin": {"value": 1.0}}, "advantage": "raw_reward"}
    with pytest.raises(InputError, match=r"margin 'constant' beside the link 'nca_pair'"):
        compose({"name": "mine", **spec, "aggregate": "sequence_mean"})


def test_sorting_needs_a_score_that_parts():
    with pytest.raises(InputError, match="sorted apart"):
        compose(
            {
                "name": "mine",
                "objective": {"part": "pair", "score": {"part": "sorted_gaps", "of": "f_divergence"}},
                "advantage": "raw_reward",
                "aggregate": "sequence_mean",
            }
        )


def test_weights_of_pairs_have_no_gradient_and_are_one_for_tokens_as_likely_as_any():
    batch, logp_bt = three_pairs()
    logp_bt.requires_grad_()
    uniform = torch.full_like(batch.ref_bt, 1 / 8)
    batch = batch.replace(stats={"collision": uniform})
    even_bt = (batch.mask_bt * f64(math.log(1 / 8))).requires_grad_()
    near(loss("wpo", batch, even_bt, beta=0.1), float(loss("dpo", batch, even_bt).detach()))
    value = loss("wpo", batch, logp_bt, beta=0.1)
    assert float(value.detach()) < float(loss("dpo", batch, logp_bt).detach())
    (grad_bt,) = torch.autograd.grad(value, logp_bt)
    assert torch.equal(grad_bt[0, :6], grad_bt[0, :1].expand(6))
    weight = math.exp(min(0.0, -2 - 3 + 2 * math.log(8)))
    near(grad_bt[0, 0], -weight * 0.1 * float(torch.sigmoid(f64(-0.25))) / 3)


def test_win_rates_that_are_none_are_refused():
    batch, logp_bt = pair(-0.7, -1.2)
    with pytest.raises(InputError, match="a reward of 3"):
        loss("sppo", batch.replace(reward_b=f64([3.0, 0.0])), logp_bt, target="win_rate")


def test_sppo_of_win_rates_by_hand():
    """TRL has no such loss; the authors' is half the sum of both squares: P = 0.8, 0.6, 0.9 of the chosen ones."""
    batch, logp_bt = three_pairs()
    batch = batch.replace(reward_b=f64([0.8, 0.2, 0.6, 0.4, 0.9, 0.1]))
    near(loss("sppo", batch, logp_bt, target="win_rate"), 86318.25, 1e-6)


def test_gaps_of_equal_rank_are_compared():
    """The policy's gaps are 1 and 0, the reference's 0 and 1: pair by pair 1 and -1, sorted 0 and 0."""
    logp_bt, ref_bt = f64([[-1.0], [-2.0], [-1.0], [-1.0]]), f64([[-1.0], [-1.0], [-1.0], [-2.0]])
    batch = small([1, 0, 1, 0], [1] * 4, [0, 0, 1, 1], old_bt=None, ref_bt=ref_bt)
    near(loss("aot", batch, logp_bt), math.log(2))
    near(loss("dpo", batch, logp_bt), (math.log(1 + math.exp(-0.1)) + math.log(1 + math.exp(0.1))) / 2)


def test_smoothed_labels_exchange_the_margin_too():
    """z = 0.5 - 1: three quarters of log(1 + e^0.5) and one of log(1 + e^-0.5)."""
    link = Smoothed(of=Logistic(beta=1.0), flips=0.25)
    got = link.of_scores(f64([0.5]), f64([0.0]), f64([1.0]))
    near(got, [0.75 * math.log(1 + math.exp(0.5)) + 0.25 * math.log(1 + math.exp(-0.5))])


@pytest.mark.parametrize(
    "given",
    [
        {"loss_type": "ipo"},
        {"loss_type": "sigmoid_norm"},
        {"loss_type": "aot"},
        {"loss_type": "aot_unpaired"},
        {"f_divergence_type": "js_divergence"},
    ],
)
def test_rewards_are_those_of_the_log_ratios_whatever_the_loss_makes_of_them(given):
    """TRL logs β times the sums of log π/π_ref for every loss: not means, transforms or sorted gaps."""
    batch, logp_bt = three_pairs()
    plain, made = (grouprl.method("dpo@trl", beta=0.1, **each) for each in ({}, given))
    wanted, found = (each.loss(logp_bt, each.prepare(batch)).metrics for each in (plain, made))
    for name in ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"):
        near(found[name], wanted[name])


def test_metrics_by_the_names_of_trl():
    """s(w) = 1, -1, 0.5 and s(l) = -1.5, 2, -1 at β = 0.1; log π by hand."""
    batch, logp_bt = three_pairs()
    method = grouprl.method("cdpo")
    found = method.loss(logp_bt, method.prepare(batch)).metrics
    for name, value in {
        "rewards/chosen": 0.5 / 30,
        "rewards/rejected": -0.5 / 30,
        "rewards/margins": 1 / 30,
        "rewards/accuracies": 2 / 3,
        "logps/chosen": -49.5 / 3,
        "logps/rejected": -48.0 / 3,
    }.items():
        near(found[name], value)


@pytest.mark.parametrize("name", ["bradley_terry", "gpm", "vpl"])
def test_a_tied_pair_does_not_count_in_the_mean_of_a_reward_model(name: str) -> None:
    """One pair is decided, one tied: loss and slopes are those of the decided pair alone."""
    outputs = {key: f64(0.3, -0.5, 2.0, 0.7) for key in grouprl.method(name).outputs}
    outputs["user_kl"] = f64(0.2, 0.2, 0.4, 0.4)

    def loss(rows: int) -> float:
        batch = grouprl.Batch(
            mask_bt=torch.ones(rows, 1, dtype=torch.bool),
            group_b=torch.tensor([0, 0, 1, 1])[:rows],
            reward_b=f64(1.0, 0.0, 1.0, 1.0)[:rows],
            row_outputs={key: value[:rows].clone().requires_grad_() for key, value in outputs.items()},
            step=3,
        )
        method = grouprl.method(name)
        return float(method.loss(torch.zeros(rows, 1, dtype=torch.float64), method.prepare(batch)).value.detach())

    assert loss(2) > 0
    assert loss(4) == pytest.approx(loss(2), rel=1e-12)
