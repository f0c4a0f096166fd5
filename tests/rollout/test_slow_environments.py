"""Slow environments hold up nobody, and change no bit of what is sampled."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import slow_envs
import toy_envs
from grouprl.core.hashing import content_number
from grouprl.envs.environment_pool import HereStage
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny
from grouprl.rollout.deterministic_episodes import LockstepRounds
from grouprl.rollout.episode import Episode
from grouprl.rollout.episode_table import EpisodeLimits, EpisodeTable, NextTurns
from grouprl.rollout.episodes import Episodes, Start, TurnSampling, TurnSettings, laid_out, play
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.tasks import Example

LIMITS: dict[str, Any] = {"max_turns": 6, "max_new_tokens": 3}


@pytest.fixture(scope="module")
def policy() -> CausalPolicy:
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 128}
    return CausalPolicy(*build_tiny(slow_envs.SlowTask.alphabet, **sizes, seed=1))


def starts(turns: list[int], seconds: dict[int, float] | None = None) -> list[Start]:
    """One episode for each of `turns`; `seconds` are those of a step by episode, else 0."""
    made = [
        Example(f"slow/{i}", "?", {"turns": n, "seconds": (seconds or {}).get(i, 0.0)}) for i, n in enumerate(turns)
    ]
    return [Start(example, i, action_seed=100 * i) for i, example in enumerate(made)]


def identical(one: Episodes, two: Episodes) -> None:
    assert one.rollout.response_ids == two.rollout.response_ids
    assert torch.equal(one.rollout.logp_bt, two.rollout.logp_bt)
    assert torch.equal(one.rollout.entropy_bt, two.rollout.entropy_bt)
    assert one.verdicts == two.verdicts
    assert one.records == two.records
    assert one.prompts == two.prompts
    assert np.array_equal(one.mask_bt, two.mask_bt)
    assert one.transcripts == two.transcripts


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_order_of_the_completions_every_bit_is_the_same(
    policy: CausalPolicy, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("grouprl.rollout.deterministic_episodes.PATIENCE", -1.0)
    turns = [1 + content_number(f"{seed}/{i}") % 6 for i in range(10)]
    well = play(policy, slow_envs.Slow, starts(turns), **LIMITS)
    late = slow_envs.LateStage(slow_envs.Slow, lambda number, call: content_number(f"{seed}/{number}/{call}") % 9)
    found = play(policy, slow_envs.Slow, starts(turns), **LIMITS, stage=late)
    identical(found, well)


@settings(max_examples=15, deadline=None)
@given(wrong=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 5))), slow=st.integers(0, 4), delay=st.integers(1, 40))
def test_drafts_that_go_astray_change_nothing(wrong: set[tuple[int, int]], slow: int, delay: int) -> None:
    """A draft that samples something else is thrown away, with what its environment has seen."""
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 128}
    own = CausalPolicy(*build_tiny(slow_envs.SlowTask.alphabet, **sizes, seed=1))
    turns = [3, 5, 2, 6, 4]
    well = play(own, slow_envs.Slow, starts(turns), **LIMITS)
    toy_envs.Asking.opened.clear()
    stage = slow_envs.LateStage(slow_envs.Slow, lambda number, call: delay if number == slow else call % 2)
    with ExitStack() as open_sessions:
        sampling = [TurnSampling(LocalSampler(own), TurnSettings(), open_sessions) for _ in range(2)]

        def astray(episodes: list[Episode], budget: int) -> Any:
            sampled = sampling[1](episodes, budget)
            ids = [list(row) for row in sampled.ids]
            for row, episode in zip(ids, episodes, strict=True):
                if (episode.number, len(episode.turns)) in wrong:
                    row[0] = (row[0] + 1) % 5
            return NextTurns.written(ids)

        episodes = [Episode(number, start, ("",)) for number, start in enumerate(starts(turns))]
        table = EpisodeTable(own, stage, "refuse", EpisodeLimits(128, 6, 3))
        rounds = LockstepRounds(table, sampling[0], astray, episodes)
        rounds._patience = -1.0
        rounds.play()
    identical(laid_out(list(own.eos_ids[:1]), lambda: torch.float32, episodes), well)
    assert not list(stage._held), "an environment is left"
    assert all(environment.closed for environment in toy_envs.Asking.opened)


def test_quick_environments_are_never_drafted(policy: CausalPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LockstepRounds, "_draft", lambda *_: pytest.fail("a draft"))
    play(policy, slow_envs.Slow, starts([3, 4, 5]), **LIMITS)


@pytest.mark.parametrize("reproducible", [True, False])
def test_a_slow_one_holds_up_nobody(policy: CausalPolicy, reproducible: bool) -> None:
    """While one waits, the environments of the others see their last actions."""
    seen: list[tuple[int, int]] = []

    class Noted(slow_envs.AsyncSlow):
        async def step(self, action: str) -> Any:
            found = await super().step(action)
            seen.append((int(self.seconds > 0), self.turn))
            return found

    found = play(policy, Noted, starts([4] * 8, {3: 0.5}), **LIMITS, reproducible=reproducible)
    assert set(found.ended) == {"terminated"}
    assert [turn for slow, turn in seen if slow] == [1, 2, 3, 4]
    assert seen.index((1, 1)) >= 7 * 2, "the others were well ahead when the slow one had made its first step"
    assert [slow for slow, _ in seen[-3:]] == [1, 1, 1], "the others were done when it had not yet made its second"
    well = play(policy, slow_envs.Slow, starts([4] * 8), **LIMITS)
    assert found.rollout.response_ids == well.rollout.response_ids
    assert found.verdicts == well.verdicts


def test_coroutines_are_played_as_plain_classes_are(policy: CausalPolicy) -> None:
    turns = [1, 5, 3, 2]
    well = play(policy, slow_envs.Slow, starts(turns), **LIMITS)
    identical(play(policy, slow_envs.AsyncSlow, starts(turns), **LIMITS), well)
    with closing(WorkerStage(slow_envs.SlowTask(), 1, timeout=20, memory_gb=4)) as stage:
        identical(play(policy, slow_envs.AsyncSlow, starts(turns), **LIMITS, stage=stage), well)


def test_a_thousand_wait_in_one_worker(policy: CausalPolicy) -> None:
    count = 1000
    with closing(WorkerStage(slow_envs.SlowTask(), 1, timeout=60, memory_gb=4)) as stage:
        stage.call("reset", [(0, (starts([1])[0].example, 0))])  # started
        begun = time.monotonic()
        found = play(policy, slow_envs.AsyncSlow, starts([1] * count, dict.fromkeys(range(count), 1.0)), **LIMITS,
                     stage=stage)  # fmt: skip
        assert time.monotonic() - begun < 60, "one after the other they would take 1000 seconds"
        assert len(stage._slots) == 1
    assert set(found.ended) == {"terminated"}


def test_workers_grow_where_they_wait_and_not_where_they_compute(policy: CausalPolicy) -> None:
    task = slow_envs.SlowTask(asynchronous=False)
    with closing(WorkerStage(task, 1, timeout=60, memory_gb=4, most=6)) as stage:
        play(policy, slow_envs.Slow, starts([2] * 6, dict.fromkeys(range(6), 1.0)), **LIMITS, stage=stage)
        assert len(stage._slots) > 2
    with closing(WorkerStage(task, 1, timeout=60, memory_gb=4, most=6)) as stage:
        play(policy, slow_envs.Slow, starts([2] * 12), **LIMITS, stage=stage)
        assert len(stage._slots) == 1


def test_a_coroutine_that_takes_too_long_is_lost_alone(policy: CausalPolicy) -> None:
    with closing(WorkerStage(slow_envs.SlowTask(), 1, timeout=2, memory_gb=4)) as stage:
        found = play(policy, slow_envs.AsyncSlow, starts([2] * 6, {2: 50.0}), **LIMITS, stage=stage)
    assert [e for e, why in enumerate(found.ended) if why == "error"] == [2]
    assert "step() did not return within 2 s (environment.timeout)" in found.failures[0].what
    assert found.failures[0].lost


def test_the_slowest_prompt_is_named(policy: CausalPolicy) -> None:
    stage = HereStage(slow_envs.Slow)
    play(policy, slow_envs.Slow, starts([2] * 4, {1: 0.05}), **LIMITS, stage=stage)
    assert "those of the slowest prompt, 'slow/1', take" in stage.times.words()
    assert asyncio.iscoroutinefunction(slow_envs.AsyncSlow.step)
