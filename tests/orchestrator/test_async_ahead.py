"""The trainer's side without a process: what it asks, in which order it takes, what it leaves out and says."""

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
from grouprl.orchestrator.asynchronous.ahead import Ahead
from grouprl.orchestrator.step import Gathered
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, join, sort_by_group, subset

PROMPTS, GROUP, STEPS = 4, 3, 6


class RunSide(FakeContext):
    """A context that an `Ahead` can work with; `chosen` notes the step that each prompt was chosen for."""

    def __init__(self, bound: int, proximal: str = "recompute") -> None:
        super().__init__([0.5] * 40, task=Numbers(40), completions=GROUP, prompts=PROMPTS, steps=STEPS)
        run = {"async_steps": bound, "proximal": proximal}
        self.config = parse_config({"batch": {"prompts": PROMPTS, "group_size": GROUP}, "steps": STEPS, "run": run})
        self.method = catalogue("grpo")
        self.collector = SimpleNamespace(counted=lambda samples: samples)
        self.chosen: list[int] = []

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        before, self.step = self.step, step
        yield
        self.step = before

    def take(self, count: int) -> list[RolloutRequest]:
        self.chosen += [self.step] * count
        return super().take(count)


class InstantSampler:
    """Completions at once, with `version()`; prompts in `broken` always fail."""

    def __init__(self, context: RunSide, version: Any) -> None:
        self.context, self.version, self.broken = context, version, frozenset[int]()
        self.messages: list[tuple[str, Any]] = []

    def request(self, number: int, requests: Sequence[RolloutRequest]) -> None:
        sampled = self.context.sample(list(requests))
        version_bt = np.where(sampled.acted_bt, self.version(), -1)
        kept_b = sampled.kept_b & ~np.isin(sampled.index_b, list(self.broken))
        sampled = replace(sampled.with_extras(version_bt=version_bt), kept_b=kept_b)
        self.messages.append(("sampled", (number, sampled, {"rollout": 0.5})))

    def received(self) -> list[tuple[str, Any]]:
        taken, self.messages = self.messages, []
        return taken

    def close(self) -> None:
        pass


def begun(bound: int, **given: Any) -> tuple[RunSide, Ahead, InstantSampler, list[str]]:
    context, said = RunSide(bound, **given), []
    ahead = Ahead(context, policy=None)  # type: ignore[arg-type]
    sampler = InstantSampler(context, lambda: ahead.admission.version)
    ahead._samplers, ahead._sync, ahead.say = sampler, object(), said.append  # type: ignore[assignment]
    ahead._publish = lambda sync: None  # type: ignore[method-assign]
    ahead.admission = Admission.resumed(bound, PROMPTS, 0)
    ahead._request(PROMPTS)
    return context, ahead, sampler, said


def step(context: RunSide, ahead: Ahead, *, wanted: Any = lambda rows: rows.kept_b, rounds: int = 1) -> Gathered:
    """One step of the loop: rounds until enough groups are wanted, then the end of the step."""
    missing, sampled, good = PROMPTS, [], []
    for _ in range(rounds):
        given = ahead.round(missing)
        assert given is not None
        found, gone, _ = given
        assert gone is None
        sampled.append(found)
        good.append(subset(found, found.kept_b & wanted(found)))
        missing -= len(set(good[-1].ordinal_b.tolist()))
        if not missing:
            break
    whole = join(sampled)
    gathered = Gathered(whole, sort_by_group(join(good)), len(sampled), np.full(len(whole), "", "<U14"))
    context.step += 1
    ahead.advance(gathered)
    return gathered


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_questions_are_asked_as_far_ahead_as_the_rule_allows(bound: int) -> None:
    context, ahead, _, _ = begun(bound)
    for number in range(STEPS):
        requested = min((number + 1 + bound) * PROMPTS, STEPS * PROMPTS)
        assert len(context.chosen) == requested
        gathered = step(context, ahead)
        ordinals = sorted(set(gathered.sampled.ordinal_b.tolist()))
        assert ordinals == list(range(number * PROMPTS, (number + 1) * PROMPTS))
    assert context.chosen == [i // PROMPTS for i in range(STEPS * PROMPTS)], (
        "each is chosen for the step it is trained in"
    )
    assert ahead.state()["ahead"]["asks"] == []


def test_only_older_rows_need_new_old_log_probs() -> None:
    context, ahead, _, _ = begun(1)
    assert not step(context, ahead).sampled.foreign_b.any()
    assert step(context, ahead).sampled.foreign_b.all(), "sampled one version ago"
    context, ahead, _, _ = begun(1, proximal="sampler")
    step(context, ahead)
    assert not step(context, ahead).sampled.foreign_b.any()


def test_groups_that_are_too_old_are_left_out_whole() -> None:
    context, ahead, _, _ = begun(1)
    step(context, ahead)
    step(context, ahead)
    number = ahead._units[0][0]
    version_bt = ahead._arrived[number].extras["version_bt"].copy()
    assert set(version_bt.flatten().tolist()) == {1}
    version_bt[1, 0] = 0  # one token of one completion, two versions old at the third step
    ahead._arrived[number] = ahead._arrived[number].with_extras(version_bt=version_bt)
    kept = step(context, ahead).sampled
    assert kept.kept_b.tolist() == [False] * GROUP + [True] * GROUP * (PROMPTS - 1)


def test_refill_takes_from_what_was_drawn_ahead() -> None:
    context, ahead, _, _ = begun(1)

    def odd(rows: ScoredSamples) -> np.ndarray:
        return rows.ordinal_b % 2 == 1

    first = step(context, ahead, wanted=odd, rounds=5)
    assert sorted(set(first.wanted.ordinal_b.tolist())) == [1, 3, 5, 7]
    assert sorted(set(first.sampled.ordinal_b.tolist())) == list(range(8))
    second = step(context, ahead, wanted=odd, rounds=5)
    assert sorted(set(second.wanted.ordinal_b.tolist())) == [9, 11, 13, 15]
    for gathered in (first, second):
        counts = np.unique(gathered.sampled.ordinal_b, return_counts=True)[1]
        assert (counts == GROUP).all(), "groups are taken whole"


def test_a_question_that_always_fails_starves_and_is_named() -> None:
    context, ahead, sampler, said = begun(0)
    context.step = 0
    sampler.broken = frozenset({8})
    index = iter([8, 1, 2, 3] * STEPS)
    context.take = lambda count: [context.request(next(index)) for _ in range(count)]  # type: ignore[method-assign]
    for _ in range(5):
        step(context, ahead)
    assert said == ["the prompt n/8 starves: 3 times in a row its completions failed, came late or were lost"]


def test_what_is_under_way_survives_an_interruption() -> None:
    context, ahead, _, _ = begun(2)
    step(context, ahead)
    state = ahead.state()
    assert [request["ordinal"] for request in state["ahead"]["asks"]] == list(range(PROMPTS, 4 * PROMPTS))
    again = Ahead(context, policy=None)  # type: ignore[arg-type]
    again.restore(state)
    assert again.state()["ahead"]["asks"] == state["ahead"]["asks"], "also before it has begun again"
