"""GROOVE's curriculum: new levels, and stored ones by what an antagonist is paid more on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fake_context import FakeContext, Numbers
from grouprl import InputError
from grouprl.algorithms.curriculum.papers.level_replay import LevelReplay
from grouprl.algorithms.part import RunFacts
from grouprl.config.run import parse_config
from grouprl.records.samples import ScoredSamples
from grouprl.training.loop import train

BEST = [0.0, 0.5, 1.0]
"""What an antagonist is paid on three levels on which the policy is paid nothing."""


def told(samples: Any) -> Any:
    """The rows with the antagonist's reward on their levels."""
    best_b = np.array([BEST[index % len(BEST)] for index in samples.index_b])
    return replace(samples, scores=replace(samples.scores, components={"#best": best_b}))


def played(
    part: LevelReplay, steps: int, *, levels: int = 3, each: int = 1, rate: Any = None, antagonist: bool = True
) -> tuple[list[list[int]], FakeContext]:
    """Play steps of `each` levels; return the levels of every step."""
    rates = rate or (0.0,) * levels
    context = FakeContext(rates, task=Numbers(levels), prompts=each, completions=4, steps=steps)
    found = []
    for _ in range(steps):
        requests = part.choose(each, context)
        found.append([request.index for request in requests])
        rows: ScoredSamples = context.sample(requests)
        context.finish(told(rows) if antagonist else rows, part, advantage=0.25)
    return found, context


def test_new_levels_come_first_and_then_the_one_with_the_largest_regret() -> None:
    """Regrets 0, 0.5 and 1: without replay all three are played, with it level 2 in every step."""
    first, context = played(LevelReplay(replay=0.0), 3)
    assert sorted(level for step in first for level in step) == [0, 1, 2]
    assert context.state_of(LevelReplay())["scores"] == {level: BEST[level] for step in first for level in step}
    part = LevelReplay(replay=1.0)
    later, _ = played(part, 12)
    assert later[0] != later[1] or len({step[0] for step in later}) == 1
    all_known, context = played(LevelReplay(replay=0.5), 40)
    known = next(i for i in range(40) if len({step[0] for step in all_known[: i + 1]}) == 3)
    assert {step[0] for step in all_known[known + 1 :]} == {2}


def test_a_softmax_is_uniform_at_a_high_temperature_and_the_top_at_a_low_one() -> None:
    scores, luck = dict(enumerate(BEST)), np.random.default_rng(0)
    hot = [LevelReplay(order="softmax", temperature=1e6).replayed(scores, 1, luck)[0] for _ in range(3000)]
    assert np.bincount(hot) / 3000 == pytest.approx([1 / 3] * 3, abs=0.03)
    cold = [LevelReplay(order="softmax", temperature=1e-3).replayed(scores, 1, luck)[0] for _ in range(50)]
    assert set(cold) == {2}
    mild = [LevelReplay(order="softmax", temperature=0.5).replayed(scores, 1, luck)[0] for _ in range(6000)]
    weight = np.exp(np.array(BEST) / 0.5)
    assert np.bincount(mild) / 6000 == pytest.approx(weight / weight.sum(), abs=0.02)
    assert LevelReplay().replayed(scores, 2, luck) == [2, 1]


def test_half_of_the_levels_are_stored_ones() -> None:
    steps, context = played(LevelReplay(), 30, levels=2000, each=8)
    seen: set[int] = set()
    again = 0
    for levels in steps:
        assert len(set(levels)) == 8  # a level is played once in a step
        again += len(seen & set(levels))
        seen |= set(levels)
    assert again / (29 * 8) == pytest.approx(0.5, abs=0.1)
    assert len(context.state_of(LevelReplay())["scores"]) == len(seen)


def test_the_lowest_scores_are_forgotten_beyond_the_capacity_and_are_new_again() -> None:
    steps, context = played(LevelReplay(capacity=2, replay=0.0), 6)
    assert set(context.state_of(LevelReplay())["scores"]) <= {1, 2} or len(steps) < 3
    assert [step[0] for step in steps].count(0) >= 2


@pytest.mark.parametrize(
    ("score", "expected"), [("regret", 0.25), ("gain", 0.5), ("advantage", 0.25), ("spread", 0.25)]
)
def test_scores_by_hand(score: Any, expected: float) -> None:
    """Two right ones of four: mean ½, best 1, variance ¼; the antagonist is paid ¾; |A| is ¼ by the history."""
    context = FakeContext((0.5,), task=Numbers(1), prompts=1, completions=4, steps=2)
    rows = context.sample([context.request(0)])
    reward_b = np.array([1.0, 0.0, 1.0, 0.0])
    scores = replace(rows.scores, reward_b=reward_b, components={"#best": np.full(4, 0.75)})
    part = LevelReplay(score=score)
    context.finish(replace(rows, scores=scores), part, advantage=0.25)
    assert context.state_of(part)["scores"] == {0: pytest.approx(expected)}


def test_gain_remembers_the_best_rollout_of_a_level() -> None:
    """Right at first, wrong later: the best so far is 1, the mean 0."""
    part = LevelReplay(score="gain", replay=1.0)
    _, context = played(part, 3, levels=1, rate=lambda case, step: float(step == 0), antagonist=False)
    assert context.state_of(part)["scores"] == {0: 1.0}


def test_rows_that_could_not_be_scored_say_nothing_of_their_level() -> None:
    context, part = FakeContext((0.5,), task=Numbers(1), prompts=1, completions=4), LevelReplay(score="spread")
    rows = context.sample([context.request(0)])
    lost = replace(rows.scores, status_b=np.array(["error"] * 4))
    part.observe(replace(rows, scores=lost), None, context)  # type: ignore[arg-type]
    assert context.state_of(part)["scores"] == {}
    assert part.choose(1, context)[0].index == 0


def test_without_an_antagonist_its_regret_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="no component '#best'"):
        played(LevelReplay(), 1, antagonist=False)
    assert "data.prompts" in LevelReplay().refuse(RunFacts(examples=None))[0]
    assert "replay is 0" in LevelReplay(replay=0.0).idle(RunFacts())[0]
    assert "no spread" in LevelReplay(score="spread").idle(RunFacts(group_size=1))[0]
    assert LevelReplay().idle(RunFacts()) == []


GRID: dict[str, Any] = {
    "task": {"name": "env:grouprl.envs.construction.walled_grid:WalledGrid", "turns": 8, "config": {"steps": 8}},
    "model": {"name": "mlp", "settings": {"hidden": [8]}},
    "data": {"prompts": 30},
    "method": {"name": "groove", "capacity": 6},
    "steps": 4,
    "warmup": {"steps": 0},
    "batch": {"prompts": 4, "group_size": 2, "minibatches": 1},
    "eval": {"every": 0, "final_prompts": 2},
    "environment": {"workers": 0},
    "run": {"checkpoint_every": 2, "threads": 1},
}


def test_a_run_on_grids_goes_on_from_its_levels_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken off in its third step and resumed, it plays and learns what it would have."""
    train(parse_config(GRID), folder=tmp_path / "whole", console=Console(quiet=True))
    real = LevelReplay.observe

    def breaks(self: LevelReplay, samples: Any, prepared: Any, context: Any) -> None:
        if context.step == 2:
            raise KeyboardInterrupt
        real(self, samples, prepared, context)

    monkeypatch.setattr(LevelReplay, "observe", breaks)
    with pytest.raises(KeyboardInterrupt):
        train(parse_config(GRID), folder=tmp_path / "broken", console=Console(quiet=True))
    monkeypatch.undo()
    train(parse_config(GRID), folder=tmp_path / "broken", resume=True, console=Console(quiet=True))
    whole, broken = (told_of(tmp_path / name) for name in ("whole", "broken"))
    assert whole == broken
    assert any(row[1] > 0 for row in whole)
    assert max(row[2] for row in whole) == 6


def told_of(folder: Path) -> list[tuple[float, float, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    named = ("reward_mean", "levels_replayed", "levels_stored")
    return [tuple(row[name] for name in named) for row in rows if row["phase"] == "train"]  # type: ignore[misc]
