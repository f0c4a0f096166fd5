"""What environments return as plain JSON values and back, so that nothing of theirs is ever unpickled."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from grouprl.envs.environment import Observation, Step
from grouprl.rewards.contract import Failure

READ = ("seconds",)
"""What of a step's `info` is read outside the environment."""


class Strange:
    """Stands for a value of a type that no environment should return; it is shown by that type's name."""


def to_plain(value: Any) -> object:
    """Return `value` as JSON values.

    Of `info` only what is read is kept, and of what has no business here the name of its type.
    """
    if isinstance(value, Failure):
        return {"is": "failure", "values": [value.what, value.trace, value.status, value.by, value.lost]}
    if isinstance(value, Observation):
        return {"is": "observation", "values": _values(value, ())}
    if isinstance(value, Step):
        given = value.info if isinstance(value.info, Mapping) else {}
        info = {name: given[name] for name in READ if name in given}
        return {"is": "step", "values": {**_values(value, ("info",)), "info": to_plain(info)}}
    if isinstance(value, Mapping):
        return {"is": "mapping", "values": [[to_plain(k), to_plain(v)] for k, v in value.items()]}
    if isinstance(value, (tuple, list)):
        return {"is": "tuple" if isinstance(value, tuple) else "list", "values": [to_plain(each) for each in value]}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if callable(getattr(value, "__array__", None)) and getattr(value, "ndim", 0) > 0:
        return {"is": "list", "values": [to_plain(each) for each in value.tolist()]}  # an observation of numbers
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    return {"is": "strange", "values": type(value).__name__}


def from_plain(plain: object) -> Any:
    """Return what `to_plain` was given.

    Raises:
        ValueError, TypeError, KeyError: it was not `to_plain` that wrote this.
    """
    if not isinstance(plain, dict):
        return plain
    kind, values = plain["is"], plain["values"]
    if kind == "failure":
        return Failure(*values)
    if kind in ("observation", "step"):
        given = {name: from_plain(value) for name, value in values.items()}
        return Observation(**given) if kind == "observation" else Step(**given)
    if kind == "mapping":
        return {from_plain(key): from_plain(value) for key, value in values}
    if kind in ("tuple", "list"):
        found = [from_plain(each) for each in values]
        return tuple(found) if kind == "tuple" else found
    if kind == "strange":
        return type(str(values), (Strange,), {})()
    raise ValueError(f"{kind!r} is not a kind of value")


def _values(value: Observation | Step, without: tuple[str, ...]) -> dict[str, object]:
    return {f.name: to_plain(getattr(value, f.name)) for f in fields(value) if f.name not in without}
