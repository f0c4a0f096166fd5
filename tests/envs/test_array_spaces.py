"""Gymnasium's spaces as ours, values held against spaces, actions fitted to bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grouprl.core.errors import InputError
from grouprl.envs import ArrayObservation
from grouprl.envs.adapters.gymnasium_spaces import observation_space, reader_of, spaces_of
from grouprl.envs.array_spaces import bounded, fitted, observed, zeros
from grouprl.protocols import Box, DictSpace, Discrete, Image, MultiDiscrete, Spaces
from grouprl.tasks import load_task
from grouprl.testing import check_environment

gymnasium = pytest.importorskip("gymnasium")
from gymnasium import spaces as gym  # noqa: E402


def test_gymnasiums_spaces_are_mapped_with_their_bounds_and_names() -> None:
    inner = gym.Tuple([gym.Discrete(3, start=1), gym.MultiBinary(2)])
    space = gym.Dict(
        map=gym.Box(0, 255, (4, 3, 2), np.uint8),
        speed=gym.Box(np.array([[-1.0, 0.0]]), np.array([[1.0, 2.0]]), dtype=np.float64),
        parts=inner,
        action_mask=gym.MultiBinary(4),
    )
    found = observation_space("mine", space)
    assert isinstance(found, DictSpace)
    assert found.spaces == {
        "map": Image(4, 3, 2),
        "speed": Box((2,), (-1.0, 0.0), (1.0, 2.0)),
        "parts.0": Discrete(3),
        "parts.1": MultiDiscrete((2, 2)),
    }
    value = space.sample()
    value["parts"] = (np.int64(3), value["parts"][1])
    arrays, mask = reader_of(space)(value)
    assert fitted(found, arrays)["parts.0"] == 2  # counted from 0
    assert np.array_equal(mask, value["action_mask"])
    assert np.array_equal(arrays["map"], value["map"])
    with pytest.raises(InputError, match="Text"):
        observation_space("mine", gym.Text(3))


class Odd(gymnasium.Env):  # type: ignore[misc]
    """Acts by several numbers that do not count from 0, and says which actions are legal beside its observation."""

    observation_space = gym.Dict(at=gym.Discrete(5, start=-2), action_mask=gym.MultiBinary(5))
    action_space = gym.MultiDiscrete([[2, 3]], start=[[1, 10]])

    def __init__(self) -> None:
        self.given: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {"at": -2, "action_mask": np.array([1, 0, 1, 1, 0])}, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.given.append(action.tolist())
        return {"at": 2, "action_mask": np.zeros(5)}, 1.0, False, True, {}


def test_a_gymnasium_environment_acts_in_its_own_numbers() -> None:
    gymnasium.register("OddOne-v0", entry_point=Odd, max_episode_steps=3)
    task = load_task("control:OddOne-v0")
    assert task.spaces == Spaces(Discrete(5), MultiDiscrete((2, 3)))
    environment = task.environment()
    first = environment.reset(task.example("train", 0), 0)
    assert fitted(task.spaces.observation, first.values) == 0
    assert np.array_equal(first.legal, [1, 0, 1, 1, 0])
    step = environment.step(np.array([0, 2]))
    assert environment._env.unwrapped.given == [[[1, 12]]]
    assert step.truncated
    assert step.observation.values == 4
    check_environment(task.environment, task.example("train", 0), [np.array([0, 2])], spaces=task.spaces)
    with pytest.raises(AssertionError, match="an action is of its space"):
        check_environment(task.environment, task.example("train", 0), [np.array([2, 0])], spaces=task.spaces)


def test_masks_in_info_reach_the_observation() -> None:
    task = load_task({"name": "control:Taxi-v4", "turns": 3})
    assert task.spaces == Spaces(Discrete(500), Discrete(6))
    first = task.environment().reset(task.example("train", 0), 0)
    shown = observed(task.spaces, first, first=True)
    assert isinstance(shown.legal, np.ndarray)
    assert shown.legal.dtype == bool
    assert 1 <= shown.legal.sum() < 6


def test_spaces_of_an_environment_whose_actions_are_boxes() -> None:
    task = load_task("control:Pendulum-v1")
    assert task.spaces.action == Box((1,), (-2.0,), (2.0,))
    made = gymnasium.make("Pendulum-v1")
    assert spaces_of("Pendulum-v1", made) == task.spaces
    assert bounded(task.spaces.action, np.float32([[3.0], [-5.0], [0.5]])).tolist() == [[2.0], [-2.0], [0.5]]
    assert bounded(Box((2,)), np.float32([9e9, 0.0])).tolist() == [np.float32(9e9), 0.0]


SPACES = Spaces(Box((2,)), Discrete(3), DictSpace({"map": Box((2, 2))}))
MAP = {"map": np.eye(2)}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ArrayObservation([0.0], context=MAP), r"has the shape \(1,\)"),
        (ArrayObservation(["a", "b"], context=MAP), r"is \['a', 'b'\]"),
        (ArrayObservation(None, context=MAP), "is None"),
        (ArrayObservation([1e300, 0.0], context=MAP), "is 1e\\+300 0.*finite numbers in float32"),
        (ArrayObservation([0.0, np.inf], context=MAP), "is 0 inf"),
        (ArrayObservation([0.0, 1.0]), "has the names"),
        (ArrayObservation([0.0, 1.0], [1, 0], MAP), r"mask of the shape \(2,\)"),
        (ArrayObservation([0.0, 1.0], [0, 0, 0], MAP), "without a legal action"),
    ],
)
def test_what_is_not_in_its_space_is_refused(found: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        observed(SPACES, found, first=True)


@pytest.mark.parametrize(
    ("space", "value"),
    [(Discrete(3), 3), (Discrete(3), 0.5), (MultiDiscrete((2, 2)), [0, -1]), (Image(1, 1, 1), [[[256]]])],
)
def test_whole_numbers_are_within_their_space(space: Any, value: Any) -> None:
    with pytest.raises(InputError, match="The space is"):
        fitted(space, value)


def test_one_part_without_a_legal_value_is_refused() -> None:
    spaces = Spaces(Box((1,)), MultiDiscrete((2, 2)))
    assert observed(spaces, ArrayObservation([0.0], [1, 0, 0, 1]), first=True).legal.tolist() == [
        True,
        False,
        False,
        True,
    ]
    with pytest.raises(InputError, match="without a legal action"):
        observed(spaces, ArrayObservation([0.0], [1, 1, 0, 0]), first=True)
    with pytest.raises(InputError, match="bounds and no mask"):
        observed(Spaces(Box((1,)), Box((1,))), ArrayObservation([0.0], [1]), first=True)


def test_zeros_are_in_every_space() -> None:
    for space in (SPACES.observation, SPACES.context, Discrete(2), MultiDiscrete((2, 3)), Image(2, 2)):
        fitted(space, zeros(space))
