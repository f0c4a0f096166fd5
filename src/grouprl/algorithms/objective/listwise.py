"""Lists: the completions of a prompt, each with a score and with a target that its advantage gives."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from grouprl.algorithms.losses import counted
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.regression import completion_value
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.score.score import Score
from grouprl.algorithms.stage_checks import call, check_shape
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError

LISTS = """known_b = counts_b & active_bt.any(1)
peer_bb = (same_bb & known_b) | torch.eye(len(group_b), dtype=torch.bool)"""
"""Lines of plain torch that find the completions of each row's list."""


def log_softmax_code(of: str) -> str:
    """Return the expression of plain torch for the log of a softmax over each row's list."""
    return f"{of} - torch.where(peer_bb, {of}, -torch.inf).logsumexp(1)"


class Listwise(Objective):
    """Base: a loss of each prompt's completions together. Rows that do not count are in no list.

    Raises:
        InputError: a score that exists for pairs only.
    """

    kind: ClassVar[str] = "objective"
    couples: ClassVar[str] = "group"
    score: Score

    def __post_init__(self) -> None:
        if type(self.score).__call__ is Score.__call__:
            raise InputError(
                f"{self.name} has the score '{self.score.name}'",
                "it needs a score of each completion",
                "Use log_ratio or log_prob",
            )

    def score_b(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return [B] the score of each completion."""
        score_b = call(self.score, self.score, logp_bt, batch)
        check_shape(self.score, score_b, batch.mask_bt, "scores", (len(batch.group_b),), "row")
        return score_b

    def log_target_b(self, batch: Batch, temperature: float) -> Tensor:
        """Return [B] the log of the softmax, over each list, of advantages divided by `temperature`."""
        value_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        return levels.log_softmax(value_b / temperature, batch.group_b, counted(batch))

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that are alone in their group, or do not count in it."""
        weight_b = counted(batch)
        return (levels.count(batch.group_b, weight_b, batch.dtype) <= 1) | (weight_b == 0)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, among which there is no choice."""
        lone = f"{self.name} compares completions of one prompt, but batch.group_size is 1"
        return [f"{lone}. Use batch.group_size of 2 or more"] if run.group_size == 1 else []
