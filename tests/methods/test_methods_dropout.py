"""D-PPO, GRPO-D and DCPO's memory of visits: what their papers promise."""

from __future__ import annotations

from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grouprl
from batches import outcome, random_case
from grouprl.algorithms.advantage.papers.history import SmoothStandardized
from grouprl.algorithms.aggregate.papers.only_token_mean import OnlyTokenMean
from grouprl.algorithms.building import build_part
from grouprl.algorithms.objective.papers.adaptive_clip import DynamicClip
from grouprl.algorithms.objective.papers.dropout import DropoutClip
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.regularize.papers.schedule import ConvexKL, ScheduledKL
from grouprl.core.errors import InputError
from grouprl.records.prompt_history import PromptHistory, Visit
from single_runs import launch, records
from small import f64, near, prepared, slopes, small

# --- sample dropout -------------------------------------------------------------------------------------------------


def kept(x, **settings):
    x_bt = f64([x])
    return DropoutClip(**settings).keep_mask(x_bt, torch.ones_like(x_bt, dtype=torch.bool))[0].tolist()


def test_each_sign_loses_its_share():
    assert kept([1.0, 2.0, 3.0, 4.0, 5.0, -1.0, -2.0], drop=0.2) == [False, True, True, True, True, True, True]
    assert kept([1.0, 2.0, 9.0, 9.0, -1.0, -2.0], drop=0.5) == [False, False, True, True, True, False]


def test_against_the_tide_the_largest_leave():
    """With Σx < 0 the good token most unlike the others is the largest; by magnitude it is the smallest."""
    assert kept([1.0, 2.0, -9.0, -8.0], drop=0.5) == [True, False, True, False]
    assert kept([1.0, 2.0, -9.0, -8.0], drop=0.5, score="magnitude") == [False, True, True, False]


def test_ties_stay_together_and_balance_drops_nothing():
    assert kept([1.0] * 5, drop=0.4) == [True] * 5
    assert kept([1.0, 2.0, -1.0, -2.0], drop=0.5) == [True] * 4


def test_the_loss_of_the_rest_is_their_mean():
    batch = prepared([[1.0, 2.0], [3.0, 4.0]])
    loss_bt, grad_bt = slopes(DropoutClip(drop=0.25), [[0.0, 0.0], [0.0, 0.0]], batch)
    near(loss_bt, [[0.0, -2 * 4 / 3], [-3 * 4 / 3, -4 * 4 / 3]])
    near(grad_bt, loss_bt)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_dropping_small_agreement_limits_the_variance_of_what_is_positive(seed):
    """Of positive x the smallest leave: the relative spread, std over mean, of the kept is not larger."""
    g = torch.Generator().manual_seed(seed)
    x_n = (1.5 * torch.randn(200, generator=g, dtype=torch.float64)).exp()
    left_n = x_n[torch.tensor(kept(x_n.tolist(), drop=0.2))]
    assert 160 <= len(left_n) <= 162  # nearly equal ones stay together
    assert left_n.std() / left_n.mean() <= x_n.std() / x_n.mean()


def test_the_mask_is_a_constant_of_the_update():
    """The gradient is that of PPO on the tokens that are left, times N/N_kept."""
    batch = prepared([[1.0, 2.0, 3.0, 4.0, 5.0]])
    ratio = [[0.05, -0.05, 0.1, 0.0, -0.1]]
    _, ours = slopes(DropoutClip(drop=0.2), ratio, batch)
    x = [a * torch.tensor(r).exp() for a, r in zip([1.0, 2.0, 3.0, 4.0, 5.0], ratio[0], strict=True)]
    near(ours, [[0.0, *(-1.25 * float(v) for v in x[1:])]], 1e-6)


def test_drop_nothing_is_ppo():
    case = random_case(3)
    near(outcome(grouprl.method("d_ppo", drop=0.0), case).grad_bt, outcome(grouprl.method("ppo"), case).grad_bt, 1e-12)
    assert DropoutClip(drop=0.0).idle(RunFacts())


# --- KL schedules ---------------------------------------------------------------------------------------------------


def test_a_constant_weight_is_grpo_with_kl_bit_for_bit():
    case = random_case(1)
    ours = outcome(grouprl.method("grpo_d", curve="constant", kl_max=0.04), case)
    theirs = outcome(grouprl.method("grpo", kl_coef=0.04), case)
    assert torch.equal(ours.grad_bt, theirs.grad_bt)
    assert torch.equal(ours.value, theirs.value)


@pytest.mark.parametrize("curve", ["linear", "cosine", "exponential"])
def test_the_weight_grows_from_low_to_coef_and_stays_there(curve):
    part = ScheduledKL(coef=0.1, low=0.001, curve=curve)
    weights = [part.weight(small([0.0]).replace(step=t, steps=21)) for t in range(30)]
    assert weights == sorted(weights)
    assert weights[0] == pytest.approx(0.001)
    assert weights[20:] == pytest.approx([0.1] * 10)
    middle = {"linear": 0.0505, "cosine": 0.0505, "exponential": 0.01}[curve]
    assert weights[10] == pytest.approx(middle)


def test_without_a_weight_no_reference_is_asked_for():
    assert "ref_bt" not in grouprl.method("grpo_d", kl_min=0.0, kl_max=0.0).needs()
    assert "ref_bt" in grouprl.method("grpo_d").needs()
    assert ScheduledKL().refuse(RunFacts(has_reference=False))


def test_a_falling_or_vanishing_start_is_refused():
    with pytest.raises(InputError, match="low"):
        build_part("regularize", "scheduled_kl", {"coef": 0.01, "low": 0.1})
    with pytest.raises(InputError, match="exponential"):
        build_part("regularize", "scheduled_kl", {"low": 0.0, "curve": "exponential"})


def test_the_reference_share_falls_as_in_remix():
    part = ConvexKL()
    shares = [part.share(t) for t in (0, 50, 51, 60, 61, 70, 80, 90, 100, 110, 500)]
    assert shares == pytest.approx([1.0, 1.0, 0.9, 0.9, 0.8, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5])


def test_the_convex_kl_pulls_to_both_anchors():
    batch = small([0.0], ref_bt=[[-1.5]]).replace(step=60)
    loss_bt, _ = slopes(_Term(ConvexKL(coef=2.0)), [[0.2]], batch)
    k3 = [torch.expm1(f64([-d])) + d for d in (0.7, 0.2)]
    near(loss_bt, (2.0 * (0.9 * k3[0] + 0.1 * k3[1]))[None])
    assert ConvexKL().refuse(RunFacts(has_reference=False))
    assert ConvexKL(coef=0.0).idle(RunFacts())


class _Term:
    """A regulariser called like an objective."""

    def pairs(self, batch):
        return None

    def __init__(self, term):
        self.term = term

    def __call__(self, logp_bt, batch):
        return self.term(logp_bt, batch, None)


# --- DCPO's memory --------------------------------------------------------------------------------------------------


def visited(rewards, visits, mean, std):
    n = len(rewards)
    past = {"visits": f64([float(visits)] * n), "mean": f64([mean] * n), "std": f64([std] * n)}
    return small(rewards).replace(past=past)


def test_the_first_visit_is_grpo():
    batch = visited([1.0, 0.0, 0.0], 0, 0.0, 0.0)
    near(SmoothStandardized()(batch), grouprl.method("grpo").prepare(batch).advantage_bt)


def test_all_right_after_a_mixed_visit_still_teaches():
    batch = visited([1.0, 1.0], 1, 0.5, sqrt(0.5))
    total = 0.25 / sqrt(0.3125)
    near(SmoothStandardized(eps=0.0)(batch)[:, 0], [total / 2] * 2)


@settings(max_examples=30, deadline=None)
@given(visits=st.integers(1, 9), mean=st.floats(0, 1), std=st.floats(0.1, 1))
def test_the_smaller_blend_is_taken_and_a_dead_group_gets_a_share(visits, mean, std):
    i = visits + 1
    batch = visited([1.0, 0.0, 1.0], visits, mean, std)
    part = SmoothStandardized(eps=0.0)
    adv_b = part(batch)[:, 0]
    mean_b, std_b = part.moments(batch)
    total_b = (batch.reward_b - mean_b) / std_b
    new_b = (batch.reward_b - 2 / 3) / sqrt(1 / 3)
    blends = torch.stack([total_b / i + (1 - 1 / i) * new_b, new_b / i + (1 - 1 / i) * total_b])
    near(adv_b.abs(), blends.abs().amin(0), 1e-8)
    dead = visited([1.0, 1.0], visits, mean, std)
    m, s = part.moments(dead)
    near(part(dead)[:, 0], (1 - m) / s / i, 1e-8)


def test_no_spread_ever_gives_zero():
    near(SmoothStandardized(eps=0.0)(visited([1.0, 1.0], 3, 1.0, 0.0))[:, 0], [0.0, 0.0])


def test_moments_are_those_the_ledger_keeps():
    rewards = [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    prompt_history = PromptHistory()
    for visit, row in enumerate(rewards):
        past = {k: f64(v.repeat(3)) for k, v in prompt_history.past([7]).items()}
        mean_b, std_b = SmoothStandardized().moments(small(row).replace(past=past))
        value = f64(row)
        prompt_history.write(7, Visit(visit, 3, int(sum(row)), float(value.mean()), float(value.std()), 0.0, ()))
        moments = prompt_history.moments(7)
        near(mean_b[0], moments.mean, 1e-12)
        near(std_b[0], moments.variance**0.5, 1e-12)


def test_a_run_in_which_no_prompt_comes_again_is_told_so():
    assert SmoothStandardized().idle(RunFacts(examples=None))
    assert SmoothStandardized().idle(RunFacts(examples=6400, steps=200, prompts=32))
    assert not SmoothStandardized().idle(RunFacts(examples=100, steps=200, prompts=32))


def test_only_token_mean_sums_the_means_of_completions():
    batch = small([0.0, 0.0], [2, 1])
    near(OnlyTokenMean()(batch), [[0.5, 0.5], [1.0, 0.0]])
    case = random_case(2)
    total, mean = (grouprl.method("dcpo_clip", sequences=s) for s in ("sum", "mean"))
    near(outcome(total, case).grad_bt, len(case.batch.group_b) * outcome(mean, case).grad_bt, 1e-12)


@pytest.mark.parametrize(("q", "low", "high"), [(0.9, 0.769, 1.187), (0.01, 0.5, 5.0)])
def test_dynamic_bounds_of_the_table(q, low, high):
    low_bt, high_bt = DynamicClip(clip_low=0.16, clip_high=0.2).bounds(f64([[log(q)]]))
    assert float(low_bt) == pytest.approx(low, abs=2e-3)
    assert float(high_bt) == pytest.approx(high, abs=4e-2)


def test_the_order_of_rows_does_not_move_the_dropout():
    case = random_case(5, rewards="binary", on_policy=True)
    order = torch.randperm(len(case.batch.group_b), generator=torch.Generator().manual_seed(2))
    straight, mixed = (outcome(grouprl.method("d_ppo", whiten=False), c) for c in (case, case.rows(order)))
    near(mixed.grad_bt, straight.grad_bt[order], 1e-12)


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dcpo_clip", "d_ppo", "grpo_d"])
def test_a_run_can_use_it(tmp_path: Path, method: str) -> None:
    """Two steps of two updates: every field is supplied, and the policy moves."""
    changes: dict[str, Any] = {
        "warmup": {"steps": 90, "batch": 32, "lr": 2e-2},
        "eval": {"prompts": 4, "final_prompts": 4},
        "batch": {"prompts": 6, "group_size": 4, "minibatches": 2},
    }
    last = records(launch(tmp_path / "run", method=method, data={"prompts": 9}, **changes).folder, "train")
    assert len(last) == 2
    assert sum(record["grad_norm"] for record in last) > 0
