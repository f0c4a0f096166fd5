"""OTR, ReMix, DPH-RL, HPT and the parts for rows of different origin: what their papers promise."""

from __future__ import annotations

from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import torch

import grouprl
from batches import outcome, random_case
from grouprl.algorithms.advantage_transform.advantage_transform import FixedAdvantage
from grouprl.algorithms.aggregate.by_source import BySource
from grouprl.algorithms.filter.source_apart import SourceApart
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.objective.papers.one_token import OneToken
from grouprl.algorithms.objective.papers.shifted_clip import ShiftedClip
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.regularize.papers.coverage import Coverage
from grouprl.algorithms.token_weight.token_weight import WithoutPolicyLoss
from grouprl.core.batch import SOURCES
from single_runs import launch, records
from small import f64, gradient, near, prepared, slopes, small


def of(*names):
    return torch.tensor([SOURCES[name] for name in names])


# --- rows by source -------------------------------------------------------------------------------------------------


def test_a_fixed_advantage_touches_its_source_only():
    batch = small([0.0] * 3, [1, 2, 1], source_b=of("sampled", "extra", "replay"))
    adv_bt = f64([[0.3, 0.0], [-0.4, -0.4], [0.5, 0.0]])
    near(FixedAdvantage()(adv_bt, batch)[1], [1.0, 1.0])
    near(FixedAdvantage()(adv_bt, batch)[[0, 2]], [[0.3, 0.0], [0.5, 0.0]])
    near(FixedAdvantage(source="replay", value=-2.0)(adv_bt, batch)[2, :1], [-2.0])


def test_extra_rows_reinforce_beside_grpo():
    """AEPO's objective half: extras have advantage 1 and no part in the group's statistics."""
    method = grouprl.method("grpo").with_parts(
        filter=(SourceApart(source="extra"),), advantage_transform=(FixedAdvantage(source="extra"),)
    )
    batch = small([1.0, 0.0, 1.0], source_b=of("sampled", "sampled", "extra"))
    near(method.prepare(batch).advantage_bt[:, 0], [0.70710578, -0.70710578, 1.0], 1e-7)


def test_two_averages_have_their_own_denominators():
    batch = small([0.0] * 3, [1, 3, 2], source_b=of("sampled", "sampled", "demonstration"), max_length=4)
    near(
        BySource(outside="constant_length")(batch),
        [[1 / 8, 0, 0], [1 / 8] * 3, [0.5, 0.5, 0]],
    )
    near(BySource(inside="sequence_mean", outside="sequence_mean")(batch)[1], [1 / 6] * 3)
    near(BySource()(batch.replace(source_b=None))[1], [1 / 6] * 3)
    assert BySource().needs() == ()
    assert BySource(outside="constant_length").needs() == ("max_length",)


def test_rows_without_policy_loss_keep_their_regulariser():
    batch = small([0.0] * 2, source_b=of("sampled", "reference"))
    near(WithoutPolicyLoss()(batch), [[1.0], [0.0]])


# --- one-token rollout ----------------------------------------------------------------------------------------------


def one_token_gradient(part: OneToken, logits, target):
    """Gradient of the part's loss at one position with respect to the logits."""
    logits = logits.clone().requires_grad_()
    logp = logits.log_softmax(-1)
    sampled = (logits / part.kappa).softmax(-1).detach()
    tempered = (logits / part.kappa).log_softmax(-1).detach()[target]
    stats = {f"cross@{part.kappa:g}": (sampled * logp).sum().view(1, 1), f"logp@{part.kappa:g}": tempered.view(1, 1)}
    batch = prepared([[1.0]]).replace(stats=stats)
    (grad,) = torch.autograd.grad(part(logp[target].view(1, 1), batch).loss_bt.sum(), logits)
    return grad


LOGITS = torch.tensor([1.0, 0.0, -1.0, 0.5], dtype=torch.float64)


@pytest.mark.parametrize("beta", [-0.1, 0.0, 0.3])
def test_at_its_own_temperature_it_is_likelihood_weighed_by_probability(beta):
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(-1)
    (weighted,) = torch.autograd.grad(-(1 - beta) * logp[2].exp().detach() * logp[2], logits)
    near(one_token_gradient(OneToken(beta=beta), LOGITS, 2), weighted)


@pytest.mark.parametrize("kappa", [1.0, 1.5])
def test_many_sampled_tokens_approach_the_closed_form(kappa):
    g = torch.Generator().manual_seed(0)
    tokens = torch.multinomial((LOGITS / kappa).softmax(-1), 200_000, replacement=True, generator=g)
    reward = torch.where(tokens == 2, 1.0, -0.1).double()
    logits = LOGITS.clone().requires_grad_()
    (sampled,) = torch.autograd.grad(-(reward * logits.log_softmax(-1)[tokens]).mean(), logits)
    near(sampled, one_token_gradient(OneToken(kappa=kappa), LOGITS, 2), 4e-3)


def test_a_token_that_is_never_sampled_has_no_gradient_without_beta():
    logits = f64([0.0, 0.0, -800.0])
    near(one_token_gradient(OneToken(beta=0.0), logits, 2), [0.0, 0.0, 0.0])


def test_cross_entropies_are_asked_for_only_with_beta():
    assert grouprl.method("otr").outputs == ("log_prob", "cross@1")
    assert grouprl.method("otr", kappa=2.0).outputs == ("log_prob", "cross@2")
    assert grouprl.method("otr", beta=0.0).outputs == ("log_prob",)
    assert grouprl.method("otr", kappa=2.0).needs() == ("stats.logp@2",)
    assert OneToken(beta=1.0).idle(RunFacts())
    assert not OneToken(beta=1.0, kappa=2.0).idle(RunFacts())


def test_otr_learns_the_demonstrated_tokens():
    logits = torch.zeros(3, 5, dtype=torch.float64, requires_grad=True)
    target_bt = torch.tensor([[1, 3, 2]])
    optimizer = torch.optim.Adam([logits], lr=0.2)
    method = grouprl.method("otr")
    ready = method.prepare(small([0.0], [3]))
    for _ in range(40):
        logp = logits.log_softmax(-1)
        cross_bt = (logp.detach().exp() * logp).sum(-1)[None]
        loss = method.loss(logp.gather(1, target_bt.T).T, ready, outputs={"cross@1": cross_bt}).value
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(logits.detach().softmax(-1).gather(1, target_bt.T).min()) > 0.9


# --- the shifted clip -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [-1.0, 0.0, 0.7, 2.0])
@pytest.mark.parametrize("adv", [1.0, -1.0])
def test_the_first_step_on_old_completions_is_never_clipped(gap, adv):
    batch = prepared([[adv]], behavior_bt=[[-1.0 - gap]])
    loss_bt, grad_bt = slopes(ShiftedClip(), [[0.0]], batch)
    near(loss_bt, [[-adv * exp(gap)]])
    near(grad_bt, [[-adv * exp(gap)]])


def test_the_interval_is_around_the_old_ratio():
    batch = prepared([[1.0, -1.0]], behavior_bt=[[-1.0 - log(2.0)] * 2])
    loss_bt, grad_bt = slopes(ShiftedClip(), [[log(1.2), log(0.8)]], batch)
    near(loss_bt, [[-2.2, 1.8]])
    near(grad_bt, [[0.0, 0.0]])


def test_completions_of_the_policy_itself_have_ppos_clip():
    case = random_case(4)
    batch = case.batch.replace(behavior_bt=case.batch.old_bt)
    ready = grouprl.method("grpo").prepare(batch)
    near(ShiftedClip()(case.logp_bt, ready).loss_bt, Clipped()(case.logp_bt, ready).loss_bt, 1e-12)
    assert ShiftedClip().idle(RunFacts(updates_per_rollout=1))


# --- coverage -------------------------------------------------------------------------------------------------------

DIVERGENCES = ["forward_kl", "js", "alpha"]
P0, P = f64([0.5, 0.3, 0.2]), f64([0.2, 0.2, 0.6])


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_no_pull_where_nothing_has_moved(divergence):
    log_bt = f64([[0.0]]).requires_grad_()
    value_bt = Coverage(divergence=divergence).value(log_bt)
    (slope,) = torch.autograd.grad(value_bt.sum(), log_bt)
    near(value_bt.detach(), [[0.0]])
    near(slope, [[0.0]])


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_expectations_are_the_divergences(divergence):
    got = (P0 * Coverage(divergence=divergence).value((P / P0).log())).sum()
    middle, a = (P + P0) / 2, 0.2
    expected = {
        "forward_kl": (P0 * (P0 / P).log()).sum(),
        "js": (P0 * (P0 / middle).log()).sum() + (P * (P / middle).log()).sum(),
        "alpha": (1 - (P ** (1 - a) * P0**a).sum()) / (a * (1 - a)),
    }[divergence]
    near(got, expected, 1e-12)
    assert got > 0


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_only_completions_of_the_initial_policy_are_pulled(divergence):
    case = random_case(6)
    source_b = torch.where(torch.arange(len(case.batch.group_b)) % 3 == 0, SOURCES["reference"], 0)
    batch = case.batch.replace(source_b=source_b)
    ready = grouprl.method("dph_rl", divergence=divergence, eta=0.5).prepare(batch)
    term = Coverage(coef=0.5, divergence=divergence)
    logp_bt = case.logp_bt.clone().requires_grad_()
    (grad_bt,) = torch.autograd.grad((ready.weight_bt * term(logp_bt, ready).loss_bt).sum(), logp_bt)
    assert grad_bt[source_b > 0].any()
    assert not grad_bt[source_b == 0].any()
    assert torch.equal(term.zero_rows(ready), source_b == 0)
    whole = gradient(grouprl.method("dph_rl", divergence=divergence, eta=0.5), batch, case.logp_bt)
    near(whole[source_b > 0], grad_bt[source_b > 0])


@pytest.mark.parametrize(("eta", "kept"), [(0.5, True), (0.0, False)])
def test_a_bandit_under_pressure_keeps_its_other_arms_with_forward_kl(eta, kept):
    """Exact gradients: reward for arm 0, forward KL to the initial policy on its own samples."""
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    p0 = logits.detach().softmax(-1)
    term = Coverage(coef=1.0)
    for _ in range(400):
        logp = logits.log_softmax(-1)
        loss = -logp[0].exp() + eta * (p0 * term.value(logp - p0.log())).sum()
        (grad,) = torch.autograd.grad(loss, logits)
        logits = (logits.detach() - 1.0 * grad).requires_grad_()
    assert (float(logits.detach().softmax(-1)[1]) > 0.05) == kept


# --- fine-tuning and reinforcement in one step ----------------------------------------------------------------------


def hybrid(rewards, groups, sources, **settings):
    batch = small(rewards, None, groups, source_b=of(*sources), max_length=1)
    return gradient(grouprl.method("hpt", entropy_coef=0.0, **settings), batch, batch.old_bt.clone())[:, 0]


def test_a_demonstration_alone_is_fine_tuned_on():
    near(hybrid([0.0], [0], ["demonstration"]), [-1.0])
    near(hybrid([0.0], [0], ["demonstration"], sft_coef=0.3), [-0.3])


def test_a_prompt_that_is_always_right_teaches_nothing():
    near(hybrid([1.0, 1.0], [0, 0], ["sampled", "sampled"]), [0.0, 0.0])


def test_both_losses_stand_side_by_side():
    grad_b = hybrid([1.0, 0.0, 0.0, 0.0], [0, 0, 1, 2], ["sampled", "sampled", "demonstration", "demonstration"])
    near(grad_b, [-0.25, 0.25, -0.5, -0.5])


def test_a_demonstration_in_a_group_is_no_part_of_its_statistics():
    grad_b = hybrid([1.0, 0.0, 1.0], [0, 0, 0], ["sampled", "sampled", "demonstration"])
    near(grad_b, [-0.25, 0.25, -1.0])


def test_without_demonstrations_it_is_dr_grpo_without_clip():
    case = random_case(8)
    batch = case.batch.replace(source_b=None)
    ours = gradient(grouprl.method("hpt", entropy_coef=0.0), batch, case.logp_bt)
    free = gradient(grouprl.method("dr_grpo", clip_low=1.0, clip_high=1e9), batch, case.logp_bt)
    near(ours, free)


def test_the_entropy_bonus_is_on_in_hpt_and_remix():
    case = random_case(9)
    for name in ("hpt", "remix"):
        assert outcome(grouprl.method(name), case).entropy_grad_bt.any()
        assert not outcome(grouprl.method(name, entropy_coef=0.0), case).entropy_grad_bt.any()


# --- runs -----------------------------------------------------------------------------------------------------------

SHORT = {
    "steps": 3,
    "eval": {"prompts": 4, "final_prompts": 4},
    "batch": {"prompts": 6, "group_size": 4, "minibatches": 2},
}


def run(folder: Path, method: Any) -> list[dict[str, Any]]:
    return records(launch(folder / "run", method=method, **SHORT).folder, "train")


@pytest.mark.parametrize("kappa", [1.0, 1.5])
def test_otr_samples_nothing_and_moves(tmp_path: Path, kappa: float) -> None:
    for record in run(tmp_path, {"name": "otr", "kappa": kappa}):
        assert record["grad_norm"] > 0
        assert "entropy" not in record


def test_remix_replays_until_it_is_reborn(tmp_path: Path) -> None:
    method = {"name": "remix", "probability": 1.0, "reincarnation": 2}
    found = run(tmp_path, method)
    assert [record["replayed_fraction"] for record in found][::2] == [0.0, 0.0]
    assert found[1]["replayed_fraction"] > 0
    assert found[1]["grad_norm"] > 0


def test_hpt_shows_what_is_out_of_reach(tmp_path: Path) -> None:
    found = run(tmp_path, "hpt")
    assert sum(record["groups_demonstrated"] for record in found) > 0
    assert all(record["grad_norm"] > 0 for record in found)
    assert "groups_demonstrated" not in run(tmp_path / "other", "dr_grpo")[0]


def test_dph_rl_mixes_in_what_the_initial_policy_solved(tmp_path: Path) -> None:
    method = {"name": "dph_rl", "solved": 0.2, "divergence": "js", "eta": 0.5}
    changes = {"data": {"prompts": 12}, "warmup": {"steps": 90, "batch": 32, "lr": 2e-2}, **SHORT}
    found = records(launch(tmp_path / "run", method=method, **changes).folder, "train")
    assert all(record["reference_rows"] > 0 for record in found)
    assert sum(record["coverage_loss"] for record in found) > 0
    assert "ref_bt" not in grouprl.method("dph_rl").needs()
