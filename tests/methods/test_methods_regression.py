"""What regression, pairwise, off-policy and discriminative methods promise: optima, limits, stability; and runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import grouprl
from grouprl import Method
from grouprl.config.run import parse_config
from grouprl.plan.plan import plan
from single_runs import launch, records
from small import f64, gradient, near, small

NAMES = (
    *("gvpo", "rebel", "copg", "opmd_kimi", "reg_grpo", "a_star_po", "apa", "dapo_direct", "cpgd", "mdpo", "p3o"),
    *("nft", "pacs", "disco", "rec", "red_drop", "red_weight", "asymre", "opmd"),
)
RIGHT = [True, False, False, False]
REWARD = f64([2.5, 2.0, 1.0])
"""Rewards of CoPG's three-armed bandit."""


def arms(sampled: list[int], logits: torch.Tensor, anchor: torch.Tensor, groups: list[int]) -> tuple:
    """A batch of one-token completions: which arm each sampled, its reward, its log-prob under the anchor."""
    arm_b = torch.tensor(sampled)
    anchor_bt = anchor.log_softmax(-1)[arm_b][:, None]
    batch = small(REWARD[arm_b].tolist(), groups=groups, old_bt=anchor_bt, ref_bt=anchor_bt)
    return batch, logits.log_softmax(-1)[arm_b][:, None]


def optimum(method: Method, sampled: list[int], groups: list[int], steps: int = 600) -> torch.Tensor:
    """Arm probabilities after descending the loss on a fixed batch whose anchor is uniform."""
    logits, anchor = torch.zeros(3, dtype=torch.float64, requires_grad=True), torch.zeros(3, dtype=torch.float64)
    ready = method.prepare(arms(sampled, logits.detach(), anchor, groups)[0])
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(steps):
        loss = method.loss(arms(sampled, logits, anchor, groups)[1], ready).value
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return logits.detach().softmax(-1)


# --- regression: the optimum ----------------------------------------------------------------------------------------

OFF_POLICY = [2] * 7 + [1] * 2 + [0]
"""Ten samples, mostly of the worst arm: far from the uniform anchor."""


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gvpo", {"beta": 0.5}),
        ("rebel", {"eta": 2.0}),
        ("copg", {"beta": 0.5}),
        ("gvpo", {"beta": 0.5, "anchor": "ref"}),
    ],
)
def test_the_optimum_is_the_tilted_anchor_whatever_was_sampled(name, settings):
    near(optimum(grouprl.method(name, **settings), OFF_POLICY, [0] * 10), (REWARD / 0.5).softmax(-1), 1e-3)


def test_a_policy_gradient_on_the_same_samples_goes_elsewhere():
    probability = optimum(grouprl.method("rec", region="none"), OFF_POLICY, [0] * 10)
    assert (probability - (REWARD / 0.5).softmax(-1)).abs().max() > 0.1


@pytest.mark.parametrize("name", ["gvpo", "rebel", "copg"])
def test_the_loss_is_zero_at_the_tilted_policy(name):
    settings = {"rebel": {"eta": 2.0}}.get(name, {"beta": 0.5})
    method = grouprl.method(name, **settings)
    batch, logp_bt = arms(OFF_POLICY, REWARD / 0.5, torch.zeros(3, dtype=torch.float64), [0] * 10)
    near(method.loss(logp_bt, method.prepare(batch)).value, 0.0)


def test_a_star_po_has_loss_zero_at_the_tilted_reference():
    """Every arm once: the group is the reference, so V* is exact."""
    method = grouprl.method("a_star_po", value="group", beta1=0.5, beta2=0.5)
    batch, logp_bt = arms([0, 1, 2], REWARD / 0.5, torch.zeros(3, dtype=torch.float64), [0] * 3)
    near(method.loss(logp_bt, method.prepare(batch)).value, 0.0)


def test_the_optimal_value_lies_between_the_mean_and_the_best():
    batch, _ = arms([0, 1, 2], REWARD, torch.zeros(3, dtype=torch.float64), [0] * 3)
    value = [
        float(REWARD[0] - grouprl.method("a_star_po", value="group", beta1=b).prepare(batch).advantage_bt[0, 0])
        for b in (1e-3, 0.5, 1e5)
    ]
    near(f64(value[0]), 2.5, 2e-3)
    near(f64(value[2]), float(REWARD.mean()), 1e-4)
    assert value[0] > value[1] > value[2]


def test_copg_with_rewards_of_a_quarter_is_ipo():
    """IPO's loss for a preferred y1: (d1 - d2 - 1/(2β))²."""
    batch = small([0.25, -0.25], ref_bt=[[-1.3], [-0.8]])
    logp_bt = batch.old_bt.clone().requires_grad_()
    distance_b = (logp_bt - batch.ref_bt)[:, 0]
    ipo = (distance_b[0] - distance_b[1] - 1 / (2 * 0.3)).square()
    ours = gradient(grouprl.method("copg", beta=0.3), batch, batch.old_bt)
    near(ours, 0.3 / 2 * torch.autograd.grad(ipo, logp_bt)[0])


def test_apa_pulls_to_the_reference_where_nothing_was_gained():
    method = grouprl.method("apa")
    batch = small([0.0], [2], value_bt=[[0.0, 0.0]], ref_bt=[[-1.4, -0.7]])
    near(gradient(method, batch, batch.old_bt), [[0.4, -0.3]])
    near(gradient(method, batch, batch.ref_bt), [[0.0, 0.0]])
    better = small([1.0], [1], value_bt=[[0.25]], ref_bt=[[-1.0]])
    near(gradient(method, better, better.ref_bt), [[-2 * 0.75 / 0.1]])


def test_direct_advantage_is_a_policy_gradient_at_its_anchor_and_ends_at_the_advantage():
    method = grouprl.method("dapo_direct", beta=0.5)
    batch = small([1.0], [2], value_bt=[[0.25, 0.75]])
    near(gradient(method, batch, batch.old_bt), [[-0.5 / 0.5 / 2, -0.25 / 0.5 / 2]])
    near(gradient(method, batch, batch.old_bt + f64([[1.0, 0.5]])), [[0.0, 0.0]])


def test_mirror_descent_ends_at_the_tilted_policy():
    """Four completions in proportion to the old policy (½, ¼, ¼): the inner optimum is π_old·exp(t·A)/Z."""
    old, advantage, step = f64([0.5, 0.25, 0.25]).log(), f64([0.4, -0.6, -0.2]), 0.7
    arm_b = torch.tensor([0, 0, 1, 2])
    batch = small(advantage[arm_b].tolist(), old_bt=old[arm_b][:, None], value_bt=[[0.0]] * 4)
    method = grouprl.method("mdpo", step_size=step, whiten=False)
    ready, logits = method.prepare(batch), old.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.02)
    for _ in range(800):
        loss = method.loss(logits.log_softmax(-1)[arm_b][:, None], ready).value
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    near(logits.detach().softmax(-1), (old + step * advantage).softmax(-1), 1e-4)


# --- pairs and older policies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", ["separate", "joint"])
def test_a_constant_added_to_rewards_leaves_pairs_bit_identical(clip):
    logp_bt = f64([[-0.9], [-1.1], [-1.0]])
    grads = [gradient(grouprl.method("p3o", clip=clip), small([r + c for r in (1, 0, 3)]), logp_bt) for c in (0, 8)]
    assert torch.equal(*grads)
    assert grads[0].any()


def test_the_kl_of_a_pair_sits_in_its_rewards():
    batch = small([1, 0], [1, 2], ref_bt=[[-1.5], [-1.0, -1.2]])
    grad_bt = gradient(grouprl.method("p3o", kl_coef=0.5), batch, batch.old_bt)
    near(grad_bt[0, 0], -0.5 * ((1 - 0.5 * 0.5) - (0 - 0.5 * 0.2)))


def test_a_token_far_above_does_not_blow_up():
    batch = small([0, 1])
    logp_bt = batch.old_bt + f64([[4.60517019], [0.0]])
    near(gradient(grouprl.method("cpgd", drift_coef=0.0, weighting="none"), batch, logp_bt)[0], [0.25], 1e-6)
    near(gradient(grouprl.method("grpo", scale="none"), batch, logp_bt)[0], [25.0], 1e-6)


def test_a_token_beyond_the_clip_is_pulled_back_by_the_drift_alone():
    batch = small([1, 0])
    logp_bt = batch.old_bt + f64([[0.5], [0.0]])
    assert gradient(grouprl.method("cpgd"), batch, logp_bt)[0] > 0
    assert not gradient(grouprl.method("cpgd", drift_coef=0.0), batch, logp_bt)[0].any()


def test_a_lower_baseline_is_likelihood_of_the_data():
    """AsymRE with δ = -c adds c times the mean negative log-likelihood."""
    batch = small([1, 0, 0.5, 0.5], [2, 1, 1, 3], groups=[0, 0, 1, 1])
    plain, shifted = (gradient(grouprl.method("asymre", delta=d), batch, batch.old_bt) for d in (0.0, -0.3))
    near(shifted - plain, -0.3 / 7 * batch.mask_bt.double())


def test_rec_stays_a_policy_gradient_however_old_the_data_is():
    batch = small([1, 0], [2, 1])
    far_bt = batch.old_bt + f64([[3.0, -4.0], [2.0, 0.0]])
    method = grouprl.method("rec", region="none")
    assert torch.equal(gradient(method, batch, far_bt), gradient(method, batch, batch.old_bt))


def test_dropping_negatives_balances_the_group():
    ready = grouprl.method("red_drop").prepare(small([1, 0, 0, 0, 0], old_bt=[[-1 - i / 7] for i in range(5)]))
    assert sorted(ready.advantage_bt[:, 0].tolist()) == [-0.5, 0.0, 0.0, 0.0, 0.5]


# --- labels -----------------------------------------------------------------------------------------------------------


def test_nft_with_root_odds_is_grpo_with_the_population_spread():
    batch = small(list(map(float, RIGHT)), [2, 1, 1, 3], correct_b=RIGHT)
    ours = gradient(grouprl.method("nft", weighting="root_odds"), batch, batch.old_bt)
    adv_b = (batch.reward_b - 0.25) / (0.25 * 0.75) ** 0.5
    near(ours, -adv_b[:, None] * batch.mask_bt / 1000)


def test_nft_does_not_train_on_one_sided_prompts():
    method = grouprl.method("nft")
    ready = method.prepare(small([1.0] * 4, groups=[0, 0, 1, 1], correct_b=[True, True, False, False]))
    assert not ready.active_bt.any()
    assert method.refill.wanted(small([1, 0, 1, 1], groups=[0, 0, 1, 1])).tolist() == [True, True, False, False]


@pytest.mark.parametrize("right", [[True] * 4, [False] * 4])
def test_pacs_on_a_one_sided_group_begins_at_zero(right):
    batch = small([0.0] * 4, [1, 2, 1, 1], correct_b=right)
    near(gradient(grouprl.method("pacs"), batch, batch.old_bt), torch.zeros(4, 2), 1e-15)


def test_grpo_is_disco_times_its_difficulty_bias():
    for right in (RIGHT, [True, True, False, False], [True, True, True, False]):
        batch = small(list(map(float, right)), [2, 1, 1, 3], correct_b=right)
        p = sum(right) / 4
        grpo = gradient(grouprl.method("grpo", scale="population_std", eps=0.0), batch, batch.old_bt)
        near(grpo, (p * (1 - p)) ** 0.5 * gradient(grouprl.method("disco", tau=None), batch, batch.old_bt))


def test_disco_counts_one_sided_prompts_in_the_denominator():
    mixed = small([1.0, 0.0], correct_b=[True, False])
    both = small([1.0, 0.0, 1.0, 1.0], groups=[0, 0, 1, 1], correct_b=[True, False, True, True])
    method = grouprl.method("disco")
    one, two = gradient(method, mixed, mixed.old_bt), gradient(method, both, both.old_bt)
    near(two[:2], one / 2)
    assert not two[2:].any()


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_trains(name, tmp_path: Path):
    config = {
        "method": name,
        "batch": {"prompts": 4, "group_size": 4, "minibatches": 2},
        "warmup": {"steps": 5, "batch": 8},
    }
    config |= {"data": {"prompts": 64}}
    folder = launch(tmp_path / "run", eval={"every": 0, "prompts": 4, "final_prompts": 4}, **config).folder
    assert [record["step"] for record in records(folder, "train")] == [1, 2]


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_planned_without_complaint(name):
    made = plan(parse_config({"method": name, "batch": {"minibatches": 2}, "data": {"prompts": 512}}))
    assert made.refusals == ()
    assert made.idle == ()
    assert made.formula.startswith("L = ")
