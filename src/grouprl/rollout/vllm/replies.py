"""Replies of vLLM's servers, checked before they are used."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from grouprl.core.errors import shortened
from grouprl.rollout.servers.http_client import Dropped, Garbled
from grouprl.rollout.servers.replies import Sampled, read_ids, read_labels, read_number


def read_sampled(reply: object, *, budget: int, vocabulary: int, ends: Collection[int]) -> Sampled:
    """Return the completion of a reply to a request for at most `budget` tokens.

    `ends` are the tokens that end a completion; anything that a server writes after the first one is not part of it.

    Raises:
        Garbled: the reply is invalid: wrong number of tokens, tokens outside the vocabulary, invalid log-probs …
        Dropped: the server aborted the request.
    """
    choice = _choice(reply)
    why = choice.get("finish_reason")
    whole = why in ("stop", "length")
    ids = read_ids(choice.get("token_ids"), vocabulary, budget if whole else None)
    logp, labels = _logp(choice, ids), read_labels(choice, len(ids))
    if not whole:
        raise Dropped(f"the server gave a completion up after {len(ids)} tokens (it says {shortened(why)})")
    end = next((i + 1 for i, token in enumerate(ids) if token in ends), None)
    if end is None and why == "length" and len(ids) < budget:
        raise Garbled(f"a completion of {len(ids)} tokens is said to have used its budget of {budget}")
    if end is None and why == "stop" and not isinstance(choice.get("stop_reason"), str):
        raise Garbled(f"a completion is said to have ended, but its last token {ids[-1]} is not an end token")
    return Sampled(ids[:end], logp[:end], labels[:end], end is not None or why == "stop")


def read_prompt_logp(reply: object, ids: tuple[int, ...]) -> list[float]:
    """Return a reply's log-probs of a prompt's tokens after the first."""
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


def _logp(choice: Mapping[str, object], ids: tuple[int, ...]) -> tuple[float, ...]:
    outer = choice.get("logprobs")
    content = outer.get("content") if isinstance(outer, Mapping) else None
    if not isinstance(content, list) or not all(isinstance(each, Mapping) for each in content):
        raise Garbled(f"a completion has no log-probs: {shortened(outer)}")
    if [each.get("token_id") for each in content] != list(ids):
        raise Garbled("the log-probs of a completion are not those of its tokens")
    return tuple(read_number(each.get("logprob")) for each in content)
