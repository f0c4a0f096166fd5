"""Conversion of environments' return values to plain JSON values and back, so that nothing from them is unpickled."""

from __future__ import annotations

import base64
import numbers
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from grouprl.envs.environment import ArrayObservation, Observation, Step
from grouprl.rewards.contract import Failure

READ = ("seconds", "finals")
"""The entries of a step's `info` that are read outside the environment."""


KINDS: dict[str, type[Observation | ArrayObservation | Step]] = {
    "observation": Observation,
    "arrays": ArrayObservation,
    "step": Step,
}
KIND_OF = {kind: name for name, kind in KINDS.items()}
NUMBERS = "biuf"
"""The kinds of numpy types that are sent: booleans, integers and floating-point numbers."""


class Strange:
    """A stand-in for a value of a type that no environment should return; it is shown by the type's name."""


def to_plain(value: Any) -> object:
    """Return `value` as JSON values.

    Only the entries of `info` that are read are kept; a value of an unexpected type is replaced by the name of its
    type.
    """
    if isinstance(value, Failure):
        return {"is": "failure", "values": [value.what, value.trace, value.status, value.by, value.lost]}
    if isinstance(value, Observation | ArrayObservation):
        return {"is": KIND_OF[type(value)], "values": _values(value, ())}
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
    if callable(getattr(value, "__array__", None)) and (found := _array(value)) is not None:
        return found
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    return {"is": "strange", "values": type(value).__name__}


def from_plain(plain: object) -> Any:
    """Return the value that `to_plain` was given.

    Raises:
        ValueError, TypeError, KeyError: `to_plain` did not write this.
    """
    if not isinstance(plain, dict):
        return plain
    kind, values = plain["is"], plain["values"]
    if kind == "failure":
        return Failure(*values)
    if kind == "array":
        return _array_from(*values)
    if kind in KINDS:
        return KINDS[kind](**{name: from_plain(value) for name, value in values.items()})
    if kind == "mapping":
        return {from_plain(key): from_plain(value) for key, value in values}
    if kind in ("tuple", "list"):
        found = [from_plain(each) for each in values]
        return tuple(found) if kind == "tuple" else found
    if kind == "strange":
        return type(str(values), (Strange,), {})()
    raise ValueError(f"{kind!r} is not a kind of value")


def _array(value: object) -> object | None:
    """Return an array of numbers as its type, shape and exact bytes; None for any other array."""
    import numpy as np  # an environment that returns arrays has imported it

    array = np.asarray(value)
    if array.dtype.kind not in NUMBERS:
        return None
    content = base64.b85encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"is": "array", "values": [array.dtype.str, list(array.shape), content]}


def _array_from(kind: str, shape: list[int], content: str) -> object:
    import numpy as np

    if np.dtype(kind).kind not in NUMBERS:
        raise ValueError(f"{kind!r} is not a type of numbers")
    return np.frombuffer(base64.b85decode(content), dtype=kind).reshape(shape)


def _values(value: Observation | ArrayObservation | Step, without: tuple[str, ...]) -> dict[str, object]:
    return {f.name: to_plain(getattr(value, f.name)) for f in fields(value) if f.name not in without}
