"""JSON as a parser returns it, and as it is written: objects whose members are known by name alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object that is built, or that was just parsed; its reader checks what it takes from it."""

JsonMapping: TypeAlias = Mapping[str, Any]
"""A JSON object that is only read."""
