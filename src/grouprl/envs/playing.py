"""Playing an environment without a policy: the actions are given."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from grouprl.envs.async_methods import awaited, close
from grouprl.envs.environment import Demonstrator, Environment, Step, worth

if TYPE_CHECKING:
    from grouprl.records.examples import Example


def total_reward(environment: Environment, example: Example, actions: Iterable[str], seed: int = 0) -> float:
    """Play the actions until they or the episode end, close the environment, and return the sum of all rewards.

    The sum covers the rewards of the turns and the components of `score` except `correct` and counts.
    """
    try:
        awaited(environment.reset(example, seed))
        total = 0.0
        for action in actions:
            step = awaited(environment.step(action))
            total += step.reward
            if over(step):
                break
        return total + worth(awaited(environment.score()))
    finally:
        close(environment)


def demonstrated_actions(
    make: Callable[[], Environment], example: Example, rng: random.Random, max_turns: int, seed: int = 0
) -> tuple[str, ...] | None:
    """Return the actions of an episode that the environment demonstrates itself; None if it cannot."""
    environment = make()
    if not isinstance(environment, Demonstrator):
        return None
    try:
        awaited(environment.reset(example, seed))
        actions: list[str] = []
        while len(actions) < max_turns:
            actions.append(awaited(environment.demonstrate(rng)))
            if over(awaited(environment.step(actions[-1]))):
                break
        return tuple(actions)
    finally:
        close(environment)


def over(step: Step) -> bool:
    """Return whether the episode ended with this step, for any reason."""
    return step.terminated or step.truncated
