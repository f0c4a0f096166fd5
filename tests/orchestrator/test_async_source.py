"""The trainer's side without a process: what it requests, in which order it takes, what it leaves out and says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fake_context import FakeContext, Numbers
from grouprl.config.run import parse_config
from grouprl.methods import method as catalogue
from grouprl.orchestrator.asynchronous.admission import Admission
from grouprl.orchestrator.asynchronous.source import AsyncSource
from grouprl.orchestrator.step import StepRollout
from grouprl.records.joining import join
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, sort_by_group, subset

PROMPTS, GROUP, STEPS = 4, 3, 6


class RunSide(FakeContext):
    """A context that an `AsyncSource` can work with; `chosen` notes the step that each prompt was chosen for."""

    def __init__(self, bound: int, proximal: str = "recompute") -> None:
        super().__init__([0.5] * 40, task=Numbers(40), completions=GROUP, prompts=PROMPTS, steps=STEPS)
        run = {"async_steps": bound, "proximal": proximal}
        self.config = parse_config({"batch": {"prompts": PROMPTS, "group_size": GROUP}, "steps": STEPS, "run": run})
        self.method = catalogue("grpo")
        self.row_source = SimpleNamespace(counted=lambda samples: samples)
        self.chosen: list[int] = []

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        before, self.step = self.step, step
        yield
        self.step = before

    def take(self, count: int) -> list[RolloutRequest]:
        self.chosen += [self.step] * count
        return super().take(count)


class InstantSupply:
    """Completions at once, with `version()`; prompts in `broken` always fail."""

    def __init__(self, context: RunSide, version: Any) -> None:
        self.context, self.version, self.broken = context, version, frozenset[int]()
        self.arrived: dict[int, ScoredSamples] = {}

    def publish(self, version: int) -> None:
        pass

    def request(self, number: int, requests: Sequence[RolloutRequest]) -> None:
        sampled = self.context.sample(list(requests))
        version_bt = np.where(sampled.acted_bt, self.version(), -1)
        valid_b = sampled.valid_b & ~np.isin(sampled.index_b, list(self.broken))
        self.arrived[number] = replace(sampled.with_extras(version_bt=version_bt), valid_b=valid_b)

    def take(self, number: int) -> ScoredSamples:
        return self.arrived.pop(number)

    def metrics(self) -> dict[str, float]:
        return {}

    def state(self, units: Any) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


def begun(bound: int, **given: Any) -> tuple[RunSide, AsyncSource, InstantSupply, list[str]]:
    context, said = RunSide(bound, **given), []
    source = AsyncSource(context, policy=None)  # type: ignore[arg-type]
    supply = InstantSupply(context, lambda: source.admission.version)
    source._supply, source.say = supply, said.append  # type: ignore[assignment]
    source.admission = Admission.resumed(bound, PROMPTS, 0)
    source._request(PROMPTS)
    return context, source, supply, said


def step(
    context: RunSide, source: AsyncSource, *, wanted: Any = lambda rows: rows.valid_b, rounds: int = 1
) -> StepRollout:
    """One step of the loop: rounds until enough groups are wanted, then the end of the step."""
    missing, sampled, good = PROMPTS, [], []
    for _ in range(rounds):
        given = source.round(missing)
        assert given is not None
        found, gone, _ = given
        assert gone is None
        sampled.append(found)
        good.append(subset(found, found.valid_b & wanted(found)))
        missing -= len(set(good[-1].ordinal_b.tolist()))
        if not missing:
            break
    whole = join(sampled)
    rollout = StepRollout(whole, sort_by_group(join(good)), len(sampled), np.full(len(whole), "", "<U14"))
    context.step += 1
    source.advance(rollout)
    return rollout


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_prompts_are_requested_as_far_ahead_as_the_rule_allows(bound: int) -> None:
    context, source, _, _ = begun(bound)
    for number in range(STEPS):
        requested = min((number + 1 + bound) * PROMPTS, STEPS * PROMPTS)
        assert len(context.chosen) == requested
        rollout = step(context, source)
        ordinals = sorted(set(rollout.sampled.ordinal_b.tolist()))
        assert ordinals == list(range(number * PROMPTS, (number + 1) * PROMPTS))
    assert context.chosen == [i // PROMPTS for i in range(STEPS * PROMPTS)], (
        "each is chosen for the step it is trained in"
    )
    assert source.state()["in_flight"]["requests"] == []


def test_only_older_rows_need_new_old_log_probs() -> None:
    context, source, _, _ = begun(1)
    assert not step(context, source).sampled.foreign_b.any()
    assert step(context, source).sampled.foreign_b.all(), "sampled one version ago"
    context, source, _, _ = begun(1, proximal="sampler")
    step(context, source)
    assert not step(context, source).sampled.foreign_b.any()


def test_groups_that_are_too_old_are_left_out_whole() -> None:
    context, source, supply, _ = begun(1)
    step(context, source)
    step(context, source)
    number = source._units[0][0]
    version_bt = supply.arrived[number].extras["version_bt"].copy()
    assert set(version_bt.flatten().tolist()) == {1}
    version_bt[1, 0] = 0  # one token of one completion, two versions old at the third step
    supply.arrived[number] = supply.arrived[number].with_extras(version_bt=version_bt)
    kept = step(context, source).sampled
    assert kept.valid_b.tolist() == [False] * GROUP + [True] * GROUP * (PROMPTS - 1)


def test_refill_takes_from_what_was_sampled_ahead() -> None:
    context, source, _, _ = begun(1)

    def odd(rows: ScoredSamples) -> np.ndarray:
        return rows.ordinal_b % 2 == 1

    first = step(context, source, wanted=odd, rounds=5)
    assert sorted(set(first.wanted.ordinal_b.tolist())) == [1, 3, 5, 7]
    assert sorted(set(first.sampled.ordinal_b.tolist())) == list(range(8))
    second = step(context, source, wanted=odd, rounds=5)
    assert sorted(set(second.wanted.ordinal_b.tolist())) == [9, 11, 13, 15]
    for rollout in (first, second):
        counts = np.unique(rollout.sampled.ordinal_b, return_counts=True)[1]
        assert (counts == GROUP).all(), "groups are taken whole"


def test_a_prompt_that_always_fails_starves_and_is_named() -> None:
    context, source, sampler, said = begun(0)
    context.step = 0
    sampler.broken = frozenset({8})
    index = iter([8, 1, 2, 3] * STEPS)
    context.take = lambda count: [context.request(next(index)) for _ in range(count)]  # type: ignore[method-assign]
    for _ in range(5):
        step(context, source)
    assert said == ["the prompt n/8 starves: its completions failed, came late or were lost 3 times in a row"]


def test_what_is_under_way_survives_an_interruption() -> None:
    context, source, _, _ = begun(2)
    step(context, source)
    state = source.state()
    assert [request["ordinal"] for request in state["in_flight"]["requests"]] == list(range(PROMPTS, 4 * PROMPTS))
    again = AsyncSource(context, policy=None)  # type: ignore[arg-type]
    again.restore(state)
    assert again.state()["in_flight"]["requests"] == state["in_flight"]["requests"], "also before it has begun again"


def test_what_a_step_left_over_survives_as_it_was_scored() -> None:
    context, source, supply, _ = begun(1)
    supply.state = lambda units: {"of": [number for number, _ in units]}  # type: ignore[method-assign]
    context.step = 0
    step(context, source, wanted=lambda rows: rows.valid_b & (rows.ordinal_b != 1), rounds=5)
    (rest,) = source._rest.values()
    assert sorted(set(rest.ordinal_b.tolist())) == [5, 6, 7], "one of the next step's four was taken"
    source._rest = {1: replace(rest, greedy_reward_b=np.arange(float(len(rest))))}
    state = source.state()["in_flight"]
    assert state["units"] == [3, 4]
    again = AsyncSource(context, policy=None)  # type: ignore[arg-type]
    restored: dict[str, Any] = {}
    again._supply = SimpleNamespace(restore=lambda units, state: restored.update(units=units, state=state))  # type: ignore[assignment]
    again._continue([source._units[i][1][j] for i in (0, 1) for j in range(state["units"][i])], state)
    assert restored["state"] == {"of": [2]}
    assert [number for number, _ in restored["units"]] == [1]
    assert again._rest[0].greedy_reward_b.tolist() == list(range(9))
    assert again._rest[0].extras["version_bt"].tolist() == rest.extras["version_bt"].tolist()
