"""MRA: what actions tell of the strategy that is played, and two equilibria that two strategies find."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl import InputError
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.reward_transform.papers.strategy_information import StrategyInformation, StrategyReader
from grouprl.core.batch import Batch
from grouprl.envs.builtin.meeting import MeetingPlaces
from grouprl.policy import ArrayInputs
from grouprl.protocols import Spaces
from part_context import PartContext

PAYOFF = [[1.0, 0.0], [0.0, 1.0]]


@dataclass
class Context(PartContext):
    """Luck, memory, notes and the spaces of a run."""

    spaces: Spaces = field(default_factory=lambda: MeetingPlaces(strategies=2).spaces)


def played(strategies: list[int], actions: list[list[int]], agents: list[int] | None = None) -> Batch:
    """Rows of agents that see nothing but zeros, their number and the strategy."""
    agents = agents or [0] * len(actions)
    seen = [
        {
            "own": np.zeros((len(did), 5), np.float32),
            "strategy": np.full(len(did), strategy, np.int64),
            "agent": np.full(len(did), agent, np.int64),
        }
        for strategy, did, agent in zip(strategies, actions, agents, strict=True)
    ]
    inputs = ArrayInputs.of(seen, actions)
    return Batch(
        mask_bt=inputs.present_bt(),
        group_b=torch.zeros(len(actions), dtype=torch.int64),
        reward_b=torch.zeros(len(actions), dtype=torch.float64),
        agent_b=torch.tensor(agents),
        keys={"variant": torch.tensor(strategies)},
        inputs=inputs,
    )


def decoded(part: StrategyInformation, batch: Batch, context: Context) -> torch.Tensor:
    return part.fill(batch, None, context).stats["decoded"]  # type: ignore[arg-type]


def fitted(batch: Batch, steps: int = 300) -> tuple[StrategyInformation, Context]:
    part, context = StrategyInformation(lr=1e-2, steps=steps, coef=1.0), Context()
    part.observe(None, batch, context)  # type: ignore[arg-type]
    return part, context


def test_the_bonus_is_the_weighted_log_of_how_much_likelier_the_strategy_became_by_hand() -> None:
    batch = played([0, 1], [[0, 1], [2]]).replace(stats={"decoded": torch.tensor([[0.0, math.log(0.5)], [-2.0, 9.0]])})
    batch = batch.replace(token_reward_bt=torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    found_bt = StrategyInformation(coef=0.5, strategies=2)(batch).token_reward_bt
    assert found_bt is not None
    by_hand = [[1 + 0.5 * math.log(2), 0.0], [0.5 * (math.log(2) - 2), 0.0]]
    assert found_bt.tolist() == [pytest.approx(row, abs=1e-6) for row in by_hand]


def test_who_knows_nothing_earns_nothing() -> None:
    """A decoder of zeros is even: its log q is -log K, and the bonus 0."""
    part, context, batch = StrategyInformation(), Context(), played([0, 1], [[0, 1], [2]])
    decoder = StrategyReader(part, context, part.deeds(batch, context))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in decoder.net.parameters():
            parameter.zero_()
    decoder.remember()
    found_bt = decoded(part, batch, context)
    assert found_bt.tolist() == [pytest.approx(row) for row in ([-math.log(2)] * 2, [-math.log(2), 0.0])]
    assert context.notes["strategy_information"] == pytest.approx(0, abs=1e-6)


def test_the_bonus_is_log_two_where_actions_tell_which_of_two_it_is() -> None:
    batch = played([0, 1] * 8, [[0, 0], [1, 1]] * 8)
    part, context = fitted(batch)
    assert context.notes["strategy_error"] == pytest.approx(math.log(2), abs=0.2)
    bonus_bt = part(batch.replace(stats={"decoded": decoded(part, batch, context)})).token_reward_bt
    assert bonus_bt is not None
    assert bonus_bt.flatten().tolist() == pytest.approx([math.log(2)] * 32, abs=0.02)
    assert context.notes["strategy_information"] == pytest.approx(math.log(2), abs=0.02)


def test_the_bonus_is_nothing_where_both_do_the_same_though_they_are_told_apart() -> None:
    """What was told is not read: else the decoder would know it from there."""
    batch = played([0, 1] * 8, [[0, 1], [0, 1]] * 8)
    part, context = fitted(batch)
    assert decoded(part, batch, context).flatten().tolist() == pytest.approx([-math.log(2)] * 32, abs=0.02)


def test_what_an_action_tells_depends_on_whose_it_is() -> None:
    """Of strategy 0 the first agent goes to 0 and the second to 1, of strategy 1 the other way round."""
    batch = played([0, 0, 1, 1] * 6, [[0], [1], [1], [0]] * 6, [0, 1, 0, 1] * 6)
    part, context = fitted(batch)
    assert decoded(part, batch, context).flatten().tolist() == pytest.approx([0.0] * 24, abs=0.05)


def test_what_it_fills_in_depends_on_no_order_and_no_number_of_agents() -> None:
    part, context = fitted(played([0, 1] * 8, [[0, 0], [1, 1]] * 8), steps=20)
    strategies, actions, agents = [0, 1, 0, 1, 1], [[0, 1], [1], [2, 2], [0], [1, 0]], [0, 1, 2, 3, 4]
    whole = decoded(part, played(strategies, actions, agents), context)
    order = [3, 0, 4, 2, 1]
    mixed = decoded(part, played(*([x[i] for i in order] for x in (strategies, actions, agents))), context)
    assert torch.allclose(mixed, whole[order])
    alone = decoded(part, played(strategies[:1], actions[:1], agents[:1]), context)
    assert torch.allclose(alone, whole[:1])


def test_the_decoder_continues_from_its_memory() -> None:
    apart, whole, batch = Context(), Context(), played([0, 1] * 4, [[0, 2], [1, 1]] * 4)
    for steps, context in ((5, apart), (5, apart), (10, whole)):
        StrategyInformation(steps=steps).observe(None, batch, context)  # type: ignore[arg-type]
    for name, tensor in apart.store["net"].items():
        assert torch.equal(tensor, whole.store["net"][name])


@pytest.mark.parametrize("world", [MeetingPlaces(), MeetingPlaces(strategies=3)])
def test_agents_that_are_told_nothing_or_other_strategies_are_refused(world: MeetingPlaces) -> None:
    part = StrategyInformation(strategies=2)
    with pytest.raises(InputError, match=r"2 strategies.*task\.config\.strategies"):
        part.deeds(played([0], [[0]]), Context(spaces=world.spaces))  # type: ignore[arg-type]
    assert "tells 2 strategies apart, but the task tells of 3" in part.refuse(RunFacts(variants=3))[0]
    assert part.refuse(RunFacts(variants=2)) == part.refuse(RunFacts()) == []
    assert part.idle(RunFacts()) == []
    assert "coef is 0" in StrategyInformation(coef=0.0).idle(RunFacts())[0]


def test_two_strategies_find_the_two_equilibria_of_a_game(tmp_path: Any) -> None:
    """Both pairs of like actions pay 1: each strategy ends at one, an action tells log 2, and all pairs are right."""
    grouprl.train(
        {
            "task": {
                "name": "env:grouprl.envs.builtin.squads:MatrixGame",
                "turns": 2,
                "config": {"payoff": PAYOFF, "strategies": 2},
            },
            "model": {"name": "mlp", "settings": {"hidden": [16]}},
            "method": {
                "name": "mra",
                "information": 2.0,
                "decoder_lr": 3e-3,
                "gamma": 1.0,
                "size": 512,
                "entropy_coef": 0.1,
            },
            "steps": 14,
            "batch": {"prompts": 64, "group_size": 4, "epochs": 4},
            "optim": {"lr": 0.01, "schedule": "constant"},
            "eval": {"every": 0, "prompts": 32, "final_prompts": 32},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["phase"] == "train"]
    assert abs(trained[0]["strategy_information"]) < 0.1
    assert trained[-1]["strategy_information"] == pytest.approx(math.log(2), abs=0.05)
    assert trained[-1]["strategy_error"] < 0.1 < trained[0]["strategy_error"]
    assert [row["eval/greedy"] for row in rows if row["phase"] == "eval"][-1] == 1
