"""Published losses on three pairs of completions, pair by pair, and the worked numbers that papers' formulas give."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_preference_losses import LENGTHS, loss, spread, three_pairs

import grouprl
from grouprl import Batch
from small import f64, near, small

ITERATE = f64([-12.5, -14.2, -29.5, -25.0, -7.8, -8.4])
TRL: dict[str, tuple[dict[str, Any], list[float]]] = {
    "sigmoid": ({}, [0.575939, 0.854355, 0.620957]),
    "hinge": ({}, [0.75, 1.3, 0.85]),
    "ipo": ({}, [20.551111, 27.387778, 22.404444]),
    "exo_pair": ({"label_smoothing": 1e-3}, [2.339545, 3.286512, 2.505517]),
    "nca_pair": ({}, [1.327074, 1.465664, 1.349888]),
    "robust": ({"label_smoothing": 0.1}, [0.544689, 0.891855, 0.602207]),
    "bco_pair": ({}, [1.265354, 1.542536, 1.312856]),
    "sppo_hard": ({}, [28.25, 85.0, 36.25]),
    "apo_zero": ({}, [0.937591, 1.074813, 0.962523]),
    "apo_down": ({}, [0.962803, 1.049463, 0.975068]),
    "discopop": ({}, [0.777443, 0.855580, 0.849338]),
    "sigmoid_norm": ({}, [0.670086, 0.704882, 0.679903]),
}
"""Losses of DPOTrainer with other settings than the default ones, and the loss of each of three pairs."""
OTHERS = {
    "forward_kl": [0.508463, 0.830611, 0.593124],
    "js_divergence": [0.626146, 0.754222, 0.652068],
    "alpha_divergence": [0.553465, 0.829412, 0.609934],
}
"""Losses of the three pairs with the link 'sigmoid' and another divergence."""
OFFSETS = {"forward_kl": 22.0031, "js_divergence": 23.9545, "alpha_divergence": 22.8518}


def pair_by_pair(name: str, batch: Batch, logp_bt: torch.Tensor, expected: list[float], **settings: Any) -> None:
    """Compare the loss of each pair by itself with `expected`, and that of all with their mean."""
    for number, value in enumerate(expected):
        rows = torch.tensor([2 * number, 2 * number + 1])
        near(loss(name, batch.rows(rows), logp_bt[rows], **settings), value, 1e-6 * max(1.0, value))
    mean = sum(expected) / len(expected)
    near(loss(name, batch, logp_bt, **settings), mean, 1e-6 * max(1.0, mean))


@pytest.mark.parametrize("name", TRL)
def test_losses_of_pairs_by_trls_names(name):
    settings, expected = TRL[name]
    pair_by_pair("dpo@trl", *three_pairs(), expected, loss_type=name, **settings)


@pytest.mark.parametrize("divergence", OTHERS)
def test_other_divergences_by_trls_names(divergence):
    batch, logp_bt = three_pairs()
    pair_by_pair("dpo@trl", batch, logp_bt, OTHERS[divergence], f_divergence_type=divergence)
    squared = loss("dpo@trl", batch, logp_bt, loss_type="ipo", f_divergence_type=divergence)
    near(squared, OFFSETS[divergence], 1e-4)


@pytest.mark.parametrize(("name", "mean"), [("aot", 0.683751), ("aot_unpaired", 0.677938)])
def test_sorted_pairs_by_their_own_and_by_trls_names(name, mean):
    batch, logp_bt = three_pairs()
    near(loss(name, batch, logp_bt), mean, 1e-6)
    near(loss("dpo@trl", batch, logp_bt, loss_type=name), mean, 1e-6)


def test_margins_of_other_objectives():
    """m = 0.3 + 0.1, -0.2 - 0.4 and 0.1: -log σ((0.1·Δ - 0.5·m)/0.5)."""
    batch, logp_bt = three_pairs()
    margin_b = f64([0.4, 0.4, -0.6, -0.6, 0.1, 0.1])
    batch = batch.replace(rewards={**batch.rewards, "margin": margin_b})
    pair_by_pair("modpo", batch, logp_bt, [0.644397, 0.693147, 0.598139])


def test_a_mixture_of_reference_and_iterate():
    """h = 1.7, -2, 1.1: (h - 100)²."""
    batch, logp_bt = three_pairs()
    batch = batch.replace(refs={"iterates": spread(ITERATE, batch.mask_bt)})
    pair_by_pair("inpo", batch, logp_bt, [9662.89, 10404.0, 9781.21])


def test_win_rates():
    batch, logp_bt = three_pairs()
    batch = batch.replace(reward_b=f64([0.8, 0.2, 0.6, 0.4, 0.9, 0.1]))
    pair_by_pair("sppo", batch, logp_bt, [89251.625, 10302.5, 159400.625], target="win_rate")


@pytest.mark.parametrize("name", ["kto", "kto@trl"])
@pytest.mark.parametrize(
    ("liked", "expected"), [(1, [0.482507, 0.532454, 0.495000]), (0, [0.455121, 0.542398, 0.467546])]
)
def test_labels_against_a_baseline(name, liked, expected):
    """z0 = 0.3, the log-ratio of a mismatched completion of one token."""
    whole, logp_bt = three_pairs()
    for pair, value in enumerate(expected):
        row = 2 * pair + 1 - liked
        mask_bt = torch.arange(max(LENGTHS)) < torch.tensor([LENGTHS[row], 1])[:, None]
        ref_bt = torch.stack([whole.ref_bt[row], spread(f64([-1.0]), mask_bt[1:])[0]])
        other_t = spread(f64([-0.7]), mask_bt[1:])[0]
        keys = {"mismatched": torch.tensor([0, 1])}
        batch = small([liked, 1], groups=[0, 1], mask_bt=mask_bt, old_bt=None, ref_bt=ref_bt, keys=keys)
        near(loss(name, batch, torch.stack([logp_bt[row], other_t])), value, 1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "drift"),
    [
        *((1.5, 1, 0.010163), (3, 1, 0.476812), (0.5, -1, 0.201457), (0.2, -1, 1.015026), (3, 2, 2.071945)),
        *((0.5, 1, 0.0), (2, -1, 0.0), (1, 1, 0.0), (1, -1, 0.0)),
    ],
)
def test_the_discovered_drift(ratio, advantage, drift):
    """The loss of one token is f - r·A (arXiv:2210.05639, α = 2, β = 0.6)."""
    method = grouprl.method("discovered_drift")
    batch = small([1.0, 0.0], [1, 1], value_bt=[[0.0], [0.0]])
    ready = method.prepare(batch).replace(advantage_bt=f64([[advantage], [0.0]]), weight_bt=f64([[1.0], [0.0]]))
    near(method.loss(f64([[math.log(ratio) - 1.0], [-1.0]]), ready).value, drift - ratio * advantage, 1e-6)


def test_one_success_among_eight():
    """Bessel's deviation of one 1 and seven 0 is √(1/8): 7/8 and -1/8 of it."""
    ready = grouprl.method("grpo", eps=0.0).prepare(small([1.0, *[0.0] * 7]))
    assert ready.advantage_bt is not None
    torch.testing.assert_close(ready.advantage_bt[:, 0], f64([2.4749, *[-0.3536] * 7]), rtol=0, atol=5e-5)


def test_rare_forms_weigh_more_at_first_and_alike_at_the_end():
    """G = 8, F = 2: α = 4, 2.5 and 1 at the beginning, in the middle and at the end; F = 6: 4/3 (Ada-GRPO)."""
    for step, rare, common in ((0, 4.0, 4 / 3), (50, 2.5, 7 / 6), (100, 1.0, 1.0)):
        keys = {"form": torch.tensor([0] * 6 + [1] * 2)}
        ready = grouprl.method("ada_grpo").prepare(small([1.0] * 8, keys=keys, step=step, steps=100))
        torch.testing.assert_close(ready.reward_b, f64([common] * 6 + [rare] * 2))


def test_frugality_with_two_calls_as_the_fewest():
    """m = 1, 2, 4, 8 calls where 2 sufficed before, 1 does not: sin(π·m/(m + 2)) (OTC)."""
    calls = [1, 2, 4, 8]
    turn_bt = [[*range(m + 1)] for m in calls]
    width = max(calls) + 1
    filled = torch.tensor([[*row, *[-1] * (width - len(row))] for row in turn_bt])
    right_b = torch.tensor([False, True, True, True])
    past = {"fewest_calls": f64([2.0] * 4)}
    batch = small([1.0] * 4, [m + 1 for m in calls], turn_bt=filled, past=past, correct_b=right_b)
    ready = grouprl.method("otc").prepare(batch)
    torch.testing.assert_close(ready.reward_b, f64([0.8660, 1.0, 0.8660, 0.5878]), rtol=0, atol=5e-5)
