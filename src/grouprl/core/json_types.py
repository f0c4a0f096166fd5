"""Types of JSON objects, as parsed or to be written: mappings from names to values of any type."""

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
