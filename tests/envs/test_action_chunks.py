"""Chunks of actions: one decision, several steps of the environment, paid together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grouprl.core.errors import InputError
from grouprl.protocols import Box, MultiDiscrete
from grouprl.tasks import load_task

gymnasium = pytest.importorskip("gymnasium")

WRAPPER = "grouprl.envs.adapters.action_chunks:ActionChunks"


def chunked(name: str, length: int) -> Any:
    from grouprl.envs.adapters.action_chunks import ActionChunks

    return ActionChunks(gymnasium.make(name), length)


def test_a_chunk_is_its_actions_one_after_the_other() -> None:
    plain, whole = gymnasium.make("CartPole-v1"), chunked("CartPole-v1", 3)
    plain.reset(seed=4)
    whole.reset(seed=4)
    for action in (1, 0, 1):
        expected, *_ = plain.step(action)
    found, paid, terminated, truncated, _ = whole.step(np.array([1, 0, 1]))
    assert np.array_equal(found, expected)
    assert (paid, terminated, truncated) == (3.0, False, False)


def test_an_episode_that_ends_inside_a_chunk_leaves_the_rest_undone() -> None:
    plain, whole = gymnasium.make("CartPole-v1"), chunked("CartPole-v1", 50)
    plain.reset(seed=4)
    whole.reset(seed=4)
    steps, over = 0, False
    while not over:
        _, _, over, *_ = plain.step(1)
        steps += 1
    _, paid, terminated, *_ = whole.step(np.ones(50, int))
    assert (paid, terminated) == (steps, True)
    assert steps < 50


class Costly(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Costs one, then two, then three; pays what is no number from the third action on, if it is to."""

    def __init__(self, env: Any, odd: bool) -> None:
        super().__init__(env)
        self.taken, self.odd = 0, odd

    def step(self, action: Any) -> Any:
        self.taken += 1
        shown, paid, *ends, info = self.env.step(action)
        paid = [1.0, 2.0] if self.odd and self.taken > 2 else paid
        return (shown, paid, *ends, {**info, "cost": self.taken})


def test_costs_of_a_chunk_are_added_up_like_its_rewards() -> None:
    from grouprl.envs.adapters.action_chunks import ActionChunks

    whole = ActionChunks(Costly(gymnasium.make("CartPole-v1"), odd=False), 3)
    whole.reset(seed=4)
    assert whole.step(np.array([1, 0, 1]))[4]["cost"] == 6.0


class Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """States a mask at the `first` step, 0 for the reset, and from then on."""

    def __init__(self, env: Any, first: int) -> None:
        super().__init__(env)
        self.taken, self.first = 0, first

    def reset(self, **told: Any) -> Any:
        found, info = self.env.reset(**told)
        return found, self.told(info)

    def step(self, action: Any) -> Any:
        self.taken += 1
        *found, info = self.env.step(action)
        return (*found, self.told(info))

    def told(self, info: dict[str, Any]) -> dict[str, Any]:
        return {**info, "action_mask": np.array([1, 0])} if self.taken >= self.first else info


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_mask_that_would_hold_for_the_first_action_alone_is_refused(first: int) -> None:
    from grouprl.envs.adapters.action_chunks import ActionChunks

    env = Masked(gymnasium.make("CartPole-v1"), first)
    whole = ActionChunks(env, 3)
    with pytest.raises(InputError, match=r"a mask of legal actions in chunks of 3.*Leave ActionChunks out"):
        whole.reset(seed=4)
        whole.step(np.array([1, 0, 1]))
    single = ActionChunks(env, 1)
    assert "action_mask" in single.reset(seed=4)[1]
    assert "action_mask" in single.step(np.array([1]))[4]


def test_a_mask_among_observations_is_refused_when_it_is_made() -> None:
    from gymnasium.spaces import Box, Dict

    from grouprl.envs.adapters.action_chunks import ActionChunks

    env = gymnasium.make("CartPole-v1")
    env.observation_space = Dict(seen=env.observation_space, action_mask=Box(0, 1, (2,), np.int8))
    with pytest.raises(InputError, match="a mask of legal actions in chunks of 2"):
        ActionChunks(env, 2)


@pytest.mark.parametrize("info", [None, 3])
def test_infos_inside_a_chunk_are_mappings(info: Any) -> None:
    from grouprl.envs.adapters.action_chunks import ActionChunks

    class Told(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            return (*self.env.step(action)[:4], info)

    whole = ActionChunks(Told(gymnasium.make("CartPole-v1")), 2)
    whole.reset(seed=4)
    with pytest.raises(InputError, match=r"step\(\) returned .*a mapping, info. Return \{\} where"):
        whole.step(np.array([1, 0]))


def test_a_reward_inside_a_chunk_that_is_no_number_is_told() -> None:
    from grouprl.envs.adapters.action_chunks import ActionChunks

    whole = ActionChunks(Costly(gymnasium.make("CartPole-v1"), odd=True), 3)
    whole.reset(seed=4)
    with pytest.raises(InputError, match=r"the reward \[1\.0, 2\.0\]. A reward is one finite number"):
        whole.step(np.array([1, 0, 1]))


def test_vectors_lie_one_after_the_other_and_length_1_is_the_environment() -> None:
    plain, one, two = gymnasium.make("Pendulum-v1"), chunked("Pendulum-v1", 1), chunked("Pendulum-v1", 2)
    paid = []
    for each, actions in ((plain, ([0.5], [-1.0])), (one, ([0.5], [-1.0])), (two, ([0.5, -1.0],))):
        each.reset(seed=2)
        paid.append(sum(float(each.step(np.array(action, np.float32))[1]) for action in actions))
    assert paid[0] == paid[1] == pytest.approx(paid[2])


def test_the_policy_acts_with_as_many_numbers() -> None:
    of = [{"name": WRAPPER, "length": 4}]
    assert load_task({"name": "control:CartPole-v1", "wrappers": of}).spaces.action == MultiDiscrete((2,) * 4)
    pendulum = load_task({"name": "control:Pendulum-v1", "wrappers": of}).spaces.action
    assert isinstance(pendulum, Box)
    assert pendulum.shape == (4,)


def test_what_cannot_be_chunked_is_refused() -> None:
    with pytest.raises(InputError, match="at least one action"):
        chunked("CartPole-v1", 0)
    from grouprl.envs.adapters.action_chunks import _repeated

    with pytest.raises(InputError, match="numbers of choices"):
        _repeated(gymnasium.spaces.MultiBinary(2), 2)
