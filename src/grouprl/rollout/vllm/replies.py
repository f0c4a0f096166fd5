"""What a server says it sampled, checked before anything is done with it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from grouprl.core.errors import shortened
from grouprl.rollout.vllm.http_client import Dropped, Garbled

FLOOR = -9999.0
"""What vLLM writes for a log-prob that is no number, or minus infinity."""
ABOVE_ZERO = 1e-3
"""Nats by which rounding may lift a log-prob above 0."""


@dataclass(frozen=True)
class Sampled:
    """One completion of T tokens."""

    ids: tuple[int, ...]
    logp: tuple[float, ...]
    labels: tuple[str, ...]
    """The label of the weights that sampled each token; empty where the server does not say."""
    ended: bool
    """Whether it ended by itself: not by its budget."""


def read_sampled(reply: object, *, budget: int, vocabulary: int, ends: Collection[int]) -> Sampled:
    """Return the completion of a reply to a request for at most `budget` tokens.

    `ends` are the tokens that end a completion; what a server writes behind the first is not part of it.

    Raises:
        Garbled: it is none: not that many tokens, tokens outside the vocabulary, log-probs that are none …
        Dropped: the server gave it up.
    """
    choice = _choice(reply)
    ids = _ids(choice, budget, vocabulary)
    logp, labels, why = _logp(choice, ids), read_labels(choice, len(ids)), choice.get("finish_reason")
    if why not in ("stop", "length"):
        raise Dropped(f"the server gave a completion up after {len(ids)} tokens (it says {shortened(why)})")
    end = next((i + 1 for i, token in enumerate(ids) if token in ends), None)
    if end is None and why == "length" and len(ids) < budget:
        raise Garbled(f"a completion of {len(ids)} tokens is said to have used its budget of {budget}")
    if end is None and why == "stop" and not isinstance(choice.get("stop_reason"), str):
        raise Garbled(f"a completion is said to have ended, and its last token {ids[-1]} ends none")
    return Sampled(ids[:end], logp[:end], labels[:end], end is not None or why == "stop")


def read_prompt_logp(reply: object, ids: tuple[int, ...]) -> list[float]:
    """Return the log-probs that a reply holds of a prompt's tokens behind the first."""
    given = reply.get("prompt_logprobs") if isinstance(reply, Mapping) else None
    if not isinstance(given, list) or len(given) != len(ids):
        raise Garbled(f"log-probs of a prompt of {len(ids)} tokens were requested: {shortened(given)}")
    found = []
    for token, each in zip(ids[1:], given[1:], strict=True):
        entry = each.get(str(token)) if isinstance(each, Mapping) else None
        found.append(read_number(entry.get("logprob") if isinstance(entry, Mapping) else None))
    return found


def _choice(reply: object) -> Mapping[str, object]:
    choices = reply.get("choices") if isinstance(reply, Mapping) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise Garbled(f"one completion was requested: {shortened(reply)}")
    return choices[0]


def _ids(choice: Mapping[str, object], budget: int, vocabulary: int) -> tuple[int, ...]:
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or any(type(token) is not int for token in ids):
        raise Garbled(f"the tokens of a completion are {shortened(ids)}")
    if choice.get("finish_reason") in ("stop", "length") and not 1 <= len(ids) <= budget:
        raise Garbled(f"a completion has {len(ids)} tokens, requested were 1 to {budget}")
    if wrong := [token for token in ids if not 0 <= token < vocabulary]:
        raise Garbled(f"the token {wrong[0]} is outside the vocabulary of {vocabulary}")
    return tuple(ids)


def _logp(choice: Mapping[str, object], ids: tuple[int, ...]) -> tuple[float, ...]:
    outer = choice.get("logprobs")
    content = outer.get("content") if isinstance(outer, Mapping) else None
    if not isinstance(content, list) or not all(isinstance(each, Mapping) for each in content):
        raise Garbled(f"a completion has no log-probs: {shortened(outer)}")
    if [each.get("token_id") for each in content] != list(ids):
        raise Garbled("the log-probs of a completion are not those of its tokens")
    return tuple(read_number(each.get("logprob")) for each in content)


def read_number(value: object) -> float:
    """Return a log-prob; raises Garbled for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise Garbled(f"a log-prob is {shortened(value)}")
    if value <= FLOOR:
        raise Garbled(f"a log-prob is {value}, which stands for none: the server's numbers are not finite")
    if value > ABOVE_ZERO:
        raise Garbled(f"a log-prob is {value}, above 0")
    return float(value)


def read_labels(choice: Mapping[str, object], count: int) -> tuple[str, ...]:
    """Return the label of the weights of each of `count` tokens; () where there are none."""
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
