"""The trainer's side without a process: what it asks, in which order it takes, what it leaves out and says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from desks import FakeDesk, Numbers
from grouprl.config.run import parse_config
from grouprl.methods import method as catalogue
from grouprl.orchestrator.asynchronous.admission import Admission
from grouprl.orchestrator.asynchronous.ahead import Ahead
from grouprl.orchestrator.step import Gathered
from grouprl.rollout.requests import Ask
from grouprl.rollout.samples import Collected, join, sort_by_group, subset

PROMPTS, GROUP, STEPS = 4, 3, 6


class RunSide(FakeDesk):
    """A desk that an `Ahead` can work with; `chosen` notes the step that each question was chosen for."""

    def __init__(self, bound: int, proximal: str = "recompute") -> None:
        super().__init__([0.5] * 40, task=Numbers(40), answers=GROUP, prompts=PROMPTS, steps=STEPS)
        run = {"async_steps": bound, "proximal": proximal}
        self.config = parse_config({"batch": {"prompts": PROMPTS, "group": GROUP}, "steps": STEPS, "run": run})
        self.method = catalogue("grpo")
        self.collector = SimpleNamespace(counted=lambda collected: collected)
        self.chosen: list[int] = []

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        before, self.step = self.step, step
        yield
        self.step = before

    def take(self, count: int) -> list[Ask]:
        self.chosen += [self.step] * count
        return super().take(count)


class InstantSampler:
    """Answers at once, with `version()`; questions in `broken` always fail."""

    def __init__(self, desk: RunSide, version: Any) -> None:
        self.desk, self.version, self.broken = desk, version, frozenset[int]()
        self.messages: list[tuple[str, Any]] = []

    def ask(self, number: int, asks: Sequence[Ask]) -> None:
        drawn = self.desk.draw(list(asks))
        version_bt = np.where(drawn.acted_bt, self.version(), -1)
        kept_b = drawn.kept_b & ~np.isin(drawn.index_b, list(self.broken))
        drawn = replace(drawn.with_extras(version_bt=version_bt), kept_b=kept_b)
        self.messages.append(("drawn", (number, drawn, {"rollout": 0.5})))

    def received(self) -> list[tuple[str, Any]]:
        taken, self.messages = self.messages, []
        return taken

    def close(self) -> None:
        pass


def begun(bound: int, **given: Any) -> tuple[RunSide, Ahead, InstantSampler, list[str]]:
    desk, said = RunSide(bound, **given), []
    ahead = Ahead(desk, policy=None)  # type: ignore[arg-type]
    sampler = InstantSampler(desk, lambda: ahead.admission.version)
    ahead._samplers, ahead._publish, ahead.say = sampler, lambda: None, said.append  # type: ignore[assignment, method-assign]
    ahead.admission = Admission.resumed(bound, PROMPTS, 0)
    ahead._ask(PROMPTS)
    return desk, ahead, sampler, said


def step(desk: RunSide, ahead: Ahead, *, wanted: Any = lambda rows: rows.kept_b, rounds: int = 1) -> Gathered:
    """One step of the loop: rounds until enough groups are wanted, then the end of the step."""
    missing, drawn, good = PROMPTS, [], []
    for _ in range(rounds):
        given = ahead.round(missing)
        assert given is not None
        found, gone, _ = given
        assert gone is None
        drawn.append(found)
        good.append(subset(found, found.kept_b & wanted(found)))
        missing -= len(set(good[-1].ordinal_b.tolist()))
        if not missing:
            break
    whole = join(drawn)
    gathered = Gathered(whole, sort_by_group(join(good)), len(drawn), np.full(len(whole), "", "<U14"))
    desk.step += 1
    ahead.advance(gathered)
    return gathered


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_questions_are_asked_as_far_ahead_as_the_rule_allows(bound: int) -> None:
    desk, ahead, _, _ = begun(bound)
    for number in range(STEPS):
        asked = min((number + 1 + bound) * PROMPTS, STEPS * PROMPTS)
        assert len(desk.chosen) == asked
        gathered = step(desk, ahead)
        ordinals = sorted(set(gathered.drawn.ordinal_b.tolist()))
        assert ordinals == list(range(number * PROMPTS, (number + 1) * PROMPTS))
    assert desk.chosen == [i // PROMPTS for i in range(STEPS * PROMPTS)], "each is chosen for the step it is trained in"
    assert ahead.state()["ahead"]["asks"] == []


def test_only_older_rows_need_new_old_log_probs() -> None:
    desk, ahead, _, _ = begun(1)
    assert not step(desk, ahead).drawn.foreign_b.any()
    assert step(desk, ahead).drawn.foreign_b.all(), "drawn one version ago"
    desk, ahead, _, _ = begun(1, proximal="sampler")
    step(desk, ahead)
    assert not step(desk, ahead).drawn.foreign_b.any()


def test_groups_that_are_too_old_are_left_out_whole() -> None:
    desk, ahead, _, _ = begun(1)
    step(desk, ahead)
    step(desk, ahead)
    number = ahead._units[0][0]
    version_bt = ahead._arrived[number].extras["version_bt"].copy()
    assert set(version_bt.flatten().tolist()) == {1}
    version_bt[1, 0] = 0  # one token of one answer, two versions old at the third step
    ahead._arrived[number] = ahead._arrived[number].with_extras(version_bt=version_bt)
    kept = step(desk, ahead).drawn
    assert kept.kept_b.tolist() == [False] * GROUP + [True] * GROUP * (PROMPTS - 1)


def test_refill_takes_from_what_was_drawn_ahead() -> None:
    desk, ahead, _, _ = begun(1)

    def odd(rows: Collected) -> np.ndarray:
        return rows.ordinal_b % 2 == 1

    first = step(desk, ahead, wanted=odd, rounds=5)
    assert sorted(set(first.wanted.ordinal_b.tolist())) == [1, 3, 5, 7]
    assert sorted(set(first.drawn.ordinal_b.tolist())) == list(range(8))
    second = step(desk, ahead, wanted=odd, rounds=5)
    assert sorted(set(second.wanted.ordinal_b.tolist())) == [9, 11, 13, 15]
    for gathered in (first, second):
        counts = np.unique(gathered.drawn.ordinal_b, return_counts=True)[1]
        assert (counts == GROUP).all(), "groups are taken whole"


def test_a_question_that_always_fails_starves_and_is_named() -> None:
    desk, ahead, sampler, said = begun(0)
    desk.step = 0
    sampler.broken = frozenset({8})
    index = iter([8, 1, 2, 3] * STEPS)
    desk.take = lambda count: [desk.ask(next(index)) for _ in range(count)]  # type: ignore[method-assign]
    for _ in range(5):
        step(desk, ahead)
    assert said == ["the question n/8 starves: 3 times in a row its answers failed, came late or were lost"]


def test_what_is_under_way_survives_an_interruption() -> None:
    desk, ahead, _, _ = begun(2)
    step(desk, ahead)
    state = ahead.state()
    assert [ask["ordinal"] for ask in state["ahead"]["asks"]] == list(range(PROMPTS, 4 * PROMPTS))
    again = Ahead(desk, policy=None)  # type: ignore[arg-type]
    again.restore(state)
    assert again.state()["ahead"]["asks"] == state["ahead"]["asks"], "also before it has begun again"
