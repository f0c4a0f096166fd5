"""Names of the numbers that the layer of a reward model gives, and their place in its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

REGRESSION = "regression"
"""The problem type of transformers whose labels are numbers, each with an output of its own."""
TAU = "preference_tau"
"""The name in config.json of the temperature of a preference model, which only such a model has."""


@dataclass(frozen=True)
class Columns:
    """Names of the numbers that the layer of a reward model gives: attributes, or the coordinates of a vector.

    Args:
        names: the attribute of each output; for a vector they only say how many coordinates it has.
        tau: the temperature of preferences between vectors; None: outputs are scores.
    """

    names: tuple[str, ...]
    tau: float | None = None

    def write(self, config: PretrainedConfig) -> None:
        """Write the names into a model's configuration, as transformers names labels."""
        config.id2label = dict(enumerate(self.names))
        config.label2id = {name: number for number, name in enumerate(self.names)}
        config.problem_type = REGRESSION
        if self.tau is not None:
            setattr(config, TAU, self.tau)


def columns_of(config: PretrainedConfig) -> Columns | None:
    """Return the names of a stored model's numbers; None: it has a single score, or is not a reward model."""
    if config.num_labels < 2 or config.problem_type != REGRESSION:
        return None
    names = tuple(config.id2label[number] for number in range(config.num_labels))
    return Columns(names, getattr(config, TAU, None))
