"""Sending a reward to another process: functions by their import path, never by their code."""

from __future__ import annotations

import importlib
import inspect
import io
import pickle
from functools import partial

from grouprl.core.errors import InputError
from grouprl.core.importing import ORIGINS, SOURCES, Source, module_from_source
from grouprl.core.json_types import JsonObject
from grouprl.rewards.builtin import math_equal, regex_format
from grouprl.rewards.code import passes_tests
from grouprl.rewards.contract import Reward, reward_name
from grouprl.rewards.validation import plain_rewards

MAIN = "__main__"


class CannotSend(InputError):
    """The reward cannot be found again by another process."""


def pack(reward: object, what: str = "reward") -> JsonObject:
    """Return plain data from which `unpack` builds the reward again in another process; `what` names it in messages.

    What was imported for a configuration travels as its import path, and modules imported from a file also as their
    text, so that the other process has the same code even if the file has changed since. The rest is pickled.

    Raises:
        CannotSend: if a part of it is a local function, a lambda, belongs to the main script, or holds what cannot be
            pickled.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, what)
    try:
        pickler.dump(reward)
    except CannotSend:
        raise
    except Exception as error:  # pickling runs the code of the objects it meets
        raise CannotSend(
            f"The {what} '{reward_name(reward)}' cannot be sent to a worker process: {error}",
            f"a worker imports the {what}, so it must be found by module and name",
            "Define it at the top of a module and name it as pkg.module:function or file.py:function.",
        ) from error
    sources = {name: (SOURCES[name].path, SOURCES[name].text) for name in pickler.files}
    return {"sources": sources, "reward": buffer.getvalue()}


def unpack(parcel: JsonObject) -> Reward:
    """Return the reward that `pack` packed.

    Raises:
        Exception: whatever its modules raise while being imported.
    """
    for name, (path, text) in parcel["sources"].items():
        module_from_source(name, Source(path, text))
    found: Reward = _Unpickler(io.BytesIO(parcel["reward"])).load()
    return found


def harmless(reward: Reward) -> bool:
    """Whether a reward consists of this package's own functions that end on every text, within microseconds."""
    return all(_harmless(plain) for plain in plain_rewards(reward))


def _harmless(reward: Reward) -> bool:
    if isinstance(reward, partial):
        return reward.func is not regex_format and _harmless(reward.func)
    own = inspect.isfunction(reward) and reward.__module__.startswith("grouprl.")
    return own and reward not in (math_equal, passes_tests)


class _Pickler(pickle.Pickler):
    """Writes imported objects as their import path and notes the modules of files that are needed."""

    def __init__(self, buffer: io.BytesIO, what: str) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.what = what
        self.files: list[str] = []

    def persistent_id(self, obj: object) -> tuple[str, str] | None:
        origin = ORIGINS.get(id(obj))
        module = origin.module if origin else getattr(obj, "__module__", None)
        if module in SOURCES and module not in self.files:
            self.files.append(module)
        if module == MAIN:
            raise CannotSend(
                f"The {self.what} uses '{getattr(obj, '__qualname__', type(obj).__qualname__)}' of the main script",
                "a worker process cannot import the script that is being run",
                f"Put the {self.what} into a module of its own.",
            )
        return (origin.module, origin.name) if origin else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, path: tuple[str, str]) -> object:
        found: object = importlib.import_module(path[0])
        for name in path[1].split("."):
            found = getattr(found, name)
        return found
