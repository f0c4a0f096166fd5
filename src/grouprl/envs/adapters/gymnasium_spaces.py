"""Conversion of Gymnasium's spaces to this package's spaces, and of its observations to their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from grouprl.core.errors import InputError
from grouprl.protocols import ArraySpace, Box, DictSpace, Discrete, Image, MultiDiscrete, Space, Spaces

if TYPE_CHECKING:
    import gymnasium

MASK = "action_mask"
"""The key under which Gymnasium's environments give the mask of legal actions, in `info` or in the observation."""


def spaces_of(name: str, env: gymnasium.Env) -> Spaces:
    """Return the spaces of a Gymnasium environment.

    Raises:
        InputError: a space is missing, or its values are not arrays of numbers.
    """
    for which in ("action_space", "observation_space"):
        if getattr(env, which, None) is None:
            raise InputError(f"'{name}' has no {which}", "a policy is made for the spaces that an environment states")
    action = _leaf(f"The actions of '{name}'", env.action_space)
    if isinstance(action, Image):
        action = Box(action.shape, 0, 255)
    return Spaces(observation_space(name, env.observation_space), action)


def observation_space(name: str, space: gymnasium.Space) -> Space:
    """Return a Gymnasium observation space; entries of Dict and Tuple get names, `outer.inner` where they nest.

    A single entry, apart from the mask of actions, needs no name.

    Raises:
        InputError: the values of a space are not arrays of numbers, or two of them would have one name.
    """
    what = f"The observations of '{name}'"
    found = [(key, inner) for key, inner in _leaves(space) if key != MASK]
    leaves = {key: _leaf(what, inner) for key, inner in found}
    if not leaves:
        raise InputError(f"{what} are {space}", "a policy reads at least one array", "Show it a Box of one 0")
    if len(leaves) < len(found):
        names = [key for key, _ in found]
        twice = next(key for key in names if names.count(key) > 1)
        raise InputError(f"{what} have two entries '{twice}'", "an entry within another is 'outer.inner'", "Rename one")
    return next(iter(leaves.values())) if len(leaves) == 1 else DictSpace(leaves)


def reader_of(space: gymnasium.Space) -> Callable[[object], tuple[object, object]]:
    """Return the function from a Gymnasium observation to values of `observation_space`, and the mask in it (None if it
    has none).
    """
    if _inner(space) is None:
        return lambda value: (_shifted(space, value), None)

    def read(value: object) -> tuple[object, object]:
        found = {key: _shifted(inner, part) for key, inner, part in _parts(space, value)}
        mask = found.pop(MASK, None)
        return (next(iter(found.values())) if len(found) == 1 else found), mask

    return read


def choices_of(space: gymnasium.Space) -> range:
    """Return the numbers of the choices of a Discrete space, from 0; none for other spaces."""
    from gymnasium.spaces import Discrete

    return range(int(space.n) if isinstance(space, Discrete) else 0)


def columns_of(space: gymnasium.Space, values: object) -> tuple[object, np.ndarray | None]:
    """Return N values of a Gymnasium space, stacked leaf by leaf, as [N,…] of `observation_space`, and their masks."""
    found = {
        key: np.stack([_shifted(inner, value) for value in cast("Sequence[object]", part)])
        for key, inner, part in _parts(space, values)
    }
    masks = found.pop(MASK, None)
    return (next(iter(found.values())) if len(found) == 1 else found), masks


def own_action(space: gymnasium.Space, given: np.ndarray) -> object:
    """Return an action of this package's spaces in the type, shape and counting of Gymnasium's: a plain int where it is
    the number of a choice.
    """
    fitted = given.astype(space.dtype).reshape(space.shape) + getattr(space, "start", 0)
    choice = not space.shape and np.issubdtype(space.dtype, np.integer)
    return int(fitted) if choice else np.asarray(fitted)


def _leaves(space: gymnasium.Space, name: str = "") -> list[tuple[str, gymnasium.Space]]:
    if (inside := _inner(space)) is None:
        return [(name, space)]
    return [leaf for key, inner in inside for leaf in _leaves(inner, f"{name}.{key}".lstrip("."))]


def _parts(space: gymnasium.Space, value: object, name: str = "") -> list[tuple[str, gymnasium.Space, object]]:
    if (inside := _inner(space)) is None:
        return [(name, space, value)]
    entries = (
        value if isinstance(value, Mapping) else {str(i): x for i, x in enumerate(cast("Sequence[object]", value))}
    )
    if lacking := [key for key, _ in inside if key not in entries]:
        raise InputError(
            f"an observation has no entry '{f'{name}.{lacking[0]}'.lstrip('.')}'",
            f"its space has the entries {', '.join(key for key, _ in inside)}",
            "Return them all, or take it out of observation_space",
        )
    pairs = [(key, inner, entries[key]) for key, inner in inside]
    return [part for key, inner, each in pairs for part in _parts(inner, each, f"{name}.{key}".lstrip("."))]


def _inner(space: gymnasium.Space) -> list[tuple[str, gymnasium.Space]] | None:
    """Return the entries of a Dict or Tuple; None for a space without any."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return [(str(i), inner) for i, inner in enumerate(space.spaces)] if isinstance(space, spaces.Tuple) else None


def _leaf(what: str, space: gymnasium.Space) -> ArraySpace:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * math.prod(space.shape))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(int(n) for n in space.nvec.ravel()))
    if not isinstance(space, spaces.Box):
        raise InputError(
            f"{what} are {space}",
            "control reads numbers and arrays of numbers, by name where they are several, and acts with one such space",
            "Put a wrapper around it: task.wrappers of control:…, or a function of yours that returns it wrapped",
        )
    if space.dtype == np.uint8 and len(space.shape) == 3:
        return Image(*space.shape)
    real = np.issubdtype(space.dtype, np.floating)
    low, high = (tuple(float(x) for x in bound.ravel()) for bound in (space.low, space.high))
    return Box((math.prod(space.shape),), low, high, "float32" if real else "int64")


def _shifted(space: gymnasium.Space, value: object) -> np.ndarray:
    """Return a value of a Gymnasium space as a value of this package's space: counted from 0, and flat unless it is a
    picture.
    """
    array = np.asarray(value)
    if hasattr(space, "start"):
        return array.reshape(-1 if space.shape else ()) - np.reshape(space.start, -1 if space.shape else ())
    return array if array.ndim == 3 and space.dtype == np.uint8 else array.ravel()
