"""A limit of costs: the multiplier by hand, what it remembers, what it reduces to, and an optimum that is known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import grouprl
from fake_context import FakeContext
from grouprl.algorithms.advantage.papers.constrained import Lagrangian, weight
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.envs.construction.arms import Arms
from grouprl.plan.plan import plan
from grouprl.tasks import load_task
from small import f64, near, small

PAY, COST = f64([1.0, 0.6, 0.0]), f64([1.0, 0.2, 0.0])


@pytest.mark.parametrize(
    ("cost", "found"), [(0.0, 0.0), (24.9, 0.0), (25.0, 0.6931), (25.01, 0.7931), (40.0, 150.6931)]
)
def test_the_augmented_weight_is_that_of_the_paper(cost: float, found: float) -> None:
    """CAL's settings: λ = 0.6931, c = 10, d = 25."""
    assert weight(0.6931, cost, 25.0, 10.0) == pytest.approx(found)


def costly(cost: list[float]) -> grouprl.Batch:
    return small([1.0, 0.0], [1, 1]).replace(rewards={"#cost": f64(cost)})


def test_the_multiplier_rises_with_the_excess_and_is_remembered() -> None:
    part, context = Lagrangian(limit=1.0, multiplier=0.5, rate=0.1, augmented=2.0), FakeContext()
    batch = part.fill(costly([3.0, 1.0]), None, context)  # type: ignore[arg-type]
    near(batch.past["multiplier"], [2.5, 2.5])  # 0.5 + 2·(2 - 1)
    part.observe(None, batch, context)  # type: ignore[arg-type]
    assert part.current(context) == pytest.approx(0.6)  # type: ignore[arg-type]
    part.observe(None, costly([0.0, float("nan")]), context)  # type: ignore[arg-type]
    assert part.current(context) == pytest.approx(0.5), "a row without a cost does not count"  # type: ignore[arg-type]
    part.observe(None, None, context)  # type: ignore[arg-type]
    assert part.current(context) == pytest.approx(0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="#cost"):
        part.fill(small([1.0, 0.0]), None, context)  # type: ignore[arg-type]


def test_without_a_multiplier_it_is_dr_grpos_advantage_and_a_large_one_minimises_the_cost() -> None:
    batch, part = costly([3.0, 1.0]), Lagrangian()
    zero, much = (batch.replace(past={"multiplier": torch.full((2,), x, dtype=torch.float64)}) for x in (0.0, 1e12))
    near(part(zero), grouprl.method("dr_grpo").advantage(batch).tolist())
    near(part(much), [[-1.0], [1.0]])


def test_costs_are_added_up_and_not_paid() -> None:
    file = Path(__file__).parents[1] / "support" / "foreign_control.py"
    task = load_task({"name": f"control:{file}:Arms", "turns": 1})
    environment = task.environment()
    environment.reset(task.example("train", 0), 0)
    assert environment.step(1).reward == 0.6
    assert environment.score() == {"#cost": 0.2}


@pytest.mark.parametrize(
    ("name", "settings", "pay", "cost"),
    [
        ("constrained_grpo", {"limit": 0.5, "augmented": 1.0}, 0.75, 0.5),  # arms 1 and 2 at 3 : 5
        ("constrained_grpo", {"limit": 2.0}, 1.0, 1.0),  # the limit does not bind
        ("dr_grpo", {}, 1.0, 1.0),
    ],
)
def test_the_best_mixture_of_three_arms_is_found(
    name: str, settings: dict[str, float], pay: float, cost: float
) -> None:
    """Of the last 100 of 300 steps. No fixed price finds it: below 0.5 the first arm is best, above it the second."""
    method, context, luck = grouprl.method(name, **settings), FakeContext(), torch.Generator().manual_seed(0)
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer, found = torch.optim.SGD([logits], lr=1.0), []
    for _ in range(300):
        arm_b = torch.multinomial(logits.detach().softmax(0), 64, replacement=True, generator=luck)
        found.append((PAY @ logits.detach().softmax(0), COST @ logits.detach().softmax(0)))
        logp_bt = logits.log_softmax(0)[arm_b][:, None]
        batch = small(PAY[arm_b].tolist(), [1] * 64).replace(
            rewards={"#cost": COST[arm_b]}, old_bt=logp_bt.detach(), max_length=1
        )
        part = method.advantage
        if isinstance(part, Lagrangian):
            batch = part.fill(batch, None, context)  # type: ignore[arg-type]
            part.observe(None, batch, context)  # type: ignore[arg-type]
        optimizer.zero_grad()
        method.loss(logp_bt, method.prepare(batch)).value.backward()
        optimizer.step()
    mean_pay, mean_cost = torch.tensor(found)[-100:].mean(0).tolist()
    assert mean_pay == pytest.approx(pay, abs=0.04)
    assert mean_cost == pytest.approx(cost, abs=0.04)


def test_arms_are_taken_once_and_state_their_cost() -> None:
    arms = Arms()
    arms.reset(None, 0)  # type: ignore[arg-type]
    assert arms.score() == {}
    assert arms.step(1).reward == 0.6
    assert arms.score() == {"#cost": 0.2}
    with pytest.raises(InputError, match="one choice"):
        arms.step(0)
    with pytest.raises(InputError, match="two arms"):
        Arms([1.0], [1.0])


def test_an_environment_without_costs_is_told_so_before_and_in_its_own_words(tmp_path: Path) -> None:
    config = parse_config(
        {
            "task": {"name": "env:grouprl.envs.construction.corridor:Corridor", "turns": 5},
            "model": {"name": "mlp", "settings": {"hidden": [4]}},
            "method": {"name": "constrained_grpo", "limit": 0.5},
            "batch": {"prompts": 1, "group_size": 2, "minibatches": 1},
            "steps": 1,
            "eval": {"every": 0, "final_prompts": 1},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    found = plan(config)
    assert not found.refusals
    assert any("'#cost'" in str(each) and "info['cost']" in str(each) for each in found.findings)
    with pytest.raises(InputError, match=r"constrained_grpo reads the component '#cost'.*turn_rewards.*info\['cost'\]"):
        grouprl.train(config)
