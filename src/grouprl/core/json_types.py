"""Types of JSON objects, as parsed or to be written: mappings from names to values of any type; equality of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object that is being built or was just parsed; readers check the values that they take."""

State: TypeAlias = dict[str, Any]
"""The state of a run or a part, as kept in a checkpoint: numbers, strings, lists, dicts and tensors by name. Only the
code that wrote an entry reads it, and knows its type."""

JsonMapping: TypeAlias = Mapping[str, Any]
"""A read-only JSON object."""


def same_value(ours: object, theirs: object) -> bool:
    """Return whether two JSON values are equal: 7.0 is 7, true is not 1."""
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same_value, ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same_value(ours[key], theirs[key]) for key in ours)
    return bool(ours == theirs)
