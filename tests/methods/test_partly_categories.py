"""PLaID++: which pairs ordered categories make, what is repeated, the temperature of rounds, and a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import grouprl
from grouprl.algorithms.reward_transform.papers.repeated_lowest import RepeatedLowest
from grouprl.algorithms.sampling.papers.rising_temperature import RisingTemperature
from grouprl.records.examples import Example
from grouprl.records.requests import RolloutRequest
from short_runs import trained_steps
from small import near, small


def batch_of(rewards: list[float], answers: list[int], groups: list[int] | None = None):
    size = len(rewards)
    batch = small(rewards, groups=groups or [0] * size, old_bt=[[-1.0]] * size)
    answer_b = torch.tensor(answers)
    return batch.replace(keys={"answer": answer_b}, refs={"iterates": batch.old_bt})


def test_only_larger_categories_are_chosen_and_no_repeats():
    batch = batch_of([2, 1, 0, 2, 2, 1], [0, 1, 2, 3, 3, 4])
    made = grouprl.method("plaid")
    ready = made.prepare(batch)
    pairs = {tuple(pair) for pair in ready.edges["pairs"].index_e2.tolist()}
    assert pairs == {(0, i) for i in (1, 2, 3, 4, 5)} | {(i, j) for i in (1, 5) for j in (2, 3, 4)}


def test_repeats_are_of_one_prompt_and_rewards_below_the_lowest_stay():
    part = RepeatedLowest(lowest=0.5)
    near(part(batch_of([2, 2, 1, 0.2], [0, 0, 1, 1])).reward_b, [0.5, 0.5, 0.5, 0.2])
    near(part(batch_of([2, 2], [0, 0], groups=[0, 1])).reward_b, [2.0, 2.0])
    left = batch_of([2, 2], [0, 0]).replace(stat_b=torch.tensor([True, False]))
    near(part(left).reward_b, [2.0, 2.0])


def test_the_temperature_rises_from_round_to_round():
    part, noted = RisingTemperature(every=10, rise=0.25, most=1.5), {}
    assert [part.at(step) for step in (0, 9, 10, 20, 1000)] == [1, 1, 1.25, 1.5, 1.5]
    context: Any = SimpleNamespace(step=12, temperature=0.8, note=lambda name, value, _: noted.update({name: value}))
    request = RolloutRequest(Example("a", "1+1="), 0, 0, completions=2)
    assert part.adjust([request], context)[0].temperature == pytest.approx(1.0)
    assert noted["sampling_temperature"] == pytest.approx(1.0)
    context.step = 3
    assert part.adjust([request], context) == [request]
    assert part.idle(context) == []
    assert RisingTemperature(rise=0).idle(context)


def test_a_run_gets_hotter_and_begins_each_round_at_its_reference(tmp_path: Path):
    config = {
        "task": "words",
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": {"name": "plaid", "every": 1, "rise": 0.5},
        "steps": 2,
        "batch": {"prompts": 4, "group_size": 4},
        "eval": {"every": 0, "final_prompts": 1},
    }
    steps = trained_steps(config, tmp_path / "run")
    assert [step["sampling_temperature"] for step in steps] == [1.0, 1.5]
