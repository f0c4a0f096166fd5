"""Replies of servers: a completion, its log-probs, and the label of each token's weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from grouprl.core.errors import shortened
from grouprl.rollout.servers.http_client import Garbled

FLOOR = -9999.0
"""Value that servers write for a log-prob that is NaN or minus infinity; SGLang writes even lower ones."""
ABOVE_ZERO = 1e-3
"""Nats by which rounding may raise a log-prob above 0."""


@dataclass(frozen=True)
class Sampled:
    """One completion of T tokens."""

    ids: tuple[int, ...]
    logp: tuple[float, ...]
    labels: tuple[str, ...]
    """The label of the weights that sampled each token; empty if the server does not say."""
    ended: bool
    """Whether the completion ended by itself, not by its budget."""


def read_ids(ids: object, vocabulary: int, budget: int | None) -> tuple[int, ...]:
    """Return the tokens of a completion, of which there must be 1 to `budget`; any number if that is None."""
    if not isinstance(ids, list) or any(type(token) is not int for token in ids):
        raise Garbled(f"the tokens of a completion are {shortened(ids)}")
    if budget is not None and not 1 <= len(ids) <= budget:
        raise Garbled(f"a completion has {len(ids)} tokens, requested were 1 to {budget}")
    if wrong := [token for token in ids if not 0 <= token < vocabulary]:
        raise Garbled(f"the token {wrong[0]} is outside the vocabulary of {vocabulary}")
    return tuple(ids)


def read_number(value: object) -> float:
    """Return a log-prob. Raises Garbled if `value` is not a valid one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise Garbled(f"a log-prob is {shortened(value)}")
    if value <= FLOOR:
        raise Garbled(f"a log-prob is {value}, which stands for none: the server's numbers are not finite")
    if value > ABOVE_ZERO:
        raise Garbled(f"a log-prob is {value}, above 0")
    return float(value)


def read_labels(choice: Mapping[str, object], count: int) -> tuple[str, ...]:
    """Return the label of the weights of each of `count` tokens; () if the reply has none."""
    spans = choice.get("weight_versions")
    if spans is None:
        return ()
    labels: list[str] = []
    for span in spans if isinstance(spans, list) else [None]:
        label, start, end = (
            (span.get(k) for k in ("version", "start", "end")) if isinstance(span, Mapping) else (0,) * 3
        )
        if not isinstance(label, str) or start != len(labels) or type(end) is not int or not start < end <= count:
            raise Garbled(f"the versions of {count} tokens are {shortened(spans)}")
        labels += [label] * (end - start)
    if len(labels) != count:
        raise Garbled(f"the versions of {count} tokens are {shortened(spans)}")
    return tuple(labels)
