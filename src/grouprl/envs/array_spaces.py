"""Values of spaces as arrays: environments' values are checked against their spaces, and actions are fitted to them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from grouprl.core.errors import InputError, shortened
from grouprl.envs.environment import ArrayObservation
from grouprl.protocols import ActionSpace, ArraySpace, Box, DictSpace, Discrete, Image, MultiDiscrete, Space, Spaces

Values = np.ndarray | dict[str, np.ndarray]


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


def observed(spaces: Spaces, found: object, *, first: bool) -> ArrayObservation:
    """Return an environment's observation as arrays of its spaces; `first`: the context comes with it.

    Raises:
        InputError: the observation is not in the spaces, or no action is legal.
    """
    given = found if isinstance(found, ArrayObservation) else ArrayObservation(found)
    context = fitted(spaces.context, given.context) if first else {}
    assert isinstance(context, dict)
    values, legal = fitted(spaces.observation, given.values), _legal(spaces.action, given.legal)
    return ArrayObservation(values, legal, context, given.agent, given.text)


def _legal(action: ActionSpace, mask: object) -> np.ndarray | None:
    if mask is None:
        return None
    if isinstance(action, Box):
        raise InputError("has a mask of legal actions", "actions in a Box have bounds and no mask")
    legal = np.asarray(mask).astype(bool)
    if legal.shape != (sum(counts(action)),):
        raise InputError(f"has a mask of the shape {legal.shape}", f"there are {sum(counts(action))} actions")
    if not all(part.any() for part in np.split(legal, np.cumsum(counts(action))[:-1])):
        raise InputError("has a mask without a legal action", "the policy must be able to act", "End the episode")
    return legal


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


def words(space: ArraySpace) -> str:
    """Describe the values of a space."""
    if isinstance(space, Discrete):
        return f"0 … {space.count - 1}"
    if isinstance(space, MultiDiscrete):
        return f"{len(space.counts)} whole numbers below {space.counts}"
    if isinstance(space, Image):
        return f"bytes of the shape {space.shape}"
    return f"{space.size} finite numbers in {space.dtype}" + f" of the shape {space.shape}" * (len(space.shape) != 1)


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
