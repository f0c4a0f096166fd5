"""Completions that go on with new weights: the same tokens where weights are the same, every log-prob its version's
own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from grouprl.orchestrator.asynchronous.resumable_sampling import Follower, InFlight
from grouprl.orchestrator.asynchronous.sampler_canary import CanaryReport
from grouprl.orchestrator.asynchronous.staleness import ages, oldest_b, spanning_b, split, staleness_metrics
from grouprl.orchestrator.asynchronous.weights import SharedWeights
from grouprl.records.rollout import Rollout, as_rollout
from grouprl.records.tokens import Tokens
from grouprl.rollout.canary_tokens import canary_tokens
from grouprl.rollout.local.decode_loop import decode
from grouprl.rollout.local.sampler import generate, requests_of
from grouprl.rollout.local.token_sampling import uniforms
from policies import make_policy

PROMPTS = [(3, 4, 5), (6,), (7, 8)]
SAMPLING: dict[str, Any] = {"n": 2, "max_new_tokens": 24, "temperature": 0.9, "seeds": [10, 11, 12, 13, 14, 15]}


class Published(SharedWeights):
    """Shared memory whose next version appears after so many looks."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.after: Iterator[int] = iter(())
        self.versions: list[dict[str, torch.Tensor]] = []
        self.looks, self.due = 0, 0

    def plan(self, versions: list[dict[str, torch.Tensor]], every: int) -> None:
        self.versions, self.every, self.due = versions, every, every

    @property
    def latest(self) -> int:
        self.looks += 1
        now = super().latest
        if self.versions and self.looks >= self.due:
            self.due = self.looks + self.every
            self.publish(now + 1, self.versions.pop(0))
        return super().latest


def started(policy: Any, *, partial: bool = True) -> tuple[Published, InFlight, list[CanaryReport]]:
    shared, reports = Published.create(policy.trainable_state()), []
    shared.publish(0, policy.trainable_state())
    follower = Follower(policy, shared, reports.append, canary_tokens(policy))
    follower.refresh()
    return shared, InFlight(follower, partial=partial), reports


def sampled_by(sampler: InFlight, **settings: Any) -> tuple[Rollout, np.ndarray]:
    """The rows that a sampler samples, and the versions of their tokens."""
    requests = requests_of(PROMPTS, **settings)
    samples = sampler.sample(requests)
    assert samples.version_bt is not None
    return as_rollout(requests, samples), samples.version_bt


def moved(state: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype) for n, x in state.items()}


def test_random_numbers_go_on_behind_those_already_sampled() -> None:
    whole = uniforms([5, 6], 9)
    np.testing.assert_array_equal(uniforms([5, 6], 4, [5, 2]), [whole[0, 5:9], whole[1, 2:6]])
    np.testing.assert_array_equal(uniforms([5, 6], 9, ()), whole)


def test_a_paused_completion_comes_back_as_it_is() -> None:
    policy, calls = make_policy(), []

    def pause(unfinished: Sequence[int]) -> bool:
        calls.append(unfinished)
        return len(calls) == 4

    whole = generate(policy, PROMPTS, **SAMPLING)
    part = decode(policy, requests_of(PROMPTS, **SAMPLING), pause=pause)
    for ids, begun, cut in zip(whole.response_ids, part.ids, part.truncated_b.tolist(), strict=True):
        assert begun == ids[:4]
        assert cut == (len(ids) > 4)
    assert list(calls[-1]) == [row for row, ids in enumerate(whole.response_ids) if len(ids) > 4]


@pytest.mark.parametrize("family", ["llama", "llama-gqa-tied"])
@pytest.mark.parametrize("every", [1, 3])
def test_weights_that_stay_the_same_change_nothing(family: str, every: int) -> None:
    policy = make_policy(family, torch.float64)
    whole = generate(policy, PROMPTS, **SAMPLING)
    shared, in_flight, reports = started(policy)
    shared.plan([policy.trainable_state() for _ in range(5)], every)
    sampled, version_bt = sampled_by(in_flight, **SAMPLING)
    assert len(reports) > 2, "weights were exchanged while completions were sampled"
    assert sampled.response_ids == whole.response_ids
    assert torch.equal(sampled.truncated_b, whole.truncated_b)
    torch.testing.assert_close(sampled.logp_bt, whole.logp_bt, rtol=0, atol=1e-10)
    torch.testing.assert_close(sampled.entropy_bt, whole.entropy_bt, rtol=0, atol=1e-10)
    assert version_bt.max() > 1


def test_every_log_prob_belongs_to_the_version_that_sampled_the_token() -> None:
    policy = make_policy("llama", torch.float64, temperature=0.9)
    states = [policy.trainable_state()]
    states += [moved(states[0], seed) for seed in (1, 2, 3)]
    shared, in_flight, reports = started(policy)
    shared.plan(states[1:], 6)
    sampled, version_bt = sampled_by(in_flight, **SAMPLING)
    assert [report.version for report in reports] == [0, 1, 2, 3]
    assert version_bt.shape == sampled.logp_bt.shape
    tokens = Tokens(sampled.prompt_ids, sampled.response_ids)
    for version, state in enumerate(states):
        policy.load_trainable_state(state)
        mine_bt = torch.from_numpy(version_bt == version)
        assert bool(mine_bt.any())
        torch.testing.assert_close(sampled.logp_bt[mine_bt], policy.logp(tokens)[mine_bt], rtol=0, atol=1e-9)
    for row, ids in zip(version_bt, sampled.response_ids, strict=True):
        own = row[: len(ids)]
        assert (np.diff(own) >= 0).all(), "versions never go back"
        assert (own >= 0).all()
        assert (row[len(ids) :] == -1).all()
    ended = [ids[-1] in policy.eos_ids for ids in sampled.response_ids]
    assert (~sampled.truncated_b).tolist() == ended
    assert all(end or len(ids) == 24 for end, ids in zip(ended, sampled.response_ids, strict=True))


@pytest.mark.parametrize("options", [{"partial": False}, {"stop": [(99,)]}])
def test_completions_that_are_not_to_span_keep_their_weights(options: dict[str, Any]) -> None:
    policy = make_policy()
    shared, in_flight, reports = started(policy, partial=options.pop("partial", True))
    shared.plan([moved(policy.trainable_state(), 1)], 2)
    sampled, version_bt = sampled_by(in_flight, **SAMPLING, **options)
    assert len(reports) == 1
    assert set(version_bt.flatten().tolist()) <= {0, -1}
    assert sampled.response_ids == generate(policy, PROMPTS, **SAMPLING).response_ids


def test_budgets_and_temperatures_of_single_completions_hold_across_an_exchange() -> None:
    policy = make_policy("llama", torch.float64)
    options = {**SAMPLING, "budgets": [3, 24, 9, 24, 12, 5], "temperature": [0.5, 1.0, 1.5, 0.7, 0.9, 1.1]}
    whole = generate(policy, PROMPTS, **options)
    shared, in_flight, _ = started(policy)
    shared.plan([policy.trainable_state() for _ in range(4)], 2)
    sampled, _ = sampled_by(in_flight, **options)
    assert sampled.response_ids == whole.response_ids
    assert torch.equal(sampled.truncated_b, whole.truncated_b)


def test_ages_of_tokens() -> None:
    from fake_context import FakeContext

    context = FakeContext()
    rows = context.sample(context.take(2))
    acted_bt = rows.acted_bt
    version_bt = np.where(acted_bt, 3, -1)
    version_bt[0, 0] = 1
    rows = rows.with_extras(version_bt=version_bt)
    count = int(acted_bt.sum())
    assert sorted(ages(rows, 4).tolist()) == [1] * (count - 1) + [3]
    assert oldest_b(rows, 4).tolist() == [3, *[1] * 7]
    spans = bool(acted_bt[0].sum() > 1)
    assert spanning_b(rows).tolist() == [spans, *[False] * 7]
    metrics = staleness_metrics(rows, 4)
    assert metrics["staleness_max"] == 3
    assert metrics["staleness_mean"] == pytest.approx((count + 2) / count)
    assert metrics["staleness/1"] == pytest.approx((count - 1) / count)
    assert metrics["staleness/3"] == pytest.approx(1 / count)


def test_groups_are_taken_whole_and_in_order() -> None:
    from fake_context import FakeContext

    context = FakeContext()
    rows = context.sample(context.take(3))
    first, rest = split(rows, 2)
    assert rest is not None
    assert first.group_b.tolist() == [0] * 4 + [1] * 4
    assert rest.group_b.tolist() == [2] * 4
    assert split(rows, 3) == (rows, None)
