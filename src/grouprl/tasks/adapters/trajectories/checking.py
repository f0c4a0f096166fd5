"""Trajectories as they are read, held against the spaces of the environment that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.array_spaces import counts, words, zeros
from grouprl.protocols import ArraySpace, Box, DictSpace, Discrete, MultiDiscrete, Space, Spaces
from grouprl.records.offline import StoredEpisode
from grouprl.tasks.adapters.trajectories.files import Raw


def checked(raw: Raw, spaces: Spaces, where: str) -> StoredEpisode:
    """Return a trajectory whose arrays are those of `spaces`.

    Raises:
        InputError: a column has another shape or length, a number is not finite or not in its space, or the
            observation after the last action of an episode that was cut off is missing.
    """
    actions = _column(spaces.action, raw["actions"], f"the actions of {where}")
    length, ended = len(actions), bool(raw["terminated"])
    if not length:
        raise InputError(f"{where} has no actions", "a trajectory has one at least", "Leave it out")
    shown = _columns(spaces.observation, raw["observations"], f"the observations of {where}")
    return StoredEpisode(
        _with_last(shown, spaces.observation, length, ended, where),
        actions,
        cast("np.ndarray", _numbers(raw["rewards"], length, f"the rewards of {where}")),
        ended,
        _numbers(raw.get("logps"), length, f"the logps of {where}"),
        _masks(raw.get("legal"), spaces, actions, where),
        {str(name): float(value) for name, value in cast("Mapping[str, float]", raw.get("components") or {}).items()},
        bool(raw.get("correct", False)),
        _context(raw.get("context") or {}, spaces, where),
    )


def _context(values: object, spaces: Spaces, where: str) -> dict[str, np.ndarray]:
    """Return the arrays that hold for the whole trajectory, each of its own space."""
    if not isinstance(values, Mapping):
        raise InputError(f"the context of {where} is {type(values).__name__}", "it maps names to arrays")
    found = _columns(spaces.context, {name: [array] for name, array in values.items()}, f"the context of {where}")
    return {name: array[0] for name, array in cast("Mapping[str, np.ndarray]", found).items()}


def _columns(space: Space, values: object, what: str) -> np.ndarray | dict[str, np.ndarray]:
    if not isinstance(space, DictSpace):
        return _column(space, values, what)
    names = sorted(values) if isinstance(values, Mapping) else []
    if not isinstance(values, Mapping) or values.keys() != space.spaces.keys():
        raise InputError(f"{what} have the names {names}", f"the space has the names {sorted(space.spaces)}")
    return {name: _column(inner, values[name], f"{what} ({name})") for name, inner in space.spaces.items()}


def _column(space: ArraySpace, values: object, what: str) -> np.ndarray:
    try:
        given = np.asarray(values)
        found = given.astype(space.dtype)
    except (TypeError, ValueError):
        raise InputError(f"{what} are not arrays of numbers", f"each is {words(space)}") from None
    if found.shape[1:] != space.shape or found.ndim == 0:
        raise InputError(f"{what} have the shape {found.shape[1:]}", f"each is {words(space)}")
    if np.issubdtype(found.dtype, np.floating):
        bad = ~np.isfinite(found)
    else:
        bad = found != given
        if isinstance(space, Discrete | MultiDiscrete):
            bad |= (found < 0) | (found >= np.array(counts(space)).reshape(space.shape))
    if bad.any():
        place = int(bad.reshape(len(found), -1).any(1).argmax())
        raise InputError(f"{what}: number {place} is {given[place]}", f"each is {words(space)}")
    return found


def _with_last(
    shown: np.ndarray | dict[str, np.ndarray], space: Space, length: int, ended: bool, where: str
) -> np.ndarray | dict[str, np.ndarray]:
    """Return T+1 observations; where the episode ended by itself, zeros stand for a last one that is not given."""
    if isinstance(shown, dict):
        inner = cast("DictSpace", space).spaces
        return {n: cast("np.ndarray", _with_last(x, inner[n], length, ended, where)) for n, x in shown.items()}
    if len(shown) == length + 1:
        return shown
    if len(shown) == length and ended:
        return np.concatenate([shown, np.asarray(zeros(space))[None]])
    raise InputError(
        f"{where} has {len(shown)} observations and {length} actions",
        "there is one before each action, and where a limit cut the episode one after the last",
        "Add the last observation, or set terminated to true if the episode ended by itself",
    )


def _numbers(values: object, length: int, what: str) -> np.ndarray | None:
    """Return [T] finite numbers; None for None."""
    if values is None:
        return None
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        found = np.full(1, np.nan)
    if found.shape != (length,) or not np.isfinite(found).all():
        raise InputError(f"{what} are {found.shape} numbers", f"they are {length} finite numbers, one for each action")
    return found


def _masks(values: object, spaces: Spaces, actions: np.ndarray, where: str) -> np.ndarray | None:
    if values is None:
        return None
    if isinstance(spaces.action, Box):
        raise InputError(f"{where} has masks of legal actions", "actions in a Box have none", "Leave the column out")
    legal_ta, sizes = np.asarray(values).astype(bool), counts(spaces.action)
    if legal_ta.shape != (len(actions), sum(sizes)):
        raise InputError(
            f"the masks of {where} have the shape {legal_ta.shape}", f"they are {len(actions), sum(sizes)}"
        )
    starts = np.cumsum([0, *sizes[:-1]])
    taken = np.take_along_axis(legal_ta, actions.reshape(len(actions), -1) + starts, 1)
    if not taken.all():
        place = int((~taken).any(1).argmax())
        raise InputError(f"action {place} of {where} is not legal by its own mask", "what was done was legal")
    return legal_ta
