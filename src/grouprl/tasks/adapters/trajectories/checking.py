"""Trajectories as they are read, checked against the spaces of the environment that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from grouprl.core.errors import InputError, shortened
from grouprl.envs.array_spaces import counts, words, zeros
from grouprl.protocols import ArraySpace, Box, DictSpace, Discrete, MultiDiscrete, Space, Spaces
from grouprl.records.offline import StoredEpisode
from grouprl.records.scores import LARGEST
from grouprl.tasks.adapters.trajectories.files import Raw

ROUNDING = 1e-4
"""A log-prob of 0 that was computed in single precision may be this far above it."""


def checked(raw: Raw, spaces: Spaces, where: str) -> StoredEpisode:
    """Return a trajectory whose arrays are those of `spaces`.

    Raises:
        InputError: a column has another shape or length, a number is not finite or not in its space, or the
            observation after the last action of an episode that was cut off is missing.
    """
    actions = _column(spaces.action, raw["actions"], f"the actions of {where}")
    length, ended = len(actions), _flag(raw["terminated"], "terminated", where)
    if not length:
        raise InputError(f"{where} has no actions", "a trajectory has at least one", "Leave it out")
    shown = _columns(spaces.observation, raw["observations"], f"the observations of {where}")
    legal_ta = _masks(raw.get("legal"), spaces, actions, where)
    return StoredEpisode(
        _with_last(shown, spaces.observation, length, ended, where),
        actions,
        _numbers(raw["rewards"], length, f"the rewards of {where}"),
        ended,
        _logps(raw.get("logps"), spaces, length, where),
        None if legal_ta is None else legal_ta[:length],
        _components(raw.get("components") or {}, where),
        None if raw.get("correct") is None else _flag(raw["correct"], "correct", where),
        _context(raw.get("context") or {}, spaces, where),
        _final_mask(legal_ta, spaces, length),
    )


def _flag(given: object, name: str, where: str) -> bool:
    """Return a value of a whole trajectory that is true or false."""
    single = given.item() if isinstance(given, np.ndarray | np.generic) and given.size == 1 else given
    if not isinstance(single, bool | int | float) or single not in (0, 1):
        raise InputError(
            f"{name} of {where} is {shortened(given)}",
            "it must be true or false, once for each trajectory",
            "Of flags for each step give that of the last step",
        )
    return bool(single)


def _components(given: object, where: str) -> dict[str, float]:
    """Return the named parts of a trajectory's reward."""
    values = list(given.values()) if isinstance(given, Mapping) else [None]
    array = _plain(values)
    if not isinstance(given, Mapping) or array is None or array.shape != (len(values),) or not _bounded(array):
        raise InputError(
            f"the components of {where} are {shortened(given)}",
            f"they must map names to finite numbers within ±{LARGEST:g}",
        )
    return {str(name): float(value) for name, value in zip(given, array, strict=True)}


def _plain(values: object) -> np.ndarray | None:
    """Return values as an array of numbers; None if they are not numbers, or numbers that no array holds."""
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found.dtype.kind in "biuf" else None


def _bounded(array: np.ndarray) -> bool:
    """Return whether all numbers are as small as a reward may be, and none is NaN."""
    return bool((np.abs(array.astype(np.float64)) <= LARGEST).all())


def _context(values: object, spaces: Spaces, where: str) -> dict[str, np.ndarray]:
    """Return the arrays that hold for the whole trajectory, each of its own space."""
    if not isinstance(values, Mapping):
        raise InputError(f"the context of {where} is {type(values).__name__}", "it must map names to arrays")
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
    given = _plain(values)
    if given is None:
        raise InputError(f"{what} are not arrays of numbers", f"each is {words(space)}")
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is refused below
        found = given.astype(space.dtype)
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


def _numbers(values: object, length: int, what: str) -> np.ndarray:
    """Return [T] numbers."""
    given = _plain(values)
    if given is None or given.shape != (length,) or not _bounded(given):
        said = shortened(values) if given is None else f"{shortened(given.tolist())} (of shape {given.shape})"
        rule = f"they are {length} finite numbers within ±{LARGEST:g}, one for each action"
        raise InputError(f"{what} are {said}", rule)
    return given.astype(np.float64)


def _logps(values: object, spaces: Spaces, length: int, where: str) -> np.ndarray | None:
    """Return [T] log-probs of the actions; None for None. Those of actions in a Box are of densities."""
    if values is None:
        return None
    found = _numbers(values, length, f"the logps of {where}")
    if not isinstance(spaces.action, Box) and (found > ROUNDING).any():
        place = int(found.argmax())
        raise InputError(
            f"the logps of {where}: number {place} is {found[place]:g}",
            "the log-prob of a choice is never above 0",
            "Give natural logarithms of probabilities",
        )
    return found


def _final_mask(legal_ta: np.ndarray | None, spaces: Spaces, length: int) -> np.ndarray | None:
    """Return the mask [A] after the last action; None if it is not given, or has no legal action, as after an end."""
    if legal_ta is None or len(legal_ta) == length:
        return None
    parts = np.split(legal_ta[length], np.cumsum(counts(cast("Discrete | MultiDiscrete", spaces.action)))[:-1])
    return legal_ta[length] if all(part.any() for part in parts) else None


def _masks(values: object, spaces: Spaces, actions: np.ndarray, where: str) -> np.ndarray | None:
    """Return the masks of what may be done before each action and, if that is given, after the last one, [T,A] or
    [T+1,A].
    """
    if values is None:
        return None
    if isinstance(spaces.action, Box):
        raise InputError(f"{where} has masks of legal actions", "actions in a Box have none", "Leave the column out")
    given, sizes = _plain(values), counts(spaces.action)
    if given is None or not ((given == 0) | (given == 1)).all():
        raise InputError(f"the masks of {where} are not arrays of true and false", "true marks an action that is legal")
    legal_ta = given.astype(bool)
    length = len(actions)
    if legal_ta.shape not in ((length, sum(sizes)), (length + 1, sum(sizes))):
        raise InputError(
            f"the masks of {where} have the shape {legal_ta.shape}",
            f"they are {length, sum(sizes)}, or with the one after the last action {length + 1, sum(sizes)}",
        )
    starts = np.cumsum([0, *sizes[:-1]])
    taken = np.take_along_axis(legal_ta[:length], actions.reshape(length, -1) + starts, 1)
    if not taken.all():
        place = int((~taken).any(1).argmax())
        raise InputError(
            f"action {place} of {where} is not legal by its own mask", "the mask of a step allows the action taken"
        )
    return legal_ta
