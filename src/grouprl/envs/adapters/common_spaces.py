"""One space for agents whose spaces differ: what an agent does not see is 0, what it cannot do is illegal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.array_spaces import as_mask, described, of_an_observation, words
from grouprl.envs.environment import ArrayObservation
from grouprl.protocols import ActionSpace, Box, Discrete, Space, Spaces

PAD = "Pad them yourself, as supersuit's pad_observations_v0 and pad_action_space_v0 do"


class Peopled(Protocol):
    """An environment of several agents."""

    @property
    def possible_agents(self) -> Sequence[object]:
        """The names of all agents that an episode may have."""
        ...


def agent_names(env: Peopled) -> tuple[str, ...]:
    """Return the names of an environment's agents.

    Raises:
        InputError: there are none, one is not a text, or two are the same.
    """
    names = list(getattr(env, "possible_agents", None) or ())
    texts = [name for name in names if isinstance(name, str)]
    if not names:
        raise InputError(
            "possible_agents is empty or missing",
            "it must name every agent that an episode may have, from when the environment is made",
            "Set it in the environment's __init__",
        )
    if len(texts) < len(names) or len(set(texts)) < len(texts):
        raise InputError(
            f"possible_agents is {names}",
            "agents are told apart by their names, which are texts, each another",
            "Name them in the environment or in a wrapper around it, such as 'agent_0'",
        )
    return tuple(texts)


def common_spaces(by_agent: Mapping[str, Spaces]) -> Spaces:
    """Return spaces that hold those of every agent: lists of numbers as long as the longest, the largest choice.

    Raises:
        InputError: spaces differ in more than their size, or actions that are lists of numbers do.
    """
    first, *others = by_agent
    for other in others:
        one, two = by_agent[first], by_agent[other]
        actions = isinstance(one.action, Discrete) and isinstance(two.action, Discrete)
        if not (_alike(one.observation, two.observation) and (one.action == two.action or actions)):
            raise InputError(
                f"the agents {first} and {other} have the spaces {described(one)} and {described(two)}",
                "agents are rows of one policy: observations may differ in their length, actions in how many there are",
                PAD,
            )
    spaces = by_agent.values()
    return Spaces(_space([each.observation for each in spaces]), _action([each.action for each in spaces]))


def padded(own: Spaces, common: Spaces, agent: str, values: object, mask: object) -> ArrayObservation:
    """Return an agent's observation in the common spaces, with a mask of legal actions where it has fewer than others.

    Raises:
        InputError: the observation or its mask is not of the agent's own size.
    """
    one, all_of = own.observation, common.observation
    if one != all_of and isinstance(one, Box) and isinstance(all_of, Box):
        values = _filled(one, all_of, agent, values)
    if own.action == common.action:
        return ArrayObservation(values, mask)
    assert isinstance(own.action, Discrete)
    assert isinstance(common.action, Discrete)
    with of_an_observation():
        legal_a = np.ones(own.action.count, dtype=bool) if mask is None else as_mask(mask)
    if legal_a.shape != (own.action.count,):
        raise InputError(f"'{agent}' has a mask of the shape {legal_a.shape}", f"it has {own.action.count} actions")
    return ArrayObservation(values, np.pad(legal_a, (0, common.action.count - len(legal_a))))


def _filled(own: Box, common: Box, agent: str, values: object) -> np.ndarray:
    array_n = np.asarray(values)
    if array_n.shape != own.shape:
        raise InputError(f"'{agent}' sees an array of the shape {array_n.shape}", f"its space is {words(own)}")
    return np.pad(array_n, (0, common.size - len(array_n)))


def _alike(one: Space, two: Space) -> bool:
    """Return whether observations are equal, numbers to choose from, or lists of numbers of one kind."""
    if isinstance(one, Box) and isinstance(two, Box):
        return one.dtype == two.dtype and len(one.shape) == len(two.shape) == 1
    return one == two or (isinstance(one, Discrete) and isinstance(two, Discrete))


def _space(spaces: Sequence[Space]) -> Space:
    boxes = [each for each in spaces if isinstance(each, Box)]
    if all(each == spaces[0] for each in spaces):
        return spaces[0]
    return _longest(boxes) if boxes else _largest(spaces)


def _action(spaces: Sequence[ActionSpace]) -> ActionSpace:
    return spaces[0] if all(each == spaces[0] for each in spaces) else _largest(spaces)


def _largest(spaces: Sequence[Space]) -> Discrete:
    return Discrete(max(each.count for each in spaces if isinstance(each, Discrete)))


def _longest(boxes: Sequence[Box]) -> Box:
    """Return the space of the longest list, whose bounds hold for every agent's and for 0 where a list is shorter."""
    size = max(box.size for box in boxes)
    low_kn, high_kn = np.zeros((2, len(boxes), size))
    for box, low_n, high_n in zip(boxes, low_kn, high_kn, strict=True):
        low_n[: box.size], high_n[: box.size] = box.low, box.high
    return Box((size,), tuple(low_kn.min(0).tolist()), tuple(high_kn.max(0).tolist()), boxes[0].dtype)
