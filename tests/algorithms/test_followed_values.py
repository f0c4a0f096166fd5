"""Value learning: targets, their loss, what renews them, and QMIX's two-step game, which a sum of values gets wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import grouprl
from grouprl import InputError
from grouprl.algorithms.advantage.best_next import BestNext
from grouprl.algorithms.objective.fitted_values import FittedValues
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.followed_values import FollowedValues
from grouprl.core.batch import Batch
from grouprl.envs.builtin.hauling import Hauling, HaulingWorld, TwoStep
from grouprl.envs.builtin.squads import CrossingWorld, MatrixWorld
from grouprl.envs.joint_world import Together
from grouprl.policy import ArrayInputs, Build, Mlp, TeamValues
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.records.examples import Example
from grouprl.testing import check_environment
from grouprl.training.logprobs import add_statistics
from grouprl.training.update import update

ANY = Example("any", {})


def paid(rewards: list[list[float]], after: list[list[float]], **more: Any) -> Batch:
    reward_bt = torch.tensor(rewards, dtype=torch.float64)
    return Batch(
        mask_bt=torch.ones(reward_bt.shape, dtype=torch.bool),
        group_b=torch.arange(len(reward_bt)),
        reward_b=torch.zeros(len(reward_bt), dtype=torch.float64),
        token_reward_bt=reward_bt,
        stats={"best_after": torch.tensor(after, dtype=torch.float64)},
        **more,
    )


def test_targets_by_hand() -> None:
    """r + γ·best after; the end of an episode has nothing after it, a limit has."""
    batch = paid([[1.0, 2.0], [1.0, 2.0]], [[4.0, 8.0], [4.0, 8.0]], truncated_b=torch.tensor([False, True]))
    assert BestNext(gamma=0.5)(batch).tolist() == [[3, 2], [3, 6]]
    assert BestNext(gamma=0.0)(batch).tolist() == [[1, 2], [1, 2]]
    whole = batch.replace(truncated_b=None)
    assert BestNext(gamma=0.5)(whole).tolist() == [[3, 2], [3, 2]]


def test_the_loss_is_half_the_square_and_log_probs_have_no_part_in_it() -> None:
    batch = paid([[0.0, 0.0]], [[0.0, 0.0]]).replace(advantage_bt=torch.tensor([[1.0, 3.0]], dtype=torch.float64))
    value_bt = torch.tensor([[2.0, 0.5]], dtype=torch.float64, requires_grad=True)
    logp_bt = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    loss = FittedValues()(logp_bt, batch.replace(stats={"action_value": value_bt}))
    assert loss.loss_bt.tolist() == [[0.5, 3.125]]
    value_grad, logp_grad = torch.autograd.grad(loss.loss_bt.sum(), (value_bt, logp_bt), allow_unused=True)
    assert value_grad.tolist() == [[1.0, -2.5]]
    assert logp_grad is None


@dataclass
class Learner:
    """A learner whose steps are counted, not taken."""

    policy: Any
    context: Any
    taken: list[Batch] = field(default_factory=list)

    def steps(self, prepared: Batch) -> list[Batch]:
        return [prepared, prepared]

    def take(self, step: Batch) -> dict[str, float]:
        self.taken.append(step)
        return {}


@dataclass
class Followed:
    """A policy that writes down what it is told."""

    told: list[object] = field(default_factory=list)

    def follow(self) -> None:
        self.told.append("follow")

    def explore(self, share: float) -> None:
        self.told.append(round(share, 4))


def test_the_follower_is_renewed_every_few_rollouts_and_luck_falls_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    part, policy = FollowedValues(every=2, explore=1.0, explore_last=0.2, explore_steps=4), Followed()
    monkeypatch.setattr("grouprl.algorithms.update.followed_values.ValueLearner", Followed)
    for step in range(5):
        learner = Learner(policy, SimpleNamespace(step=step))
        assert len(list(part(learner, paid([[0.0]], [[0.0]])))) == 2  # type: ignore[arg-type]
        assert len(learner.taken) == 2
    assert policy.told == [0.8, "follow", 0.6, 0.4, "follow", 0.2, 0.2]
    assert FollowedValues(explore_steps=0).share(0) == 0.05
    assert part.idle(RunFacts(steps=1))
    assert part.idle(RunFacts(steps=2)) == []


def test_a_policy_without_values_is_refused() -> None:
    policy = Mlp(Build(Spaces(Box((2,)), Discrete(2))))
    with pytest.raises(InputError, match="model: team_values or choice_values"):
        list(FollowedValues()(Learner(policy, SimpleNamespace(step=0)), paid([[0.0]], [[0.0]])))  # type: ignore[arg-type]


# --- the worlds -----------------------------------------------------------------------------------------------------


def test_the_two_step_game_pays_its_table() -> None:
    found = {}
    for first, a, b in product((0, 1), repeat=3):
        world = TwoStep()
        shown: Any = world.reset(ANY, 0)
        assert shown.values["own"].tolist() == [[1, 0, 0], [1, 0, 0]]
        step: Any = world.step(np.array([first, 1]))
        assert step.observation.values["own"].argmax(1).tolist() == [1 + first] * 2
        last = world.step(np.array([a, b]))
        assert last.terminated
        found[first, a, b] = last.reward
        assert world.score() == {"correct": float(last.reward == 8)}
    assert [found[0, a, b] for a, b in product((0, 1), repeat=2)] == [7, 7, 7, 7]
    assert [found[1, a, b] for a, b in product((0, 1), repeat=2)] == [0, 1, 1, 8]


def test_a_heavy_load_needs_both_and_agents_walk_a_cell_a_step() -> None:
    world = HaulingWorld(size=5, light=1, heavy=1, patience=3, rounds=9)
    world.begin(ANY, 0)
    world._at_a2, world._load_l2 = np.array([[0, 0], [2, 2]]), np.array([[0, 2], [2, 1]])
    step = world.act({"first": 0, "second": 1})
    assert step.rewards["first"] == pytest.approx(-0.02 + 0.3 - 0.3), "two steps, a light load, a heavy one alone"
    assert world._at_a2.tolist() == [[0, 2], [2, 1]]
    assert world._load_l2[1].tolist() == [2, 1], "it was not taken"
    step = world.act({"first": 1, "second": 1})
    assert step.rewards["second"] == pytest.approx(-0.03 + 1.0)
    assert world._load_l2[1].tolist() != [2, 1]
    world._at_a2, world._load_l2 = np.array([[0, 0], [0, 0]]), np.array([[4, 4], [0, 0]])
    assert world.act({"first": 0, "second": 0}).rewards["first"] == pytest.approx(-0.03), "patience is over"
    assert world._at_a2.tolist() == [[3, 0], [3, 0]]
    seen = world._seen()["first"]
    assert np.asarray(seen)[:3].tolist() == pytest.approx([0.2, 0.8, 0])
    assert np.asarray(seen)[-3:-1].tolist() == [0, 0]


@pytest.mark.parametrize(("world", "count"), [(TwoStep, 2), (Hauling, 6)])
def test_worlds_together_keep_the_rules_of_environments(world: Any, count: int) -> None:
    most = world().spaces.action.counts[0]
    actions = [np.array([n % most, (n + 1) % most]) for n in range(count)]
    check_environment(world, ANY, actions, spaces=world().spaces)


def test_worlds_together_say_what_they_cannot_be() -> None:
    with pytest.raises(InputError, match="reset"):
        world = TwoStep()
        world.reset(ANY, 0)
        world.reset(ANY, 0)
    late = Together(CrossingWorld(3, 5))
    with pytest.raises(InputError, match="act at once, in every round"):
        late.reset(ANY, 0)
    both = Together(MatrixWorld([[1.0, 2.0], [3.0, 4.0]]))
    both.reset(ANY, 0)
    assert both.step(np.array([1, 0])).reward == 3
    assert both.spaces.action.counts == (2, 2)  # type: ignore[union-attr]
    with pytest.raises(InputError, match="one load is heavy"):
        Hauling(heavy=0)


# --- the two-step game is learned -----------------------------------------------------------------------------------


def every_play() -> Batch:
    """The eight plays of the two-step game, each once: what random actions give in the mean."""
    plays, rewards = list(product((0, 1), repeat=3)), []
    seen, actions = [], []
    for first, a, b in plays:
        world = TwoStep()
        shown: Any = world.reset(ANY, 0)
        after: Any = world.step(np.array([first, 0])).observation
        seen.append({"own": np.stack([shown.values["own"], after.values["own"]]).astype(np.float32)})
        actions.append(np.array([[first, 0], [a, b]]))
        rewards.append([0.0, world.step(np.array([a, b])).reward])
    inputs = ArrayInputs.of(seen, actions, final_b=[{"own": each["own"][1]} for each in seen])
    return Batch(
        mask_bt=inputs.present_bt(),
        group_b=torch.arange(8),
        reward_b=torch.tensor(rewards).sum(1),
        turn_bt=torch.tensor([[0, 1]] * 8),
        turn_reward_bs=torch.tensor(rewards),
        inputs=inputs,
    )


def learned_table(mixer: str) -> tuple[Tensor, Tensor]:
    """Q_tot at the first state by the first agent's action, and at the risky state by both agents'."""
    entry = grouprl.method("gmah", gamma=1.0, follow=1)
    policy = TeamValues(Build(TwoStep().spaces, seed=1), hidden=(16,), mixer=mixer, width=8)
    optimizer, batch = torch.optim.Adam(policy.parameters(), 0.01), every_play()
    for _ in range(60):
        known = add_statistics(policy, batch, entry.needs())
        ready = entry.compute_advantages(known.replace(old_bt=policy.logp(batch.inputs)))  # type: ignore[arg-type]
        update(policy, optimizer, entry, ready, epochs=20, grad_clip=100.0, context=SimpleNamespace(step=0))  # type: ignore[arg-type]
    value_bt = policy.evaluate(batch.inputs, ("action_value",))["action_value"]  # type: ignore[arg-type]
    return value_bt[[0, 4], 0], value_bt[4:, 1]


def test_qmix_knows_the_two_step_game() -> None:
    """The table of QMIX's paper: 7 and 8 at first, then 0, 1, 1 and 8."""
    first_2, risky_4 = learned_table("monotonic")
    assert first_2.tolist() == pytest.approx([7, 8], abs=0.15)
    assert risky_4.tolist() == pytest.approx([0, 1, 1, 8], abs=0.15)


def test_a_sum_of_values_takes_the_safe_state() -> None:
    """The least squares of a sum to 0, 1, 1 and 8 are -1.5, 2.5, 2.5 and 6.5: less than 7, so VDN never goes there."""
    first_2, risky_4 = learned_table("sum")
    assert risky_4.tolist() == pytest.approx([-1.5, 2.5, 2.5, 6.5], abs=0.15)
    assert first_2.tolist() == pytest.approx([7, 6.5], abs=0.2)


def test_a_run_learns_the_two_step_game(tmp_path: Any) -> None:
    grouprl.train(
        {
            "task": {"name": "env:grouprl.envs.builtin.hauling:TwoStep", "turns": 2},
            "model": {"name": "team_values", "settings": {"hidden": [16], "width": 8}},
            "method": {"name": "gmah", "gamma": 1.0, "explore_last": 1.0, "rollouts": 2, "follow": 1},
            "steps": 40,
            "batch": {"prompts": 32, "group_size": 1, "epochs": 16},
            "optim": {"lr": 0.02, "schedule": "constant", "grad_clip": 10.0},
            "eval": {"every": 0, "prompts": 8, "final_prompts": 8},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["phase"] == "eval"][-1]
    assert last["eval/greedy"] == 1, "every likeliest play earns 8"
    assert [row for row in rows if row["phase"] == "train"][-1]["value_error"] < 1
