"""RLAP in a world with a known optimum: the learned order is a best one of each input, which no fixed order is."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl.core.batch import Batch
from grouprl.envs.builtin.sub_tasks import CITIES, Homes, SubTask, told
from grouprl.policy import ArrayInputs, Build, ChoiceValues
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.training.logprobs import add_statistics
from grouprl.training.update import update
from homes import ANY, Told, earned, forests

PEOPLE = 4
EVERY = forests(PEOPLE)


def inputs(seed: int) -> list[list[SubTask]]:
    """Each way in which people can live with each other, with random cities."""
    luck = np.random.default_rng(seed)
    return [told(hosts, luck.choice(CITIES, PEOPLE).tolist()) for hosts in EVERY]


def stacked(shown: list[Any]) -> dict[str, np.ndarray]:
    return {name: np.stack([each.values[name] for each in shown]) for name in ("state", "choices")}


def every_play(plays: int) -> Batch:
    """Random orders of each input, each time with other cities; only the end is paid. Random actions give such rows."""
    luck, seen, legal, actions, finals, rewards = np.random.default_rng(0), [], [], [], [], []
    for tasks in [tasks for play in range(plays) for tasks in inputs(100 + play)]:
        world, order = Told(tasks, match=0.0), luck.permutation(PEOPLE)
        shown, paid = [world.reset(ANY, 0)], []
        for action in order:
            step: Any = world.step(int(action))
            shown.append(step.observation)
            paid.append(step.reward)
        seen.append(stacked(shown[:-1]))
        legal.append(np.stack([np.asarray(each.legal) for each in shown[:-1]]))
        finals.append({name: x[0] for name, x in stacked(shown[-1:]).items()})
        actions.append(order)
        rewards.append(paid)
    rows = ArrayInputs.of(seen, actions, final_b=finals, legal_bta=legal)
    return Batch(
        mask_bt=rows.present_bt(),
        group_b=torch.arange(len(rows)),
        reward_b=torch.tensor(rewards).sum(1),
        turn_bt=torch.arange(PEOPLE).expand(len(rows), -1),
        turn_reward_bs=torch.tensor(rewards),
        truncated_b=torch.zeros(len(rows), dtype=torch.bool),
        inputs=rows,
    )


def played(policy: ChoiceValues, tasks: list[SubTask]) -> tuple[list[int], float]:
    """The order of the highest values, and what it earns."""
    world, order, paid = Told(tasks, match=0.0), [], 0.0
    shown: Any = world.reset(ANY, 0)
    while len(order) < PEOPLE:
        values = {name: torch.from_numpy(x)[None].to(policy.dtype) for name, x in shown.values.items()}
        seen = Seen(values, {}, torch.zeros(1, dtype=torch.int64), torch.from_numpy(shown.legal)[None])
        order.append(int(policy.act(seen, [0], [1.0], greedy=True).action_r))
        step = world.step(order[-1])
        shown, paid = step.observation, paid + step.reward
    return order, paid


def test_the_learned_order_is_a_best_one_of_every_input() -> None:
    """All 125 ways in which four people live with each other, in cities that were not seen; only the end is paid, so
    values have to travel back from it. 1 is the most that an order can earn.
    """
    entry = grouprl.method("rlap", fresh_share=1.0, follow=1)
    policy, batch = ChoiceValues(Build(Homes(PEOPLE).spaces, seed=0), hidden=(64,)), every_play(8)
    optimizer = torch.optim.Adam(policy.parameters(), 0.005)
    for _ in range(10):
        known = add_statistics(policy, batch, entry.needs())
        ready = entry.compute_advantages(known.replace(old_bt=policy.logp(batch.inputs)))  # type: ignore[arg-type]
        update(policy, optimizer, entry, ready, epochs=6, parts=8, grad_clip=100.0, context=SimpleNamespace(step=0))  # type: ignore[arg-type]
    found = [played(policy, tasks) for tasks in inputs(1) + inputs(2)]
    assert [paid for _, paid in found] == pytest.approx([1.0] * 2 * len(EVERY))
    assert len({tuple(order) for order, _ in found}) > 10, "the order depends on the input"


def test_a_fixed_order_is_as_good_as_any_other_where_people_are_told_in_no_order() -> None:
    """The mean of each of the 24 orders over all inputs is that of random ones, and the mean of their optima is 1."""
    means = [np.mean([sum(earned(tasks, order)[0]) for tasks in inputs(1)]) for order in permutations(range(PEOPLE))]
    assert max(means) - min(means) < 1e-9
    assert max(means) < 0.75


def test_a_run_learns_to_ask_about_hosts_first(tmp_path: Path) -> None:
    grouprl.train(
        {
            "task": {"name": "env:grouprl.envs.builtin.sub_tasks:Homes", "turns": 3, "config": {"count": 3}},
            "model": {"name": "choice_values", "settings": {"hidden": [32]}},
            "method": {"name": "rlap", "explore_steps": 15},
            "steps": 30,
            "batch": {"prompts": 32, "group_size": 1, "epochs": 8},
            "optim": {"lr": 0.01, "schedule": "constant"},
            "eval": {"every": 0, "prompts": 32, "final_prompts": 32},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row for row in rows if row["phase"] == "eval"][-1]["eval/greedy"] == 1
