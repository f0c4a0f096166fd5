"""HNPG: values of actions by returns and stored steps, and one natural gradient step on the states of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from grouprl import Batch, InputError, method
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.papers.action_values import ActionValues, StoredSteps, stored_transitions
from grouprl.algorithms.update.papers.hybrid_step import BothStates, HybridStep, action_advantages, empty, sampled
from grouprl.policy import ArrayInputs, Build, Mlp
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.records.offline import StoredEpisode
from grouprl.training.update import Learner, update
from part_context import PartContext

SPACES = Spaces(observation=Box((3,)), action=Discrete(2))
ONE = np.eye(3, dtype=np.float32)
BOTH = "test_hybrid_step:walks"


def walks() -> list[StoredEpisode]:
    """Two states: 0 pays 1 in the second, where one comes by 0; action 1 ends the episode unpaid."""
    end = np.zeros(3, np.float32)
    return [
        StoredEpisode(np.stack([ONE[0], ONE[1], end]), np.array([0, 0]), np.array([0.0, 1.0]), True),
        StoredEpisode(np.stack([ONE[0], ONE[1], end]), np.array([0, 1]), np.array([0.0, 0.0]), True),
        StoredEpisode(np.stack([ONE[0], end]), np.array([1]), np.array([0.0]), True),
    ]


def seconds() -> list[StoredEpisode]:
    return walks()[1:]


@dataclass
class Context(PartContext):
    """Task, luck and memory of a run."""

    seed: int = 0
    task: Any = field(default_factory=lambda: SimpleNamespace(spaces=SPACES))
    cache: dict[str, Any] = field(default_factory=dict)

    def cache_of(self, part: object) -> dict[str, Any]:
        return self.cache


def policy(seed: int = 1, favour: float = 0.0) -> Mlp:
    """A table of logits: no hidden layer; action 1 is favoured."""
    made = Mlp(Build(SPACES, seed=seed, dtype=torch.float64), hidden=())
    with torch.no_grad():
        made.module["mean"][-1].bias.copy_(torch.tensor([0.0, favour]))
    return made


def rollout(actor: Mlp, truncated: bool = False) -> Batch:
    """Three episodes of two steps in states 0 and 1, or 0 and 2."""
    seen = [ONE[[0, 1]], ONE[[0, 2]], ONE[[0, 1]]]
    inputs = ArrayInputs.of(seen, [[0, 0], [1, 1], [0, 1]], final_b=[ONE[2]] * 3)
    paid_bs = torch.tensor([[0.0, 1.0], [0.5, 0.0], [0.0, 0.0]], dtype=torch.float64)
    return Batch(
        mask_bt=inputs.present_bt(),
        group_b=torch.arange(3),
        reward_b=paid_bs.sum(1),
        turn_bt=torch.tensor([[0, 1]] * 3),
        turn_reward_bs=paid_bs,
        old_bt=actor.logp(inputs),
        truncated_b=torch.full((3,), truncated),
        inputs=inputs,
    )


def fitted(
    own: list[tuple[int, int, float]], stored: StoredSteps, chance: list[float], **settings: Any
) -> torch.Tensor:
    values = ActionValues({}, 3, 2, 16, seed=0)
    seen = torch.from_numpy(ONE[[state for state, _, _ in own]]).reshape(-1, 3)
    action, paid = torch.tensor([a for _, a, _ in own], dtype=torch.int64), torch.tensor([g for _, _, g in own])
    chance_ma = torch.tensor([chance] * len(stored)).reshape(-1, 2)
    settings = {"gamma": 0.9, "sweeps": 8, "steps": 150, "lr": 1e-2} | settings
    values.fit(seen, action, paid, stored, chance_ma, **settings)
    return values(torch.from_numpy(ONE))


def test_values_of_stored_steps_are_the_policys_whoever_acted() -> None:
    """f(1, 0) = 1, f(1, 1) = 0; f(0, 0) = 0.9·(¾·1 + ¼·0) if the policy takes 0 with ¾, whatever the data did."""
    stored = stored_transitions(walks(), "walks", 2)
    value_sa = fitted([], stored, [0.75, 0.25])
    assert value_sa[:2].flatten().tolist() == pytest.approx([0.675, 0.0, 1.0, 0.0], abs=0.02)


def test_returns_and_stored_targets_count_the_same_whatever_their_numbers() -> None:
    """State 2, action 0: returns of 1 three times, and one stored step that pays 0 and ends: f is ½."""
    stored = StoredSteps(
        torch.from_numpy(ONE[[2]]), torch.tensor([0]), torch.zeros(1), torch.zeros(1, 3), torch.tensor([True])
    )
    assert float(fitted([(2, 0, 1.0)] * 3, stored, [0.5, 0.5])[2, 0]) == pytest.approx(0.5, abs=0.01)


def test_values_without_stored_steps_are_mean_returns() -> None:
    value_sa = fitted([(0, 0, 1.0), (0, 0, 0.0), (0, 1, 3.0)], empty(3), [])
    assert value_sa[0].tolist() == pytest.approx([0.5, 3.0], abs=0.02)


def test_advantages_of_new_actions_have_mean_0_under_the_policy() -> None:
    value_na, chance_na = torch.tensor([[1.0, 3.0]] * 2), torch.tensor([[0.25, 0.75]] * 2)
    adv_n = action_advantages(value_na, chance_na, torch.tensor([0, 1]))
    assert adv_n.tolist() == [-1.5, 0.5]
    assert float((adv_n * torch.tensor([0.25, 0.75])).sum()) == 0


def test_new_actions_are_drawn_as_the_policy_would() -> None:
    chance_na = torch.tensor([[0.2, 0.0, 0.8]]).expand(4000, -1)
    drawn_n = sampled(chance_na, np.random.default_rng(0))
    shares = torch.bincount(drawn_n, minlength=3) / 4000
    assert shares.tolist() == pytest.approx([0.2, 0.0, 0.8], abs=0.02)
    assert float(shares[1]) == 0


def test_what_was_done_in_stored_states_is_not_learnt_by_the_policy() -> None:
    """The stored actions are mostly 0; the policy takes 1 in all of these states, and so do the rows of the step."""
    actor, context = policy(favour=30.0), Context()
    part = HybridStep(stored=BOTH)
    judged = BothStates(part, Learner(actor, None, method("hnpg"), context=context), rollout(actor).inputs)  # type: ignore[arg-type]
    ready = rollout(actor).replace(advantage_bt=torch.ones(3, 2, dtype=torch.float64))
    joined = judged.joined(ready, judged.drawn(6))
    assert joined.size == (12, 1)
    assert joined.inputs.action_bt[6:, 0].tolist() == [1] * 6  # type: ignore[union-attr]
    assert joined.inputs.action_bt[:6, 0].tolist() == [0, 0, 1, 1, 0, 1]  # type: ignore[union-attr]
    assert joined.need("advantage_bt", "the test")[6:].abs().max() == 0  # values are 0 before the first fit
    assert joined.from_source("replay").tolist() == [False] * 6 + [True] * 6


def moved(chosen: Any, actor: Mlp, context: Context, batch: Batch | None = None) -> dict[str, float]:
    prepared = chosen.compute_advantages(rollout(actor) if batch is None else batch)
    optimizer = torch.optim.SGD(actor.parameters(), 0.1)
    return update(actor, optimizer, chosen, prepared, context=context)  # type: ignore[arg-type]


def weights(actor: Mlp) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in actor.parameters()])


def test_without_stored_steps_it_is_trpos_step_on_the_critics_advantages() -> None:
    """The same advantages, handed to trust_region alone, move the policy by the same step."""
    ours, theirs, context = policy(), policy(), Context()
    chosen = method("hnpg", share=0.0)
    found = moved(chosen, ours, context)
    assert found["step_fraction"] > 0
    judged = BothStates(chosen.update, Learner(theirs, None, chosen, context=context), rollout(theirs).inputs)  # type: ignore[arg-type]
    prepared = chosen.compute_advantages(rollout(theirs))
    credited = prepared.replace(advantage_bt=chosen.update.credited(judged.valued(prepared)))  # type: ignore[union-attr]
    alone = chosen.with_parts(update=chosen.update.climber())  # type: ignore[union-attr]
    update(theirs, torch.optim.SGD(theirs.parameters(), 0.1), alone, credited)  # type: ignore[arg-type]
    assert torch.allclose(weights(ours), weights(theirs), rtol=0, atol=1e-6)
    assert not torch.allclose(weights(ours), weights(policy()), rtol=0, atol=1e-3)


def test_stored_steps_teach_what_the_rollout_has_not_seen() -> None:
    """Nothing in the rollout is paid; of the stored steps action 0 in state 1 is, and becomes likelier there."""
    actor, chosen = policy(), method("hnpg", stored=BOTH, delta=0.05, gamma=1.0, sweeps=10)
    batch = rollout(actor).replace(reward_b=torch.zeros(3).double(), turn_reward_bs=torch.zeros(3, 2).double())
    context = Context()
    for context.seed in range(4):
        moved(chosen, actor, context, batch.replace(old_bt=actor.logp(batch.inputs)))
    seen = ArrayInputs.of([ONE[[0]], ONE[[1]]], [[0], [0]])
    assert bool((actor.logp(seen).exp() > 0.6).all())


def test_a_row_that_a_limit_cut_goes_on_with_the_value_of_its_last_observation() -> None:
    actor, context = policy(), Context()
    judged = BothStates(HybridStep(), Learner(actor, None, method("hnpg"), context=context), rollout(actor).inputs)  # type: ignore[arg-type]
    with torch.no_grad():
        judged.values.net[-1].bias.fill_(2.0)
    chosen = method("hnpg", gamma=0.5)
    adv_bt = chosen.update.credited(judged.valued(chosen.compute_advantages(rollout(actor, truncated=True))))  # type: ignore[union-attr]
    assert adv_bt[0, 1].item() == pytest.approx(1 + 0.5 * 2 - 2)
    ended_bt = chosen.update.credited(judged.valued(chosen.compute_advantages(rollout(actor))))  # type: ignore[union-attr]
    assert ended_bt[0, 1].item() == pytest.approx(1 - 2)


def test_the_critic_goes_on_from_its_memory_and_the_luck_of_the_step() -> None:
    """Two updates in one go are those with a new part and the memory of the first."""
    chosen, one, two = method("hnpg", stored=BOTH), policy(), policy()
    first = Context()
    moved(chosen, one, first)
    kept = {name: {key: x.clone() for key, x in value.items()} for name, value in first.store.items()}
    two.load_trainable_state(one.trainable_state())
    first.seed = 1
    found = [moved(chosen, one, first), moved(method("hnpg", stored=BOTH), two, Context(store=kept, seed=1))]
    assert torch.equal(weights(one), weights(two))
    assert found[0] == found[1]


def test_more_stored_steps_than_there_are_are_drawn_again() -> None:
    actor = policy()
    part = HybridStep(stored="test_hybrid_step:seconds", share=2.0)
    judged = BothStates(part, Learner(actor, None, method("hnpg"), context=Context()), rollout(actor).inputs)  # type: ignore[arg-type]
    assert len(judged.drawn(6)) == 12
    assert len(judged.drawn(1)) == 2


def test_stored_trajectories_are_held_against_the_actions() -> None:
    found = stored_transitions(walks(), "walks", 2)
    assert found.over_n.tolist() == [False, True, False, True, True]
    assert found.next_nd[0].tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="outside 0 to 0"):
        stored_transitions(walks(), "walks", 1)
    with pytest.raises(InputError, match="StoredEpisode"):
        stored_transitions([], "walks", 2)
    named = StoredEpisode({"a": np.zeros((2, 1))}, np.array([0]), np.array([0.0]), True)
    with pytest.raises(InputError, match="by name"):
        stored_transitions([named], "walks", 2)


def test_it_says_where_it_cannot_work() -> None:
    assert "method.stored" in HybridStep().refuse(RunFacts())[0]
    assert HybridStep(share=0.0).refuse(RunFacts()) == []
    assert "TRPO" in HybridStep(share=0.0).idle(RunFacts())[0]
    actor = policy()
    pushed = policy()
    played = rollout(pushed)
    pushed.spaces = Spaces(observation=Box((3,)), action=Box((2,)))
    with pytest.raises(InputError, match="Discrete"):
        moved(method("hnpg", stored=BOTH), pushed, Context(), played)
    wide = Batch(
        mask_bt=torch.ones(1, 1, dtype=torch.bool),
        group_b=torch.zeros(1, dtype=torch.int64),
        reward_b=torch.zeros(1),
        inputs=ArrayInputs.of([np.zeros((1, 3), np.float32)], [[0]], legal_bta=[np.ones((1, 2), bool)]),
    )
    with pytest.raises(InputError, match="without a mask"):
        list(HybridStep(stored=BOTH)(Learner(actor, None, method("hnpg"), context=Context()), wide))  # type: ignore[arg-type]
