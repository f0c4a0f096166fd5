"""The choice of the engine that runs a model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError, suggest
from grouprl.policy.engine import ModelEngine
from grouprl.policy.fast_forward.forward import AUTO_LIMIT, LeanEngine, why_not_lean
from grouprl.policy.language.transformers_engine import TransformersEngine
from grouprl.policy.passes import AUTO, PassSettings, sizes_of
from grouprl.policy.precision import choose_precision

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ENGINES = ("auto", "lean", "transformers")


def choose_engine(
    model: PreTrainedModel,
    engine: str,
    settings: PassSettings = AUTO,
    checkpoint_above: float = math.inf,
    precision: str = "float32",
) -> ModelEngine:
    """Return the engine called `engine`; "auto" is lean if that is exact and allowed and the model is not large.

    Passes of more than `checkpoint_above` tokens recompute layers in the backward pass. `precision` is the precision of
    products (`grouprl.policy.precision.choose_precision`).

    Raises:
        InputError: an unknown name, "lean" without packing or for a model that it does not compute exactly, or settings
            or a precision that the engine lacks.
    """
    parameters = sum(p.numel() for p in model.parameters())
    name = engine_name(engine, why_not_lean(model), parameters, settings)
    weight = next(model.parameters())
    _, hidden, intermediate, _ = sizes_of(model.config.get_text_config())
    chosen = choose_precision(precision, weight.dtype, weight.device, hidden, intermediate, other_engine(name))
    if name == "lean":
        return LeanEngine(model, settings.shared_prefix, checkpoint_above, precision=chosen.precision)
    return TransformersEngine(model, settings, checkpoint_above)


def runs_lean(model: PreTrainedModel) -> bool:
    """Return whether the lean engine runs a model exactly."""
    return why_not_lean(model) is None


def other_engine(name: str) -> str | None:
    """Return why the engine `name` only has the precision float32; None for the lean engine, which has others."""
    return None if name == "lean" else "the model runs with the engine transformers"


def engine_name(engine: str, obstacle: str | None, parameters: int, settings: PassSettings) -> str:
    """Return "lean" or "transformers"; `obstacle` says why the lean engine would not be exact, None if it would.

    Raises InputError as `choose_engine` does.
    """
    if engine not in ENGINES:
        raise InputError(f"engine={engine!r}", "No engine has this name", suggest(engine, ENGINES))
    if engine == "lean" and obstacle is not None:
        raise InputError("engine='lean'", f"The lean engine cannot run this model: {obstacle}", "Use engine='auto'")
    if engine == "lean" and settings.packing == "off":
        raise InputError("packing=off and engine='lean'", "The lean engine always packs", "Use engine='transformers'")
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
    return obstacle is None and settings.packing != "off" and parameters <= AUTO_LIMIT
