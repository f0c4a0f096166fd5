"""Group-relative reinforcement learning for language models: every choice visible, every method's checks on its card.

What is listed in `__all__` is imported when it is first used, so that the command line answers before torch is loaded.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
"""As in `typing`, which takes a while to load: until the command line hears signals, Ctrl-C is a traceback."""
if TYPE_CHECKING:
    from grouprl import methods as methods
    from grouprl.algorithms.advantage.advantage import Advantage
    from grouprl.algorithms.aggregate.aggregate import Aggregate
    from grouprl.algorithms.data_part import (
        Allocation,
        Augmentation,
        Buffer,
        Curriculum,
        DataPart,
        Pretraining,
        RunContext,
        SamplingRule,
    )
    from grouprl.algorithms.method import Loss, Method
    from grouprl.algorithms.objective.objective import Objective
    from grouprl.algorithms.part import Part, RunFacts, TokenLoss, part
    from grouprl.algorithms.regularize.regularize import Regularizer
    from grouprl.core.batch import Batch
    from grouprl.core.errors import GrouprlError, InputError, MissingExtra, RunError
    from grouprl.core.metric import Metric
    from grouprl.core.run_events import RunListener
    from grouprl.methods import Card, entry, method
    from grouprl.methods.compose import Resolved, compose
    from grouprl.training.starting import train

__version__ = "0.1.0"
__all__ = [
    "Advantage",
    "Aggregate",
    "Allocation",
    "Augmentation",
    "Batch",
    "Buffer",
    "Card",
    "Curriculum",
    "DataPart",
    "GrouprlError",
    "InputError",
    "Loss",
    "Method",
    "Metric",
    "MissingExtra",
    "Objective",
    "Part",
    "Pretraining",
    "Regularizer",
    "Resolved",
    "RunContext",
    "RunError",
    "RunFacts",
    "RunListener",
    "SamplingRule",
    "TokenLoss",
    "__version__",
    "compose",
    "entry",
    "method",
    "methods",
    "part",
    "train",
]
_DATA_PARTS = (
    *("Allocation", "Augmentation", "Curriculum", "DataPart", "Pretraining", "Buffer", "RunContext"),
    "SamplingRule",
)
_HOMES = {
    "Advantage": "grouprl.algorithms.advantage.advantage",
    **dict.fromkeys(_DATA_PARTS, "grouprl.algorithms.data_part"),
    **dict.fromkeys(("Loss", "Method"), "grouprl.algorithms.method"),
    "Objective": "grouprl.algorithms.objective.objective",
    **dict.fromkeys(("Part", "RunFacts", "TokenLoss", "part"), "grouprl.algorithms.part"),
    "Aggregate": "grouprl.algorithms.aggregate.aggregate",
    "Regularizer": "grouprl.algorithms.regularize.regularize",
    "Batch": "grouprl.core.batch",
    **dict.fromkeys(("GrouprlError", "InputError", "MissingExtra", "RunError"), "grouprl.core.errors"),
    "Metric": "grouprl.core.metric",
    **dict.fromkeys(("Card", "entry", "method"), "grouprl.methods"),
    **dict.fromkeys(("Resolved", "compose"), "grouprl.methods.compose"),
    "RunListener": "grouprl.core.run_events",
    "train": "grouprl.training.starting",
}


def __getattr__(name: str) -> object:
    """Import what is listed in `__all__` when it is first used."""
    if name == "methods":
        return importlib.import_module("grouprl.methods")
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    """List what is imported and what can be."""
    return sorted({*globals(), *__all__})
