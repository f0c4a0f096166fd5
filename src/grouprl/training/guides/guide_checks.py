"""Checks of the models that `model.reference` names, in one process and on several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.orchestrator.resolve import ResolvedRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import PreTrainedTokenizerBase


def alike(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    """Return whether two models have the same weights by name and shape, so that they can be averaged."""
    return {name: x.shape for name, x in weights.items()} == {name: x.shape for name, x in own.items()}


def check_tokenizer(
    folder: str, theirs: PreTrainedTokenizerBase, run: ResolvedRun, own: PreTrainedTokenizerBase
) -> None:
    """Check that a reference has the tokenizer of the policy; raises InputError."""
    if theirs.get_vocab() != own.get_vocab():
        raise InputError(
            f"the reference {folder} has another tokenizer than the model {run.config.model.name}",
            "both score the same tokens",
            "Name a model of the same family",
        )


def check_alone(folder: str, run: ResolvedRun) -> None:
    """Check that a model of other layers than the trained ones is the only reference; raises InputError."""
    if len(run.guides) > 1:
        trained = "adapters" if run.config.model.lora is not None else f"the layers of {run.config.model.name}"
        raise InputError(
            f"the reference {folder} has other layers than what is trained, {trained}",
            "weights are averaged where all models have the same layers",
            "Name models that were trained from the same one and train every weight (no model.lora), or name one model",
        )
