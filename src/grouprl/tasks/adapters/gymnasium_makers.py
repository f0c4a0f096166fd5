"""Gymnasium environments by name: a registered id, a vector environment, a function or class of yours, wrappers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError, MissingExtra, suggest
from grouprl.core.importing import import_object
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.envs.adapters.gymnasium_calls import closed_if_refused, not_made

if TYPE_CHECKING:
    import gymnasium

Wrapper = str | JsonObject
"""The import path of a wrapper, or a mapping with it as `name` beside the wrapper's further arguments."""


def made(name: str, config: JsonMapping, who: str, wrappers: Sequence[Wrapper] = ()) -> gymnasium.Env:
    """Return a Gymnasium environment with `wrappers` around it, the first innermost; `who` names the task in messages.

    `name` is what gymnasium.make takes, or the import path of a class or function (path/to/file.py:name,
    pkg.module:name) that is called with `config`. A vector environment of one place also serves, even one that only
    gymnasium.make_vec makes.

    Raises:
        MissingExtra: gymnasium is not installed.
        InputError: there is no such environment or wrapper, or it refuses its arguments.
    """
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtra("gymnasium", "envs", who) from error
    own = own_maker(name)
    found = _registered(name, config) if own is None else _called(own, name, config)
    with closed_if_refused(found, name):
        for wrapper in wrappers:
            found = _wrapped(found, wrapper)
        if not isinstance(found, gymnasium.Env):
            raise InputError(
                f"'{name}' makes {type(found).__name__}",
                "it makes a gymnasium.Env or a gymnasium.vector.VectorEnv",
                "Name a class of yours around it, a gymnasium.Env with reset(seed=…) and step(action), or such a "
                "wrapper in task.wrappers",
            )
    return found


def own_maker(name: str) -> Callable[..., object] | None:
    """Return the class or function that `name` is the import path of; None for an id of Gymnasium's registry.

    Raises:
        InputError: a file or its name does not exist, or it fails while being imported.
    """
    location, _, last = name.rpartition(":")
    if not location or (not location.endswith(".py") and not last.isidentifier()):
        return None  # an id has a version: module:Game-v0
    found = import_object(name, "environment")
    if not callable(found):
        raise InputError(f"'{name}' is not an environment", "it must name a class, or a function that returns one")
    return found


def limit_of(env: gymnasium.Env) -> int | None:
    """Return the most actions of an episode: the registered number, or that of a TimeLimit around the environment."""
    registered = getattr(env.spec, "max_episode_steps", None)
    name = "_max_episode_steps"
    return registered or (int(env.get_wrapper_attr(name)) if env.has_wrapper_attr(name) else None)


def label(name: str) -> str:
    """Return a name without the folders of a file."""
    location, _, last = name.rpartition(":")
    return f"{PurePath(location).name}:{last}" if location.endswith(".py") else name


def _registered(name: str, config: JsonMapping) -> object:
    import gymnasium

    try:
        if _only_as_vector(name):
            vector = gymnasium.make_vec(name, num_envs=1, vectorization_mode="vector_entry_point", **config)
            return _single(vector)
        return gymnasium.make(name, disable_env_checker=True, **config)
    except gymnasium.error.UnregisteredEnv as error:
        raise InputError(f"Gymnasium has no environment '{name}'", remedy=suggest(name, gymnasium.registry)) from error
    except ModuleNotFoundError as error:
        raise InputError(
            f"'{name}' needs the module '{error.name}'",
            "the module must be installed in the run's environment",
            f"Install the package that has it, usually: pip install {str(error.name).partition('.')[0]}",
        ) from error
    except (gymnasium.error.Error, TypeError) as error:
        raise InputError(f"Gymnasium refuses '{name}' with {dict(config)}", str(error)) from error
    except (Exception, SystemExit) as error:
        raise not_made(name, error) from error


def _only_as_vector(name: str) -> bool:
    """Return whether a registered environment is made by gymnasium.make_vec alone."""
    import gymnasium

    module, _, own = name.rpartition(":")
    if module:
        import_module(module)
    spec = gymnasium.registry.get(own)
    return spec is not None and spec.entry_point is None


def _called(maker: Callable[..., object], name: str, config: JsonMapping) -> object:
    try:
        return _single(maker(**config))
    except InputError as error:
        raise InputError(f"'{name}' makes {error.what}", error.rule, error.remedy) from error
    except TypeError as error:
        raise InputError(f"'{name}' cannot be called with {dict(config)}", str(error), "See task.config.") from error
    except (Exception, SystemExit) as error:
        raise not_made(name, error) from error


def _single(found: object) -> object:
    from gymnasium.vector import VectorEnv

    if not isinstance(found, VectorEnv):
        return found
    from grouprl.envs.adapters.one_of_vector import OneOfVector

    with closed_if_refused(found, "a vector environment"):
        return OneOfVector(found)


def _wrapped(env: object, wrapper: Wrapper) -> object:
    given: JsonObject = {"name": wrapper} if isinstance(wrapper, str) else dict(wrapper)
    path = given.pop("name", None)
    if not isinstance(path, str):
        raise InputError(
            f"a wrapper is {wrapper}",
            "it must be an import path, or a mapping that has one as its name",
            "Write gymnasium.wrappers:…",
        )
    make = import_object(path, "wrapper")
    if not callable(make):
        raise InputError(f"'{path}' is not a wrapper", "it must name a class, or a function of an environment")
    try:
        return make(env, **given)
    except (TypeError, ValueError, AssertionError) as error:
        raise InputError(
            f"the wrapper '{path}' refuses {given or 'the environment'}", str(error), "See task.wrappers"
        ) from error
    except (Exception, SystemExit) as error:
        raise not_made(path, error) from error
