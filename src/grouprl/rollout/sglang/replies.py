"""Replies of SGLang's servers, checked before they are used."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from grouprl.core.errors import shortened
from grouprl.rollout.servers.http_client import Dropped, Garbled
from grouprl.rollout.servers.replies import Sampled, read_ids, read_labels, read_number


def read_completion(
    reply: object, *, budget: int, vocabulary: int, ends: Collection[int], texts: Collection[str] = (), cut: bool
) -> Sampled:
    """Return the completion of a reply to a request for at most `budget` tokens.

    `ends` are the tokens and `texts` the texts that end it; `cut` says whether log-probs after top-k and top-p were
    requested. If a server stops at an end token of its own, the completion has neither ended nor used up its budget and
    must be continued.

    Raises:
        Garbled: the reply is invalid: wrong number of tokens, tokens outside the vocabulary, invalid log-probs …
        Dropped: the server aborted the request.
    """
    meta = _told(reply, "meta_info")
    why = _told(meta, "finish_reason")
    if why.get("type") not in ("stop", "length"):
        raise Dropped(f"the server gave a completion up (it says {shortened(why)})")
    ids = read_ids(reply.get("output_ids") if isinstance(reply, Mapping) else None, vocabulary, budget)
    logp = _logp(meta, ids)
    if cut:
        logp = _behind_cuts(meta, len(ids))
    end = next((i + 1 for i, token in enumerate(ids) if token in ends), None)
    ended = end is not None or _ended(why, ids, budget, texts)
    return Sampled(ids[:end], logp[:end], read_labels(meta, len(ids))[:end], ended)


def read_scores(reply: object, ids: Sequence[int], vocabulary: int) -> list[float]:
    """Return a reply's log-probs of a prompt's tokens after the first."""
    shown = [token if token < vocabulary - 1 else 0 for token in ids]  # SGLang 0.5 gives the very last token as 0
    rows = _rows(_told(reply, "meta_info"), "input_token_logprobs", ids, shown)
    return [read_number(row[0]) for row in rows[1:]]


def _told(outer: object, key: str) -> Mapping[str, object]:
    found = outer.get(key) if isinstance(outer, Mapping) else None
    if not isinstance(found, Mapping):
        raise Garbled(f"a completion was requested, and the answer has no {key}: {shortened(outer)}")
    return found


def _rows(meta: Mapping[str, object], key: str, *ids: Sequence[int]) -> list[Sequence[object]]:
    """Return (log-prob, token, text) of each token of one of `ids`; the log-prob of a prompt's first is None."""
    rows = meta.get(key)
    if not isinstance(rows, list) or any(not isinstance(row, list) or len(row) < 2 for row in rows):
        raise Garbled(f"{key} are {shortened(rows)}")
    if [row[1] for row in rows] not in [list(each) for each in ids]:
        raise Garbled(f"{key} are not those of the {len(ids[0])} tokens")
    return rows


def _logp(meta: Mapping[str, object], ids: Sequence[int]) -> tuple[float, ...]:
    return tuple(read_number(row[0]) for row in _rows(meta, "output_token_logprobs", ids))


def _behind_cuts(meta: Mapping[str, object], count: int) -> tuple[float, ...]:
    """Return the log-probs under the distribution that remains after top-k and top-p."""
    found = meta.get("output_token_sampling_logprobs")
    if not isinstance(found, list) or len(found) != count:
        raise Garbled(f"log-probs after top_k and top_p of {count} tokens were requested: {shortened(found)}")
    return tuple(read_number(each) for each in found)


def _ended(why: Mapping[str, object], ids: Sequence[int], budget: int, texts: Collection[str]) -> bool:
    """Return whether a completion without an end token ended by itself. Raises Garbled if the stated reason is
    impossible.
    """
    matched = why.get("matched")
    if why["type"] == "length":
        if len(ids) < budget:
            raise Garbled(f"a completion of {len(ids)} tokens is said to have used its budget of {budget}")
        return False
    if isinstance(matched, str) and matched in texts:
        return True
    if type(matched) is not int or matched != ids[-1]:
        raise Garbled(f"a completion is said to have ended with {shortened(matched)}, and its last token is {ids[-1]}")
    return False
