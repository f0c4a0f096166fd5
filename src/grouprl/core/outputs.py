"""Names of what a model gives of its rows: `log_prob`, `value`, and with a parameter behind an @, `cross@1.2`."""

from __future__ import annotations

import math
from collections.abc import Iterable

LOG_PROB = "log_prob"
"""[B,T]: log-prob, or log-density, of the action taken."""
ENTROPY = "entropy"
"""[B,T]: entropy in nats of the distribution that the action came from."""
VALUE = "value"
"""[B,T]: value of the state in which the action was taken."""


def stem(name: str) -> str:
    """Return the name without its parameter, with the @ before it: "cross@" of "cross@1.2", "value" of "value"."""
    before, mark, _ = name.partition("@")
    return before + mark


def parameter(name: str) -> float:
    """Return the number behind the @ of a name; nan where it is none."""
    try:
        return float(name.partition("@")[2])
    except ValueError:
        return math.nan


def has_output(outputs: Iterable[str], name: str) -> bool:
    """Tell whether `name` is one of `outputs`, in which "cross@" stands for that name with any positive number."""
    if "@" not in name:
        return name in outputs
    return stem(name) in outputs and 0 < parameter(name) < math.inf
