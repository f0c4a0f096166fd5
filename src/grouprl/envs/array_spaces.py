"""Values of spaces as arrays: environments' values are checked against their spaces, and actions are fitted to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from grouprl.core.errors import InputError, shortened
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import ActionSpace, ArraySpace, Box, DictSpace, Discrete, Image, MultiDiscrete, Space, Spaces

Values = np.ndarray | dict[str, np.ndarray]
Bound = float | tuple[float, ...]
"""A bound of every number of a Box, or of each."""


def fitted(space: Space, value: object) -> Values:
    """Return a value as the array of its space, or as one array by name of a `DictSpace`.

    Bounds of a Box are not enforced, because many environments exceed theirs.

    Raises:
        InputError: the shape is wrong, a name is missing, or a number is not finite or not in the space.
    """
    if not isinstance(space, DictSpace):
        return _fitted(space, value)
    if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
        found = f"has the names {sorted(value)}" if isinstance(value, Mapping) else f"is {type(value).__name__}"
        raise InputError(found, f"the space has the names {sorted(space.spaces)}")
    return {name: _fitted(inner, value[name]) for name, inner in space.spaces.items()}


def _fitted(space: ArraySpace, value: object) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        given = value.tolist() if isinstance(value, np.ndarray) else value
        raise InputError(f"is {shortened(given, 60)}", f"the space is {words(space)}")
    if array.dtype == space.dtype:
        found = array.copy()
    else:
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is refused below
            found = array.astype(space.dtype)
    if found.shape != space.shape:
        raise InputError(f"has the shape {found.shape}", f"the space is {words(space)}")
    if not _within(space, array, found):
        raise InputError(f"is {spelt(array)}", f"the space is {words(space)}")
    return found


def _within(space: ArraySpace, array: np.ndarray, found: np.ndarray) -> bool:
    if found.dtype.kind == "f":
        return bool(np.isfinite(found).all())
    if (found != array).any():
        return False
    if isinstance(space, Discrete | MultiDiscrete):
        return bool(((found >= 0) & (found < np.array(counts(space)).reshape(found.shape))).all())
    return True


def observed(spaces: Spaces, found: object, *, first: bool, cut: bool = False) -> ArrayObservation:
    """Return an environment's observation as arrays of its spaces; `first`: the context comes with it.

    With `cut`, a limit allows no action after it, and a mask without a legal one counts as none.

    Raises:
        InputError: the observation is not in the spaces, or no action is legal.
    """
    given = found if isinstance(found, ArrayObservation) else ArrayObservation(found)
    context = fitted(spaces.context, given.context) if first else {}
    assert isinstance(context, dict)
    values, legal = fitted(spaces.observation, given.values), _legal(spaces.action, given.legal, cut)
    return ArrayObservation(values, legal, context, given.agent, given.text)


class of_an_observation:
    """Context that says of an InputError of `observed` or `observed_after` that it concerns an observation."""

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InputError):
            raise InputError(f"an observation {error.what}", error.rule, error.remedy) from None


def observed_after(spaces: Spaces, step: Step) -> ArrayObservation:
    """Return the observation after an action as arrays of its spaces; where the episode ends by itself, without a mask.

    Raises:
        InputError: as `observed`.
    """
    found: object = step.observation
    if step.terminated and isinstance(found, ArrayObservation):
        found = replace(found, legal=None)  # no action follows
    # What a limit cuts would continue: the actions that would be legal bound the value of the state.
    return observed(spaces, found, first=False, cut=step.truncated)


def _legal(action: ActionSpace, mask: object, cut: bool) -> np.ndarray | None:
    if mask is None:
        return None
    if isinstance(action, Box):
        raise InputError("has a mask of legal actions", "actions in a Box have bounds and no mask")
    return None if cut and not _allows(action, _shaped(action, mask)) else legal_of(action, mask)


def legal_of(action: Discrete | MultiDiscrete, mask: object) -> np.ndarray:
    """Return a mask of legal actions as bool.

    Raises:
        InputError: a mask of another shape or of other values than true and false, or without a legal action.
    """
    legal = _shaped(action, mask)
    if not _allows(action, legal):
        raise InputError("has a mask without a legal action", "the policy must be able to act", "End the episode")
    return legal


def _allows(action: Discrete | MultiDiscrete, legal: np.ndarray) -> bool:
    return all(part.any() for part in np.split(legal, np.cumsum(counts(action))[:-1]))


def _shaped(action: Discrete | MultiDiscrete, mask: object) -> np.ndarray:
    legal = as_mask(mask)
    if legal.shape != (sum(counts(action)),):
        raise InputError(f"has a mask of the shape {legal.shape}", f"there are {sum(counts(action))} actions")
    return legal


def as_mask(given: object) -> np.ndarray:
    """Return a mask of legal actions as bool. Raises InputError for values other than true and false, or 1 and 0."""
    array = np.asarray(given)
    wrong = array[(array != 0) & (array != 1)]
    if wrong.size:
        # As numbers that are added to logits (0 and -inf) would be, a mask is misread if its values are taken for bool.
        raise InputError(
            f"has a mask with the value {wrong.flat[0]}", "a mask is 1 for a legal action and 0 for another"
        )
    return array.astype(bool)


def counts(space: Discrete | MultiDiscrete) -> tuple[int, ...]:
    """Return the number of possible values of each number in a space of whole numbers."""
    return (space.count,) if isinstance(space, Discrete) else space.counts


def zeros(space: Space) -> Values:
    """Return a value of zeros."""
    if isinstance(space, DictSpace):
        return {name: np.zeros(inner.shape, inner.dtype) for name, inner in space.spaces.items()}
    return np.zeros(space.shape, space.dtype)


def bounded(space: Space, action: np.ndarray) -> np.ndarray:
    """Return sampled actions [..., *shape] as they are passed to the environment: those of a Box clipped to its bounds.

    Log-probs remain those of the sampled actions.
    """
    if not isinstance(space, Box) or (space.low, space.high) == (-math.inf, math.inf):
        return action
    low, high = (np.broadcast_to(bound, space.size).reshape(space.shape) for bound in (space.low, space.high))
    return np.clip(action, low, high).astype(action.dtype)


def numbers(space: Space) -> int:
    """Return how many numbers a value of the space has."""
    if isinstance(space, DictSpace):
        return sum(map(numbers, space.spaces.values()))
    return math.prod(space.shape)


def entries(space: Space) -> dict[str, ArraySpace]:
    """Return spaces by name; a space without names is `own`."""
    return dict(space.spaces) if isinstance(space, DictSpace) else {"own": space}


def for_each(box: Box, count: int) -> Box:
    """Return the space of `count` arrays of a space."""
    low, high = (x * count if isinstance(x, tuple) else x for x in (box.low, box.high))
    return Box((count, *box.shape), low, high, box.dtype)


def reaching_zero(bound: Bound, least: Callable[[float, float], float]) -> Bound:
    """Return a bound that leaves room for the zeros of missing agents."""
    return tuple(least(x, 0.0) for x in bound) if isinstance(bound, tuple) else least(bound, 0.0)


def words(space: ArraySpace) -> str:
    """Describe the values of a space."""
    if isinstance(space, Discrete):
        return f"0 … {space.count - 1}"
    if isinstance(space, MultiDiscrete):
        return f"{len(space.counts)} whole numbers below {space.counts}"
    if isinstance(space, Image):
        return f"bytes of the shape {space.shape}"
    return f"{space.size} finite numbers in {space.dtype}" + f" of the shape {space.shape}" * (len(space.shape) != 1)


def described(spaces: Spaces) -> str:
    """Describe observations and actions in a few words, however many numbers they have."""
    space = spaces.observation
    named = space.spaces if isinstance(space, DictSpace) else {"": space}
    seen = ", ".join(f"{name} {words(inner)}".strip() for name, inner in named.items())
    return f"(observations {seen}; actions {words(spaces.action)})"


def told(shown: ArrayObservation) -> str:
    """Return what a reader is shown of an observation: its text, or the numbers."""
    return spelt(shown.values) if shown.text is None else shown.text


def spelt(values: object, most: int = 64) -> str:
    """Write arrays for a reader; long ones are shown as their shape only."""
    if isinstance(values, Mapping):
        return " ".join(f"{name} {spelt(value, most)}" for name, value in values.items())
    numbers_n = np.asarray(values).ravel()
    if len(numbers_n) > most:
        return f"array of {'×'.join(map(str, np.asarray(values).shape))}"
    return " ".join(["%.4g"] * len(numbers_n)) % tuple(numbers_n.tolist())
