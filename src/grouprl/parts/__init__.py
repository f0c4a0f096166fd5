"""The parts that methods are composed of: pure functions on a Batch and log-probs."""

from grouprl.parts import (
    advantage,
    aggregate,
    critic,
    normalize,
    objective,
    refill,
    regularize,
    returns,
    selection,
    shaping,
    soft,
    stop_gradient,
    weighting,
)
from grouprl.parts.part import KINDS, PARTS, Part, RunFacts, TokenLoss, build_part, part

__all__ = [
    "KINDS",
    "PARTS",
    "Part",
    "RunFacts",
    "TokenLoss",
    "advantage",
    "aggregate",
    "build_part",
    "critic",
    "normalize",
    "objective",
    "part",
    "refill",
    "regularize",
    "returns",
    "selection",
    "shaping",
    "soft",
    "stop_gradient",
    "weighting",
]
