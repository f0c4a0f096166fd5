"""Calls of other people's environments by Gymnasium's interface; what comes back is checked before it is used."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from grouprl.core.errors import InputError, raised, shortened
from grouprl.core.json_types import JsonMapping
from grouprl.core.timeout import MAKING, TooLong, alarm, reached
from grouprl.envs.async_methods import warn_not_closed

if TYPE_CHECKING:
    import gymnasium

SEEDLESS = re.compile(r"reset\(\) got an unexpected keyword argument '(?:seed|options)'")
"""Python's words for a reset() that cannot be told how an episode begins."""
OLDER = "An environment with gym's older interface needs a wrapper that returns what Gymnasium's does: task.wrappers"


class Closing(Protocol):
    """An environment, or a world, that can be closed."""

    def close(self) -> None:
        """Release what it holds."""
        ...


class Resettable(Protocol):
    """An environment whose episodes begin as a seed says."""

    def reset(self, *, seed: int) -> object:
        """Begin an episode."""
        ...


def reset_by(env: Resettable, seed: int) -> object:
    """Return what reset() returns for a seed. Raises InputError if it takes none, in the environment or within."""
    try:
        return env.reset(seed=seed)
    except TypeError as error:
        if not SEEDLESS.search(str(error)):
            raise
        raise InputError(
            str(error),
            "the seed says how an episode begins, the same for all samples of a group",
            "Write it as reset(self, seed=None, options=None), in the environment or in a wrapper around it, and let "
            "the seed determine the beginning",
        ) from error


def begun(env: gymnasium.Env, seed: int) -> tuple[object, JsonMapping]:
    """Return the first observation of an episode, and its info.

    Raises:
        InputError: reset() takes no seed, or returns anything else.
    """
    found = reset_by(env, seed)
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Mapping):
        raise InputError(
            f"reset() returned {shortened(found)}",
            "it must return an observation and a mapping, info",
            _about_info(found, 2),
        )
    return cast("tuple[object, JsonMapping]", found)


def stepped(env: gymnasium.Env, action: object) -> tuple[object, float, bool, bool, JsonMapping]:
    """Return the observation after an action, the reward, whether it ended or cut the episode, and info.

    Raises:
        InputError: step() returns other things than these five, a reward that is not one finite number, or a flag that
            is neither true nor false.
    """
    found = env.step(action)
    if not isinstance(found, tuple) or len(found) != 5 or not isinstance(found[4], Mapping):
        rule = "it returns an observation, a reward, terminated, truncated and a mapping, info"
        raise InputError(f"step() returned {shortened(found)}", rule, _about_info(found, 5))
    shown, reward, ended, cut, info = found
    return shown, one_number(reward), flag(ended, "terminated"), flag(cut, "truncated"), info


def _about_info(found: object, count: int) -> str:
    """Return what to do about a value that is not as many things as it must be, or whose last is not a mapping."""
    return "Return {} where there is nothing to tell" if isinstance(found, tuple) and len(found) == count else OLDER


def one_number(given: object, what: str = "reward") -> float:
    """Return a reward or a cost as a number. Raises InputError if it is not one finite number."""
    if isinstance(given, float) and math.isfinite(given):
        return float(given)
    found = np.asarray(given)
    if found.shape != () or found.dtype.kind not in "biuf" or not np.isfinite(found):
        raise InputError(
            f"step() returned the {what} {shortened(given)}",
            f"a {what} is one finite number",
            _remedy(given, found),
        )
    return float(found)


def _remedy(given: object, found: np.ndarray) -> str:
    """Return what to do about a reward or a cost that is not one finite number."""
    if given is None:
        return "Return 0.0 where there is none"
    if found.dtype.kind not in "biuf":
        return "Return float(…) of it"
    if found.size == 1 and np.isfinite(found).all():
        return "Return its .item(), in the environment or in a wrapper around it"
    if found.size == 1:
        return "Look for the division or the logarithm that makes it in the environment, or bound it in a wrapper"
    return "Several goals are components: wrap the environment, and return their sum"


def flag(given: object, what: str) -> bool:
    """Return whether an episode ended or was cut. Raises InputError if the value is neither true nor false."""
    if isinstance(given, bool):
        return given
    found = np.asarray(given)
    if found.size != 1 or found.dtype.kind not in "biuf" or found.item() not in (0, 1):
        raise InputError(
            f"step() returned {what} = {shortened(given)}", f"{what} must be true or false", "Return bool(…)"
        )
    return bool(found.item())


def closed(env: Closing, name: str) -> None:
    """Close an environment that was only looked at; warn where that fails, since its episodes count all the same."""
    try:
        with alarm(MAKING):
            env.close()
    except TooLong as late:
        warn_not_closed(f"'{name}'", f"close() did not return within {MAKING:g} s{reached(late)}")
    except Exception as error:
        warn_not_closed(f"'{name}'", raised(error))


@contextmanager
def closed_if_refused(env: object, name: str) -> Iterator[None]:
    """Close an environment if the block raises, so that nothing it started outlives the refusal."""
    try:
        yield
    except BaseException:
        if callable(getattr(env, "close", None)):
            closed(cast("Closing", env), name)
        raise


@contextmanager
def made_in_time(name: str) -> Iterator[None]:
    """Refuse an environment that takes too long in the block, which makes it. Raises InputError with the line that it
    had reached.
    """
    try:
        with alarm(MAKING):
            yield
    except TooLong as late:
        raise InputError(
            f"'{name}' is still being made after {MAKING:g} seconds{reached(late)}",
            "an environment is made for each episode",
            "Move what waits or loads to where its module is imported",
        ) from None


def not_made(name: str, error: BaseException) -> InputError:
    """Return the error for an environment that fails while it is made."""
    return InputError(
        f"'{name}' fails while it is made: {raised(error)}", "making it must not raise", "See task.config"
    )
