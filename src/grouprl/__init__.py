"""Group-relative reinforcement learning for language models: every choice visible, every method's checks on its card.

What is listed in `__all__` is imported when it is first used, so that the command line answers before torch is loaded.
"""

from __future__ import annotations

import importlib
import sys

if sys.platform == "win32":  # otherwise the first module without a counterpart there ends in a traceback
    raise ImportError(
        "grouprl needs Linux (macOS is untried): on Windows, install it in the Windows Subsystem for Linux"
    )

TYPE_CHECKING = False
"""As in `typing`, which takes a while to load: until the command line hears signals, Ctrl-C is a traceback."""
if TYPE_CHECKING:
    from grouprl import methods as methods
    from grouprl import plan as plan
    from grouprl.algorithms.advantage.advantage import Advantage
    from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
    from grouprl.algorithms.aggregate.aggregate import Aggregate
    from grouprl.algorithms.critic.critic import Critic
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
    from grouprl.algorithms.filter.filter import Filter
    from grouprl.algorithms.link.link import Link
    from grouprl.algorithms.losses import GroupLoss, PairLoss, RowLoss, TokenLoss
    from grouprl.algorithms.margin.margin import Margin
    from grouprl.algorithms.method import Loss, Method
    from grouprl.algorithms.objective.objective import Objective
    from grouprl.algorithms.pair_weight.pair_weight import PairWeight
    from grouprl.algorithms.pairing.pairing import Pairing
    from grouprl.algorithms.part import Part, RunFacts, part
    from grouprl.algorithms.prune.prune import Prune
    from grouprl.algorithms.refill.refill import Refill
    from grouprl.algorithms.regularize.regularize import Regularizer
    from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
    from grouprl.algorithms.score.score import Score
    from grouprl.algorithms.token_gate.token_gate import TokenGate
    from grouprl.algorithms.token_weight.token_weight import TokenWeight
    from grouprl.algorithms.update.update import Update
    from grouprl.core.batch import Batch
    from grouprl.core.edges import Edges
    from grouprl.core.errors import GrouprlError, InputError, MissingExtra, RunError
    from grouprl.core.metric import Metric
    from grouprl.experiments.calling import compare
    from grouprl.experiments.evaluating import evaluate
    from grouprl.methods import Card, entry, method
    from grouprl.methods.compose import Resolved, compose
    from grouprl.protocols.run_events import RunListener
    from grouprl.training.starting import train
    from grouprl.view.loaded_run import load_run

__version__ = "0.2.0"
__all__ = [
    "Advantage",
    "AdvantageTransform",
    "Aggregate",
    "Allocation",
    "Augmentation",
    "Batch",
    "Buffer",
    "Card",
    "Critic",
    "Curriculum",
    "DataPart",
    "Edges",
    "Filter",
    "GroupLoss",
    "GrouprlError",
    "InputError",
    "Link",
    "Loss",
    "Margin",
    "Method",
    "Metric",
    "MissingExtra",
    "Objective",
    "PairLoss",
    "PairWeight",
    "Pairing",
    "Part",
    "Pretraining",
    "Prune",
    "Refill",
    "Regularizer",
    "Resolved",
    "RewardTransform",
    "RowLoss",
    "RunContext",
    "RunError",
    "RunFacts",
    "RunListener",
    "SamplingRule",
    "Score",
    "TokenGate",
    "TokenLoss",
    "TokenWeight",
    "Update",
    "__version__",
    "compare",
    "compose",
    "entry",
    "evaluate",
    "load_run",
    "method",
    "methods",
    "part",
    "plan",
    "train",
]
_HOMES = {
    **dict.fromkeys(("DataPart", "RunContext"), "grouprl.algorithms.data_part"),
    **dict.fromkeys(("GroupLoss", "PairLoss", "RowLoss", "TokenLoss"), "grouprl.algorithms.losses"),
    **dict.fromkeys(("Loss", "Method"), "grouprl.algorithms.method"),
    **dict.fromkeys(("Part", "RunFacts", "part"), "grouprl.algorithms.part"),
    "Batch": "grouprl.core.batch",
    "Edges": "grouprl.core.edges",
    **dict.fromkeys(("GrouprlError", "InputError", "MissingExtra", "RunError"), "grouprl.core.errors"),
    "Metric": "grouprl.core.metric",
    **dict.fromkeys(("Card", "entry", "method"), "grouprl.methods"),
    **dict.fromkeys(("Resolved", "compose"), "grouprl.methods.compose"),
    "compare": "grouprl.experiments.calling",
    "evaluate": "grouprl.experiments.evaluating",
    "load_run": "grouprl.view.loaded_run",
    "RunListener": "grouprl.protocols.run_events",
    "train": "grouprl.training.starting",
}


def __getattr__(name: str) -> object:
    """Import what is listed in `__all__` when it is first used."""
    if name in ("methods", "plan"):  # packages that can be called
        return importlib.import_module(f"grouprl.{name}")
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    home = _HOMES.get(name, "grouprl.algorithms")  # base classes of parts
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    """List what is imported and what can be."""
    return sorted({*globals(), *__all__})
