"""Conformance tests of environments, tasks and sources of data (`grouprl.protocols`)."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.array_spaces import bounded, fitted, observed, observed_after, spelt
from grouprl.envs.async_methods import awaited
from grouprl.envs.environment import ArrayObservation, Observation, Step
from grouprl.protocols import Box, DictSpace, Environment, PromptSource, PromptTask, Space, Spaces
from grouprl.records.offline import StoredEpisode, StoredRow, StoredRows
from grouprl.records.requests import RolloutRequest
from grouprl.testing.rules import hold, refuses

if TYPE_CHECKING:
    from grouprl.records.examples import Example

LOOKED_AT = 16
"""Number of prompts of a split that are checked."""


def check_environment(
    make: Callable[[], object],
    example: Example,
    actions: Sequence[object],
    *,
    spaces: Spaces | None = None,
    seed: int = 0,
) -> None:
    """Check an environment against the protocol: it is played twice with the same seed and actions.

    Args:
        make: returns a fresh environment.
        example: the prompt of the episode.
        actions: the actions, one after the other, or the chains of them; the episode may end before them.
        spaces: spaces of observations and actions where these are not text.
        seed: seed of the episode.

    Raises:
        AssertionError: with the rule that does not hold.
    """
    for action in actions:
        _check_action(action, spaces)
    one, other = (_played(make(), example, actions, spaces, seed) for _ in range(2))
    hold(one == other, "the same prompt, seed and actions make the same episode: everything random comes from the seed")


def _played(env: Any, example: object, actions: Sequence[object], spaces: Spaces | None, seed: int) -> list[object]:
    hold(isinstance(env, Environment), f"{type(env).__name__} has reset, step, score and close")
    story = [_begun(awaited(env.reset(example, seed)), spaces)]
    for action in actions:
        step = awaited(env.step(action))
        hold(isinstance(step, Step), f"step() returns a Step, not {type(step).__name__}")
        finite = isinstance(step.reward, numbers.Real) and math.isfinite(step.reward)
        hold(finite, f"a reward is a finite number, not {step.reward!r}")
        hold(not (step.terminated and step.truncated), "an episode ends or is cut off, not both")
        over = step.terminated or step.truncated
        shown = _seen_after(step, spaces)
        story.append((shown, float(step.reward), step.terminated, step.truncated))
        if over:
            break
    score = awaited(env.score())
    hold(isinstance(score, Mapping), "score() returns named components")
    hold(all(isinstance(x, numbers.Real) for x in score.values()), "components of the score are numbers")
    hold(float(score.get("correct", 0)) in (0.0, 1.0), "`correct` is 0 or 1")
    awaited(env.close())
    awaited(env.close())
    return [*story, {name: float(x) for name, x in score.items()}]


def _begun(observation: object, spaces: Spaces | None) -> object:
    if spaces is None:
        return _text(observation)
    shown = _in_space(lambda: observed(spaces, observation, first=True))
    _check_bounds(spaces.context, shown.context)
    return _written(shown, spaces)


def _seen_after(step: Step, spaces: Spaces | None) -> object:
    if spaces is None:
        return _text(step.observation)
    return _written(_in_space(lambda: observed_after(spaces, step)), spaces)


def _text(observation: object) -> object:
    hold(isinstance(observation, Observation), f"an observation of text is an Observation, not {observation!r}")
    return observation


def _in_space(read: Callable[[], ArrayObservation]) -> ArrayObservation:
    try:
        return read()
    except InputError as error:
        raise AssertionError(f"does not hold: an observation is of its space: it {error}") from None


def _written(shown: ArrayObservation, spaces: Spaces) -> str:
    _check_bounds(spaces.observation, shown.values)
    return repr([_listed(part) for part in (shown.values, shown.legal, shown.context)])


def _check_bounds(space: Space, values: Any) -> None:
    """Check that the numbers of every Box are within its bounds, up to rounding."""
    if isinstance(space, DictSpace):
        for name, inner in space.spaces.items():
            _check_bounds(inner, values[name])
    elif isinstance(space, Box):
        near = np.allclose(values, bounded(space, values), rtol=1e-5, atol=1e-6)
        hold(near, f"an observation is within the bounds {space.low} and {space.high}, not {spelt(values)}")


def _listed(values: Any) -> object:
    if isinstance(values, Mapping):
        return {name: _listed(value) for name, value in values.items()}
    return None if values is None else values.tolist()


def _check_action(action: Any, spaces: Spaces | None) -> None:
    if spaces is None:
        hold(isinstance(action, str), f"an action of text is a str, not {action!r}")
        return
    if spaces.chain > 1:
        hold(1 <= len(action) <= spaces.chain, f"a chain has 1 to {spaces.chain} actions, not {len(action)}")
    for each in action if spaces.chain > 1 else [action]:
        try:
            fitted(spaces.action, each)
        except InputError as error:
            raise AssertionError(f"does not hold: an action is of its space: it {error}") from None


def check_task(task: PromptTask[Any]) -> None:
    """Check a task's prompts against the protocol. Raises AssertionError with the rule that does not hold."""
    hold(isinstance(task, PromptTask), f"{type(task).__name__} has name, size, example and fingerprint")
    hold(task.fingerprint() == task.fingerprint(), "fingerprint() is always the same")
    for split in ("train", "eval"):
        size = task.size(split)
        hold(size is None or size >= 0, "size() is a number of prompts, or None")
        count = LOOKED_AT if size is None else min(size, LOOKED_AT)
        found = [task.example(split, index) for index in range(count)]
        again = [task.example(split, index) for index in reversed(range(count))]
        hold(found == again[::-1], "a prompt depends on its split and number alone")
        hold(len({example.id for example in found}) == count, "every prompt has an id of its own")
        refuses(partial(task.example, split, -1), "there is no prompt number -1")
        if size is not None:
            refuses(partial(task.example, split, size), f"the split has {size} prompts")
    refuses(lambda: task.example("test", 0), "there is no split 'test'")  # type: ignore[arg-type]


def check_stored_rows(task: Any) -> None:
    """Check a task whose completions are stored against the protocol. Raises AssertionError with the broken rule."""
    check_task(task)
    hold(isinstance(task, StoredRows), f"{type(task).__name__} has stored_rows")
    for index in range(min(LOOKED_AT, task.size("train") or LOOKED_AT)):
        example = task.example("train", index)
        rows = list(task.stored_rows(example))
        hold(bool(rows), "a prompt has at least one row")
        hold(rows == list(task.stored_rows(example)), "the rows of a prompt are always the same")
        for row in rows:
            if getattr(task, "spaces", None) is None:
                _check_row(row)
            else:
                _check_episode(row, task.spaces)


def _check_episode(row: StoredEpisode, spaces: Spaces) -> None:
    hold(isinstance(row, StoredEpisode), f"a trajectory is a StoredEpisode, not {type(row).__name__}")
    seen, length = row.observations, len(row.actions)
    for array in seen.values() if isinstance(seen, Mapping) else [seen]:
        hold(len(array) == length + 1, "there is an observation before each action and after the last")
    hold(row.rewards.shape == (length,), "every action has a reward")
    hold(bool(np.isfinite(row.rewards).all()), "rewards are finite")
    hold(row.behavior_logp is None or row.behavior_logp.shape == (length,), "every action has one log-prob")
    for action in row.actions:
        try:
            fitted(spaces.action, action)
        except InputError as error:
            raise AssertionError(f"does not hold: an action is of its space: it {error}") from None


def _check_row(row: StoredRow) -> None:
    hold(isinstance(row, StoredRow), f"a row is a StoredRow, not {type(row).__name__}")
    hold(math.isfinite(row.reward), "a reward is finite")
    if row.behavior_logp is not None:
        hold(row.ids is not None, "what has log-probs has the token ids that were sampled")
        hold(len(row.behavior_logp) == len(row.ids or ()), "every token has one log-prob")
    hold(row.ids is None or len(row.ids) > 0, "a completion has at least one token")


def check_prompt_source(make: Callable[[], PromptSource[RolloutRequest]]) -> None:
    """Check a source of prompts against the protocol; `make` returns a fresh one, always the same.

    Raises:
        AssertionError: with the rule that does not hold.
    """
    source, other = make(), make()
    first = list(source.requests(5, 2))
    hold([request.ordinal for request in first] == list(range(5)), "ordinals count the prompts of a run: 0, 1, 2 …")
    hold(source.sampled == 5, "`sampled` counts them")
    state = source.state()
    rest = [(request.ordinal, request.example.id) for request in source.requests(7, 2)]
    other.restore(state)
    hold(
        rest == [(request.ordinal, request.example.id) for request in other.requests(7, 2)],
        "restored, it continues where it was",
    )
    again = source.request(first[0].index, 2)
    hold(again.example.id == first[0].example.id, "request(index, …) is prompt number `index`")
    hold(again.ordinal == 12, "requested again, a prompt has an ordinal of its own")
