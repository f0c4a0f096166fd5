"""The name of the engine that runs a model, chosen by its size and by what is asked of it."""

from __future__ import annotations

from grouprl.core.errors import InputError, suggest
from grouprl.policy.passes import PassSettings

ENGINES = ("auto", "lean", "transformers")
AUTO_LIMIT = 500_000_000
"""Number of parameters up to which "auto" chooses the lean engine, which copies joined weights in every pass."""


def other_engine(name: str) -> str | None:
    """Return why the engine `name` only has the precision float32; None for the lean engine, which has others."""
    return None if name == "lean" else "the model runs with the engine transformers"


def engine_name(engine: str, obstacle: str | None, parameters: int, settings: PassSettings) -> str:
    """Return "lean" or "transformers"; `obstacle` says why the lean engine would not be exact, None if it would.

    Raises:
        InputError: an unknown name, or an engine that lacks one of the settings.
    """
    if engine not in ENGINES:
        raise InputError(f"engine={engine!r}", "No engine has this name", suggest(engine, ENGINES))
    if engine == "lean" and obstacle is not None:
        raise InputError("engine='lean'", f"The lean engine cannot run this model: {obstacle}", "Use engine='auto'")
    if engine == "lean" and settings.packing == "off":
        raise InputError("packing=off and engine='lean'", "The lean engine always packs", "Use engine='transformers'")
    if engine == "lean" and settings.offloads:
        raise InputError(
            "checkpointing=offload and engine='lean'",
            "The lean engine keeps the inputs of its layers where they are",
            "Use engine='transformers', or checkpointing: on",
        )
    if settings.compiled and settings.shared_prefix == "on":
        raise InputError(
            "shared_prefix=on and compile=true",
            "With transformers, shared prompts are in a cache that compiled layers do not have",
            "Leave one of them out",
        )
    lean = engine == "lean" or (engine == "auto" and _auto_is_lean(obstacle, parameters, settings))
    if settings.compiled and lean:
        raise InputError(
            "model.compile=true",
            "The lean engine runs this model: its operations are fused already, and nothing of it is compiled",
            "Leave model.compile out, or set model.engine: transformers",
        )
    return "lean" if lean else "transformers"


def _auto_is_lean(obstacle: str | None, parameters: int, settings: PassSettings) -> bool:
    able = settings.packing != "off" and not settings.offloads
    return obstacle is None and able and parameters <= AUTO_LIMIT
