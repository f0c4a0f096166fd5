"""A KL weight that follows the KL: verl's controller by hand, in reward and loss, in a run and across a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import grouprl
from fake_context import FakeContext
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.regularize.kl_control import AdaptiveKL, mean_kl, moved
from grouprl.algorithms.reward_transform.adaptive_kl_in_reward import AdaptiveKLInReward
from grouprl.algorithms.reward_transform.reward_transform import KLInReward
from grouprl.methods.compose import compose
from pretraining_runs import cut_at, records, run
from small import f64, near, small


@pytest.mark.parametrize(
    ("kl", "after"),
    [
        (0.1, 0.001),  # on target
        (0.11, 0.001 * (1 + 0.1 * 512 / 10_000)),
        (1.0, 0.001 * (1 + 0.2 * 512 / 10_000)),  # at most 20 %
        (0.0, 0.001 * (1 - 0.2 * 512 / 10_000)),
        (-3.0, 0.001 * (1 - 0.2 * 512 / 10_000)),
    ],
)
def test_the_weight_moves_as_in_verl(kl: float, after: float) -> None:
    assert moved(0.001, kl, target=0.1, rows=512, horizon=10_000) == pytest.approx(after, rel=1e-12)


def two_rows() -> grouprl.Batch:
    """KL estimates (k1) of 0.4 and 0 in a row of two tokens, 0.1 in a row of one: means 0.2 and 0.1."""
    return small([1, 0], [2, 1], old_bt=[[-1.0, -1.0], [-1.0]], ref_bt=[[-1.4, -1.0], [-1.1]])


def test_the_kl_is_the_mean_over_rows_of_their_token_means() -> None:
    assert mean_kl(two_rows(), "k1") == pytest.approx((0.2 + 0.1) / 2)
    far = two_rows().replace(old_bt=f64([[-1.0, -1.0], [-1.0, 9.0]]))
    assert mean_kl(far, "k1") == pytest.approx(0.15), "padding does not count"


@pytest.mark.parametrize("part", [AdaptiveKLInReward(coef=0.5), AdaptiveKL(coef=0.5, estimator="k1")])
def test_the_controller_remembers_from_step_to_step(part) -> None:
    context, batch = FakeContext(), two_rows()
    filled = part.fill(batch, None, context)
    near(filled.past["kl_coef"], [0.5, 0.5])
    part.observe(None, filled, context)
    up = 0.5 * (1 + 0.2 * 2 / 10_000)
    assert part.current(context) == pytest.approx(up)
    near(part.fill(batch, None, context).past["kl_coef"], [up, up])
    part.observe(None, None, context)
    assert part.current(context) == pytest.approx(up), "a step without rows moves nothing"
    assert context.memory == {f"{part.kind}.{part.name}": {"coef": part.current(context)}}


def test_in_the_reward_it_is_the_fixed_term_with_the_weight_of_the_step() -> None:
    batch = two_rows()
    moving = AdaptiveKLInReward()(batch.replace(past={"kl_coef": f64([0.3, 0.3])}))
    near(moving.token_reward_bt, KLInReward(coef=0.3)(batch).token_reward_bt)
    near(moving.token_reward_bt, [[-0.12, 0.0], [-0.03, 0.0]])


def test_in_the_loss_the_weight_multiplies_the_estimate() -> None:
    batch = two_rows().replace(past={"kl_coef": f64([0.3, 0.3])})
    logp_bt = batch.old_bt.clone().requires_grad_()
    term = AdaptiveKL(estimator="k2")(logp_bt, batch)
    near(term.loss_bt, [[0.3 * 0.08, 0.0], [0.3 * 0.005, 0.0]])
    term.loss_bt.sum().backward()
    near(logp_bt.grad, [[0.3 * 0.4, 0.0], [0.3 * 0.1, 0.0]])


def test_a_weight_of_zero_is_said_to_stay_zero() -> None:
    for part in (AdaptiveKLInReward(coef=0), AdaptiveKL(coef=0)):
        assert "stays 0" in part.idle(RunFacts())[0]
    assert "reference" in AdaptiveKL().refuse(RunFacts(has_reference=False))[0]


def test_verls_switch_and_its_defaults() -> None:
    method = compose({"base": "grpo@verl", "use_kl_in_reward": True, "kl_ctrl": "adaptive"}).method
    assert method.reward_transform == (AdaptiveKLInReward(coef=0.001, estimator="k1", target=0.1, horizon=10_000),)
    fixed = compose({"base": "grpo@verl", "use_kl_in_reward": True}).method
    assert fixed.reward_transform == (KLInReward(coef=0.001, estimator="k1"),)


METHOD = {
    "base": "grpo",
    "add": {
        "reward_transform": [{"part": "adaptive_kl_in_reward", "coef": 0.1, "target": 0.01, "horizon": 100}],
        "regularize": [{"part": "adaptive_kl", "coef": 0.2, "horizon": 50}],
    },
}


def test_runs_go_on_with_the_weight_they_had(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", METHOD, optim={"lr": 1e-2})
    after = records(whole, "train")
    assert all({"kl_coef", "kl_controlled"} <= record.keys() for record in after)
    assert after[0]["kl_coef"] == pytest.approx((0.1 + 0.2) / 2)
    assert len({record["kl_coef"] for record in after}) == len(after), "the weight moves"
    cut = run(cut_at(whole, tmp_path / "cut", "step-000001"), resume=True)
    assert records(cut, "train") == after
    last = torch.load(whole / "checkpoints" / "step-000003" / "data.pt", weights_only=True)["memory"]
    again = torch.load(cut / "checkpoints" / "step-000003" / "data.pt", weights_only=True)["memory"]
    assert last == again
    assert set(last) >= {"reward_transform.adaptive_kl_in_reward", "regularize.adaptive_kl"}
