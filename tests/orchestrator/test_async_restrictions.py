"""What can run ahead: the plan explains it, and refuses in words what would become another method."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import toy_envs
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.objective.papers.stale import InterpolatedClip, ProbabilityMask, interpolation
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.token_weight.papers.second_moment_mask import SecondMomentMask
from grouprl.config.run import parse_config
from grouprl.methods import CATALOGUE
from grouprl.orchestrator.asynchronous.restrictions import async_refusals, threads_each
from grouprl.plan.plan import plan
from small import near, prepared, ragged, slopes, small


def planned(method: Any = "grpo", task: Any = "addition", steps: int = 2, **run: Any) -> Any:
    data = {"prompts": 64} if task == "addition" else {}
    config = {"task": task, "method": method, "data": data, "run": {"async_steps": steps, **run}}
    return plan(parse_config(config))


@pytest.mark.parametrize(
    "method",
    [
        "grpo",
        "dapo",
        "decoupled_ppo",
        {"base": "remax", "token_weight": [{"part": "truncated_importance"}]},
        {"base": "grpo", "curriculum": "thompson_sampling"},
        {"base": "grpo", "allocation": "knapsack"},
    ],
)
def test_these_run_ahead(method: Any) -> None:
    assert planned(method).refusals == ()


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("trpo", "trpo is only correct when every completion comes from the current policy, but run.async_steps is 2"),
        ("palu", "sampling: length_budget samples by the results of the previous step"),
        ("skywork_r1v2", "buffer: sample_buffer brings in rows of earlier steps"),
        (
            "self",
            "allocation: greedy_filter chooses by the results of the previous step, or samples in order to choose",
        ),
    ],
)
def test_these_are_refused(method: str, words: str) -> None:
    assert any(words in sentence for sentence in planned(method).refusals), planned(method).refusals
    assert not any("run.async_steps" in sentence for sentence in planned(method, steps=0).refusals)


def test_no_method_that_explores_or_replays_runs_ahead() -> None:
    config, refused = parse_config({"run": {"async_steps": 1}}), 0
    for entry in CATALOGUE.values():
        method = entry.build()
        if method.augment or method.buffer is not None:
            assert any("run.async_steps to 0" in sentence for sentence in async_refusals(config, method)), method.name
            refused += 1
    assert refused > 10


def test_the_plan_explains_what_running_ahead_means() -> None:
    notes = planned(steps=2).notes
    assert any("up to 2 steps ahead" in n and "at most 96 prompts are in flight" in n for n in notes)
    assert any("unfinished completions continue with new weights; each token records the version" in n for n in notes)
    assert any("nothing corrects for it: take decoupled_ppo" in n for n in notes)
    corrected = planned("decoupled_ppo").notes
    assert any("the method corrects for what sampled them" in n for n in corrected)
    assert any("compare the policy with the sampler" in n for n in planned(proximal="sampler").notes)
    assert not any("ahead" in n for n in planned(steps=0).notes)


def test_memory_holds_the_samplers_copy_and_the_shared_weights() -> None:
    asynchronous, plain = planned(steps=1), planned(steps=0)
    costs = {cost.what: cost.bytes for cost in asynchronous.costs}
    weights = costs["weights"]
    assert costs["sampler's copy"] == weights
    assert costs["shared weights"] == 2 * weights
    smaller = min(costs["rollout cache"], costs["activations of a pass"] + costs["log-prob chunk"])
    assert asynchronous.peak == plain.peak + 3 * weights + smaller, "sampling and training happen at the same time"


def test_more_samplers_take_more_memory_and_share_the_threads() -> None:
    one, two = planned(steps=1), planned(steps=1, samplers=2)
    costs = [{cost.what: cost.bytes for cost in found.costs} for found in (one, two)]
    for name, factor in (("sampler's copy", 2), ("rollout cache", 2), ("shared weights", 1)):
        assert costs[1][name] == factor * costs[0][name]
    assert any("in 2 separate processes" in n for n in two.notes)
    assert threads_each(parse_config({"run": {"async_steps": 2, "samplers": 3}}), 8) == 2
    assert "run.samplers has no effect: run.async_steps is 0" in planned(steps=0, samplers=2).idle
    for count, words in ((3, "1 of the 3 run.samplers has nothing"), (4, "2 of the 4 run.samplers have nothing")):
        assert any(words in s for s in planned(steps=1, samplers=count).idle)
    assert not any("run.samplers" in s for s in two.idle)


def test_settings_without_effect_are_named() -> None:
    assert "run.partial has no effect: run.async_steps is 0" in planned(steps=0, partial=True).idle
    assert "run.proximal has no effect: run.async_steps is 0" in planned(steps=0, proximal="sampler").idle
    episodes = planned(task=f"{toy_envs.__file__}:AskTask", partial=True).idle
    assert not any("run.partial" in sentence for sentence in episodes)
    assert any("dppo_mask reads no old log-probs" in s for s in planned("dppo_mask", proximal="sampler").idle)
    assert not any("has no effect" in s and "run." in s for s in planned(proximal="recompute").idle)


def test_two_processes_share_the_free_threads() -> None:
    for found, steps, threads, each in ((8, 2, "auto", 4), (1, 2, "auto", 1), (8, 0, "auto", 8), (3, 2, 3, 3)):
        config = parse_config({"run": {"async_steps": steps, "threads": threads}})
        assert threads_each(config, found) == each


def test_parts_know_whether_they_can_act() -> None:
    asynchronous = RunFacts(async_steps=2, exact_sampler=False)
    assert Clipped().idle(asynchronous), "computed anew, the ratio starts at 1 whatever sampled the tokens"
    assert not Clipped().idle(RunFacts(async_steps=2, exact_sampler=False, fresh_old=False))
    for part in (SecondMomentMask(), ProbabilityMask(), InterpolatedClip()):
        assert part.idle(RunFacts())
        assert not part.idle(asynchronous)


def test_where_the_proximal_policy_lies() -> None:
    batch = small([0.0], [4], step=5, version_bt=torch.tensor([[5, 4, 3, 0]]))
    near(interpolation(batch), [[0, 1 / 2, 2 / 3, 5 / 6]])
    near(interpolation(small([0.0], [2], step=5)), [[0, 0]])


def test_tokens_of_the_current_policy_are_clipped_as_in_ppo() -> None:
    fields: dict[str, Any] = {"behavior_bt": [[-1.2, -0.9, -1.0]], "step": 4}
    batch = prepared([[1.0, -1.0, 0.5]], **fields, version_bt=torch.tensor([[4, 4, 4]]))
    moved = [[0.1, -0.4, 0.05]]
    ours, plain = (slopes(o, moved, batch) for o in (InterpolatedClip(), Clipped(against="behavior")))
    near(ours[0], plain[0])
    near(ours[1], plain[1])


def test_a_heavy_token_is_left_out_or_held() -> None:
    """One version old: α = 1/2; log π - log π_b = 2: w = e, ρ = e."""
    fields: dict[str, Any] = {"behavior_bt": [[-3.0]], "step": 1, "version_bt": torch.tensor([[0]])}
    batch, e = prepared([[-1.0]], **fields), 2.718281828459045
    for cap, beyond, weight in ((None, "mask", e), (2.0, "mask", 0.0), (2.0, "truncate", 2.0), (3.0, "mask", e)):
        loss_bt, grad_bt = slopes(InterpolatedClip(cap=cap, beyond=beyond), [[0.0]], batch)  # type: ignore[arg-type]
        near(loss_bt, [[weight * e]])
        near(grad_bt, [[weight * e]])


def test_the_mask_of_probabilities_judges_by_differences() -> None:
    """A rare token may double, a likely one may not rise by a quarter."""
    batch = prepared(
        [[1.0, 1.0, -1.0, -1.0]], old_bt=[[-7.0, -0.7, -0.7, -7.0]], behavior_bt=[[-7.0, -0.7, -0.7, -7.0]]
    )
    moved = [[1.0, 0.4, -0.6, -1.0]]
    _, grad_bt = slopes(ProbabilityMask(), moved, batch)
    ratio_bt = ragged(moved).exp()
    near(grad_bt, [[-ratio_bt[0, 0], 0.0, 0.0, ratio_bt[0, 3]]])


def test_second_moments_drop_no_more_than_they_must() -> None:
    gaps = [[0.1, 0.5, 0.2], [0.3, 0.3]]
    lengths = [3, 2]
    batch = small([0.0, 0.0], lengths, old_bt=ragged(gaps), behavior_bt=[[0.0] * 3, [0.0] * 2])
    """Squares 0.01, 0.04, 0.09, 0.09, 0.25: means 0.01, 0.025, 0.0467, 0.0575, 0.096."""
    near(SecondMomentMask(threshold=0.1)(batch), torch.ones(2, 3))
    near(SecondMomentMask(threshold=0.06)(batch), [[1, 0, 1], [1, 1, 0]])
    near(SecondMomentMask(threshold=0.05)(batch), [[1, 0, 1], [0, 0, 0]])
    near(SecondMomentMask(threshold=0.02)(batch), [[1, 0, 0], [0, 0, 0]])
    near(SecondMomentMask(threshold=0.001)(batch), torch.zeros(2, 3))
