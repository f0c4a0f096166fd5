"""JSON as a parser returns it, and as it is written: objects whose members are known by name alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object that is built, or that was just parsed; its reader checks what it takes from it."""

State: TypeAlias = dict[str, Any]
"""What a run or a part of it remembers, and a checkpoint keeps: numbers, texts, lists, dicts and tensors by name. Only
whoever wrote an entry reads it, and knows its type."""

JsonMapping: TypeAlias = Mapping[str, Any]
"""A JSON object that is only read."""
