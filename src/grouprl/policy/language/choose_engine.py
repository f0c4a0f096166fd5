"""The choice of the engine that runs a model."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from grouprl.policy.devices import name_of
from grouprl.policy.engine import ModelEngine
from grouprl.policy.engine_names import engine_name, other_engine
from grouprl.policy.fast_forward.forward import LeanEngine, why_not_lean
from grouprl.policy.language.transformers_engine import TransformersEngine
from grouprl.policy.layer_sizes import sizes_of
from grouprl.policy.passes import AUTO, PassSettings
from grouprl.policy.precision import choose_precision

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def choose_engine(
    model: PreTrainedModel,
    engine: str,
    settings: PassSettings = AUTO,
    checkpoint_above: float = math.inf,
    precision: str = "float32",
    piece: int = sys.maxsize,
) -> ModelEngine:
    """Return the engine called `engine`; "auto" is lean if that is exact and allowed and the model is not large.

    Passes of more than `checkpoint_above` tokens recompute layers in the backward pass; at most `piece` tokens at a
    time go through a feed-forward block whose activations are not kept. `precision` is the precision of
    products (`grouprl.policy.precision.choose_precision`).

    Raises:
        InputError: an unknown name, "lean" without packing or for a model that it does not compute exactly, or settings
            or a precision that the engine lacks.
    """
    parameters = sum(p.numel() for p in model.parameters())
    name = engine_name(engine, why_not_lean(model), parameters, settings)
    weight = next(model.parameters())
    _, hidden, intermediate, _ = sizes_of(model.config.get_text_config())
    chosen = choose_precision(
        precision, name_of(weight.dtype), str(weight.device), hidden, intermediate, other_engine(name)
    )
    if name == "lean":
        return LeanEngine(model, settings.shared_prefix, checkpoint_above, precision=chosen.precision, piece=piece)
    return TransformersEngine(model, settings, checkpoint_above, piece)


def runs_lean(model: PreTrainedModel) -> bool:
    """Return whether the lean engine runs a model exactly."""
    return why_not_lean(model) is None
