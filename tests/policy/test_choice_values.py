"""Values of described choices: one perceptron for all of them, whatever their order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from grouprl import InputError
from grouprl.policy import ArrayInputs, Build, ChoiceValues
from grouprl.protocols import Box, DictSpace, Discrete, Spaces, ValueLearner
from grouprl.testing import check_value_learner

SPACES = Spaces(DictSpace({"state": Box((2,)), "choices": Box((3, 4))}), Discrete(3))


def rows(lengths: tuple[int, ...] = (2, 4, 3), seed: int = 0) -> ArrayInputs:
    luck = np.random.default_rng(seed)

    def seen(*shape: int) -> dict[str, np.ndarray]:
        state, choices = luck.standard_normal((*shape, 2)), luck.standard_normal((*shape, 3, 4))
        return {"state": state.astype(np.float32), "choices": choices.astype(np.float32)}

    return ArrayInputs.of(
        [seen(n) for n in lengths], [luck.integers(0, 3, n) for n in lengths], final_b=[seen() for _ in lengths]
    )


def planner(explore: float = 0.3, seed: int = 0) -> ChoiceValues:
    policy = ChoiceValues(Build(SPACES, seed=seed, dtype=torch.float64), hidden=(8,), explore=explore)
    luck = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=luck))
    policy.follow()
    return policy


def test_it_keeps_the_rules_of_a_value_learner() -> None:
    policy = planner()
    assert isinstance(policy, ValueLearner)
    check_value_learner(policy, rows())


def test_values_follow_their_choices_to_other_places() -> None:
    policy, order = planner(), torch.tensor([2, 0, 1])
    seen = rows().seen(policy.device, policy.dtype)
    turned = {**seen.observation, "choices": seen.observation["choices"][:, order]}
    q_na, turned_na = policy.choice_values(seen), policy.choice_values(replace(seen, observation=turned))
    assert torch.allclose(turned_na, q_na[:, order])
    assert float(q_na.std(1).min()) > 0


def test_the_best_open_choice_is_taken_and_valued() -> None:
    policy = planner(explore=0.6)
    seen = rows((3,)).seen(policy.device, policy.dtype)
    q_na = policy.choice_values(seen)
    legal_na = torch.ones(3, 3, dtype=torch.bool)
    legal_na[torch.arange(3), q_na.argmax(1)] = False
    barred = replace(seen, legal_na=legal_na)
    left_n = torch.where(legal_na, q_na, -torch.inf).amax(1)
    assert torch.allclose(policy.best_value(barred), left_n)
    chance_na = policy.distribution(barred, 1.0).probs  # type: ignore[attr-defined]
    assert chance_na.sort(1).values[0].tolist() == pytest.approx([0, 0.3, 0.7])
    chosen_r = policy.act(barred, [0] * 3, [1.0] * 3, greedy=True).action_r
    assert torch.allclose(q_na.gather(1, chosen_r[:, None])[:, 0], left_n)
    none = replace(seen, legal_na=torch.zeros_like(legal_na))
    assert torch.equal(policy.choice_values(none), q_na), "after the last action none is open"


def test_the_best_after_a_choice_is_the_follower_s_at_the_next_observation() -> None:
    policy, inputs = planner(), rows((2, 3))
    longer = inputs.extended()
    assert longer is not None
    best_n = policy.choice_values(longer.seen(policy.device, policy.dtype)).amax(1).tolist()
    found_bt = policy.evaluate(inputs, ("best_after",))["best_after"]
    assert found_bt[0].tolist() == pytest.approx([*best_n[1:3], 0])
    assert found_bt[1].tolist() == pytest.approx(best_n[4:7])


@pytest.mark.parametrize(
    "observation",
    [
        Box((3,)),
        DictSpace({"state": Box((2,))}),
        DictSpace({"state": Box((2, 2)), "choices": Box((3, 4))}),
        DictSpace({"state": Box((2,)), "choices": Box((4, 4))}),
        DictSpace({"state": Box((2,)), "choices": Box((3,))}),
    ],
)
def test_what_it_cannot_read_is_refused(observation: Box | DictSpace) -> None:
    with pytest.raises(InputError, match="choice_values reads"):
        ChoiceValues(Build(Spaces(observation, Discrete(3))))


def test_settings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match="activation = step"):
        ChoiceValues(Build(SPACES), activation="step")
    with pytest.raises(InputError, match=r"explore = 1\.5"):
        ChoiceValues(Build(SPACES), explore=1.5)
