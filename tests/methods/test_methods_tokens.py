"""Methods on chosen, weighted or compared tokens: what each promises, and that a run can use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import grouprl
from batches import outcome, random_case
from single_runs import launch, records
from small import gradient, near, small

CALM = {"name": "gtpo_trajectory", "entropy_limit": None}
"""The tiny policy is less certain than the limit of 0.7 nats."""
RUNS: list[Any] = [
    "clip_cov",
    "kl_cov",
    "dcpo_clip",
    "bapo",
    "hapo",
    "turn_ppo",
    CALM,
    "ktae",
    "t_spmo",
    "llds",
    "forking_tokens",
    "d3s",
    "s_grpo_memory",
    "advantage_reweighting",
    "egsw",
]


@pytest.mark.parametrize("method", RUNS, ids=str)
def test_a_run_can_use_it(tmp_path: Path, method: Any) -> None:
    """Two steps, of two updates each where allowed: every field is supplied, and the policy moves."""
    updates = 1 if method in ("t_spmo", CALM) else 2
    batch = {"prompts": 6, "group_size": 4, "minibatches": updates}
    changes = {"eval": {"prompts": 4, "final_prompts": 4}, "batch": batch}
    last = records(launch(tmp_path / "run", method=method, **changes).folder, "train")
    assert len(last) == 2
    assert sum(record["grad_norm"] for record in last) > 0


def test_forking_tokens_scale_dapos_gradient_and_touch_a_fifth() -> None:
    case = random_case(3, sizes=(4, 4, 4), rewards="mixed", drift=0.0)
    ours = outcome(grouprl.method("forking_tokens"), case).grad_bt
    theirs = outcome(grouprl.method("dapo"), case).grad_bt
    keep_bt = ours != 0
    near(ours[keep_bt], theirs[keep_bt])
    tokens = int(case.batch.mask_bt.sum())
    assert abs(int(keep_bt.sum()) - 0.2 * tokens) <= 1


def test_low_probability_tokens_no_longer_dominate() -> None:
    """Of two tokens with the same advantage the unlikely one has the smaller factor; the base gives both the same."""
    batch = small([1, 0], [2, 1], old_bt=[[-0.01, -6.0], [-1.0]])
    base = grouprl.method("advantage_reweighting", alpha=0.0, kl_coef=0.0).prepare(batch)
    ours = grouprl.method("advantage_reweighting", alpha=0.5, kl_coef=0.0).prepare(batch)
    assert base.multiplier_bt[0, 0] == base.multiplier_bt[0, 1] == 1
    assert ours.multiplier_bt[0, 0] > 0.99
    assert ours.multiplier_bt[0, 1] < 0.502


def test_d3s_trains_on_the_share_it_promises() -> None:
    case = random_case(5, sizes=(6, 6, 6, 6), width=12, drift=0.0)
    ready = grouprl.method("d3s", sequences=0.5, tokens=0.4).prepare(case.batch)
    rows_b = (ready.multiplier_bt != 0).any(1)
    kept = ready.advantage_bt[:, 0][rows_b]
    assert 0 < int(rows_b.sum()) <= 12
    assert kept.abs().min() > 0.3
    assert float(ready.weight_bt[0, 0]) == pytest.approx(1 / float(ready.multiplier_bt.sum()))


def test_a_stochastic_sample_costs_no_gradient_elsewhere() -> None:
    case = random_case(6, sizes=(4, 4), width=12, drift=0.1)
    method = grouprl.method("s_grpo_memory", head=2, keep=0.3, limit=4)
    ready = method.prepare(case.batch)
    grad_bt = outcome(method, case, ready).grad_bt
    assert not grad_bt[~ready.active_bt].any()
    assert ready.active_bt.sum(1).max() <= 4
    near(ready.weight_bt.sum(1), [0.125] * 8)


# --- covariance ------------------------------------------------------------------------------------------------------


def bandit(coef: float, steps: int = 30) -> tuple[float, float]:
    """Entropy and mean reward of a softmax policy over four arms, two of them right, after some rollouts."""
    g = torch.Generator().manual_seed(0)
    logits = torch.tensor([1.0, 0.0, 0.5, 0.5], dtype=torch.float64)
    method = grouprl.method("kl_cov", coef=coef, share=0.2)
    for _ in range(steps):
        arm_b = torch.multinomial(logits.softmax(0), 64, replacement=True, generator=g)
        old_bt = logits.log_softmax(0)[arm_b][:, None]
        batch = small((arm_b < 2).double().tolist(), old_bt=old_bt, correct_b=(arm_b < 2).tolist())
        ready = method.prepare(batch)
        for _ in range(4):
            leaf = logits.clone().requires_grad_()
            value = method.loss(leaf.log_softmax(0)[arm_b][:, None], ready).value
            logits = logits - 0.5 * torch.autograd.grad(value, leaf)[0]
    p = logits.softmax(0)
    return float(-(p * p.log()).sum()), float(p[:2].sum())


def test_the_covariance_penalty_keeps_entropy_at_the_same_reward() -> None:
    (free, reward_free), (held, reward_held) = bandit(0.0), bandit(1.0)
    assert reward_free > 0.9
    assert reward_held > 0.9
    assert held > free + 0.02


def test_the_balanced_clip_frees_good_tokens() -> None:
    """Where good completions are rare and already up-weighted, BAPO lets them move on and PPO's clip does not."""
    batch = small([1, 0, 0, 0, 0, 0], behavior_bt=[[-1.0]] * 6)
    log_ratio = torch.full((6, 1), 0.0, dtype=torch.float64)
    log_ratio[0] = 0.5
    ours, theirs = (
        torch.autograd.grad(
            m.loss((logp := (batch.old_bt + log_ratio).requires_grad_()), m.prepare(batch)).value, logp
        )[0]
        for m in (grouprl.method("bapo", target=0.62), grouprl.method("grpo"))
    )
    assert theirs[0] == 0
    assert ours[0] < 0


# --- credit ----------------------------------------------------------------------------------------------------------


def test_shared_beginnings_of_bad_completions_get_no_gradient() -> None:
    """Two completions share a prefix: the good one's is doubled, the bad one's is exactly zero."""
    batch = small([1, 0], [3, 3]).replace(token_bt=torch.tensor([[1, 2, 3], [1, 2, 4]]))
    method = grouprl.method("gtpo_trajectory", scale="none", entropy_coef=0.0, entropy_limit=None, spread=False)
    grad_bt = gradient(method, batch, torch.full((2, 3), -1.0, dtype=torch.float64))
    near(grad_bt * 6, [[-1.0, -1.0, -0.5], [0.0, 0.0, 0.5]])


def test_only_branching_tokens_learn_symmetrically() -> None:
    batch = small([1, 0], [3, 3]).replace(token_bt=torch.tensor([[1, 2, 3], [1, 4, 3]]))
    ready = grouprl.method("t_spmo").prepare(batch)
    near(ready.advantage_bt, [[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]])


def test_key_tokens_are_told_apart_within_a_completion() -> None:
    """Two correct completions share a token that no wrong one has; other tokens keep GRPO's advantage."""
    batch = small([1, 1, 0, 0], [2] * 4, correct_b=[True, True, False, False], truncated_b=[True] * 4)
    batch = batch.replace(token_bt=torch.tensor([[7, 1], [7, 1], [7, 2], [7, 2]]))
    ours, theirs = (grouprl.method(name).prepare(batch).advantage_bt for name in ("ktae", "grpo"))
    near(ours - theirs, [[0.0, 1.0], [0.0, 1.0], [0.0, -1.0], [0.0, -1.0]])


def test_the_guard_holds_up_the_likelihood_of_good_completions() -> None:
    """A good completion that has become less likely is pulled up harder than by GRPO alone, a bad one is not."""
    batch = small([1, 0], [2, 2])
    logp_bt = torch.full((2, 2), -1.3, dtype=torch.float64)
    plain, held = (gradient(grouprl.method("llds", kl_coef=0.0, coef=c), batch, logp_bt) for c in (0.0, 0.2))
    near(held - plain, [[-0.05, -0.05], [0.0, 0.0]])
