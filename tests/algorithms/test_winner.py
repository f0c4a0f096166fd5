"""Populations: who wins a slot, what ties and single strategies give, specialists of a bandit, the policy is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl.algorithms.advantage.papers.winner import StrictWinner, WinnerMargin
from grouprl.algorithms.allocation.variants import Strategies
from grouprl.algorithms.part import RunFacts
from grouprl.core.batch import Batch
from grouprl.tasks import load_task
from small import near, small


def population(rewards: list[float], strategies: list[int], groups: list[int] | None = None) -> Batch:
    batch = small(rewards, [1] * len(rewards)).replace(keys={"variant": torch.tensor(strategies)})
    return batch if groups is None else batch.replace(group_b=torch.tensor(groups))


def test_the_margin_is_over_the_best_other_strategy_of_the_slot() -> None:
    """Slots (1, 2, 5) and (4, 0, 4.5): 5 beats 2 by 3, and 4.5 beats 4 by a half."""
    batch = population([1, 4, 2, 0, 5, 4.5], [0, 0, 1, 1, 2, 2])
    near(WinnerMargin()(batch), [[0], [0], [0], [0], [3], [0.5]])
    near(StrictWinner()(batch), [[0], [0], [0], [0], [0.25], [-0.25]])


def test_slots_are_found_whatever_the_order_of_strategies_and_prompts() -> None:
    batch = population([5, 1, 10, 4.5, 12, 4], [2, 0, 1, 2, 0, 0], [0, 0, 1, 0, 1, 0])
    near(WinnerMargin()(batch), [[4], [0], [0], [0.5], [2], [0]])


def test_ties_teach_nothing_and_a_single_strategy_is_compared_with_itself() -> None:
    tied = population([3, 1, 3, 0], [0, 0, 1, 1])
    near(WinnerMargin()(tied), [[0], [1], [0], [0]])
    near(StrictWinner()(tied), [[0], [-1], [0], [0]])
    alone = population([3, 1, 2], [0, 0, 0])
    for part in (WinnerMargin(), StrictWinner()):
        near(part(alone), [[1], [-1], [0]])


@pytest.mark.parametrize(("name", "least"), [("poppy", 0.95), ("compass", 0.85)])
def test_two_strategies_of_a_hidden_type_become_its_specialists(name: str, least: float) -> None:
    """An instance is of type 0 or 1, which nobody sees, and a choice pays 1 where it is the type: a single strategy is
    right half of the time, two equal ones at most 0.75, two specialists always. The best of two is right with chance
    1 - (1 - p)(1 - q), here the mean over both types."""
    torch.manual_seed(0)
    logits_k = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    method, optimizer = grouprl.method(name, strategies=2), torch.optim.Adam([logits_k], lr=0.1)
    group_b, strategy_b = torch.arange(64) // 8, torch.arange(64) % 8 // 4
    for _ in range(100):
        right_b = torch.randint(2, (8,))[group_b]
        choice_b = torch.multinomial(logits_k.detach().softmax(-1)[strategy_b], 1)[:, 0]
        batch = small((choice_b == right_b).double().tolist(), [1] * 64)
        batch = batch.replace(group_b=group_b, keys={"variant": strategy_b})
        logp_bt = logits_k.log_softmax(-1)[strategy_b, choice_b][:, None]
        loss = method.loss(logp_bt, method.prepare(batch.replace(old_bt=logp_bt.detach()))).value
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    chance_kt = logits_k.detach().softmax(-1)
    assert float((1 - (1 - chance_kt).prod(0)).mean()) > least


def test_the_policy_is_told_its_strategy_or_its_vector() -> None:
    task = load_task({"name": "construct:knapsack", "count": 4, "strategies": 3})
    example = task.example("train", 0)
    told = [task.environment().reset(each, 0).values["whole"][-3:].tolist() for each in task.variants(example)]
    assert told == np.eye(3).tolist()
    drawn = {tuple(task.environment().reset(example, seed).values["whole"][-3:].tolist()) for seed in range(32)}
    assert drawn == {(1, 0, 0), (0, 1, 0), (0, 0, 1)}, "in evaluations a strategy is drawn"
    vectors = load_task({"name": "construct:knapsack", "count": 4, "strategies": 2, "latent": 5})
    first, second = (each.columns["told"] for each in vectors.variants(example))
    assert len(first) == 5
    assert first != second
    assert max(map(abs, first + second)) <= 1
    again = [each.columns["told"] for each in vectors.variants(example)]
    assert again == [first, second]
    plain = load_task({"name": "construct:knapsack", "count": 4})
    assert plain.environment().reset(example, 0).values["whole"].shape == plain.spaces.observation.spaces["whole"].shape


def test_more_strategies_than_solutions_are_refused() -> None:
    assert "strategies spreads 3 completions over 4" in Strategies().refuse(RunFacts(group_size=3))[0]
    assert Strategies().refuse(RunFacts(group_size=4)) == []
    assert Strategies().refuse(RunFacts(group_size=4, variants=4)) == []
    for told in (2, 8):  # the others would be drawn in evaluations, untrained, or not be there
        assert (
            f"trains 4, but the task tells the policy of {told}"
            in (Strategies().refuse(RunFacts(group_size=4, variants=told))[0])
        )
    assert "trains 1, but the task tells the policy of 2" in Strategies(limit=1).refuse(RunFacts(variants=2))[0]
    assert "the task tells the policy of no strategies" in Strategies().refuse(RunFacts(group_size=4, variants=1))[0]
    assert Strategies(limit=1).refuse(RunFacts(variants=1)) == []


def test_a_population_trains_and_rows_know_their_strategy(tmp_path: Any) -> None:
    grouprl.train(
        {
            "task": {"name": "construct:knapsack", "count": 4, "strategies": 2},
            "model": {"name": "pointer", "settings": {"width": 8, "layers": 1, "heads": 2}},
            "method": {"name": "poppy", "strategies": 2},
            "steps": 1,
            "batch": {"prompts": 2, "group_size": 4},
            "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    rows = grouprl.load_run(str(tmp_path / "run")).rollouts()
    assert len(rows) == 8
