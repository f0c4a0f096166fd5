"""Which engine runs a model."""

from __future__ import annotations

from typing import Any

from ..errors import InputError, suggest
from .engine import Engine, TransformersEngine
from .lean import AUTO_LIMIT, LeanEngine, why_not_lean

ENGINES = ("auto", "lean", "transformers")


def choose_engine(model: Any, engine: str) -> Engine:
    """Return the engine called `engine`; "auto" is lean where that is exact and the model is not large.

    Raises:
        InputError: an unknown name, or "lean" for a model it does not compute exactly.
    """
    if engine not in ENGINES:
        raise InputError(f"engine={engine!r}", "It is not a known engine", suggest(engine, ENGINES))
    obstacle = why_not_lean(model)
    if engine == "lean" and obstacle is not None:
        raise InputError("engine='lean'", f"The lean engine cannot run this model: {obstacle}", "Use engine='auto'")
    small = sum(p.numel() for p in model.parameters()) <= AUTO_LIMIT
    if engine == "transformers" or obstacle is not None or (engine == "auto" and not small):
        return TransformersEngine(model)
    return LeanEngine(model)
