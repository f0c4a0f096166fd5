"""Requests to SGLang's servers: completions of token ids, and log-probs of given token ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.protocols import Request

GENERATE = "/generate"
NEUTRAL: JsonObject = {
    "min_p": 0.0,
    "min_new_tokens": 0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Settings that switch off all changes to the distribution and to the end of a completion, since a server may have
other defaults.
"""


def kept_tokens(request: Request[tuple[int, ...]], vocabulary: int, most: int) -> int:
    """Return the top-k of the distribution that a request samples from; 0 where top-k and top-p cut nothing.

    SGLang returns a token's log-prob after top-k and top-p only if top-k is given, and for `most` tokens at most.

    Raises:
        InputError: the request keeps more, or has a min-p.
    """
    if request.min_p:
        raise InputError(f"min_p = {request.min_p:g}", "SGLang returns no log-probs after it", "Leave it out")
    kept = min(request.top_k or vocabulary, vocabulary)
    if request.greedy or (request.top_p == 1 and kept == vocabulary):
        return 0
    if kept > most:
        raise InputError(
            f"sampling.top_p = {request.top_p:g} with sampling.top_k = {request.top_k}",
            f"this server returns log-probs after both for at most {most} tokens, and {kept} may be kept",
            f"Set sampling.top_k to {most} or less, or start the server with --sampling-mask-max-tokens {vocabulary}",
        )
    return kept


def completion_body(
    request: Request[tuple[int, ...]],
    *,
    ids: Sequence[int],
    budget: int,
    ends: Collection[int],
    kept: int,
    vocabulary: int,
    name: str,
) -> JsonObject:
    """Return the request for at most `budget` tokens after `ids`, under the name `name`.

    `ends` are the tokens that end the completion, `kept` is the result of `kept_tokens`. If nothing is cut, top-k is
    the whole vocabulary: SGLang draws noise by rank if any request of the batch has a top-k, else by token, so that a
    completion would otherwise depend on its neighbours.
    """
    settings: JsonObject = {
        **NEUTRAL,
        "max_new_tokens": budget,
        "temperature": 0.0 if request.greedy else request.temperature,
        "top_p": request.top_p if kept else 1.0,
        "top_k": kept or vocabulary,
        "sampling_seed": request.seed % 2**63,
        "stop_token_ids": sorted(ends),
        "ignore_eos": False,  # it would also disable the line above
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if request.stop_texts:
        settings["stop"] = list(request.stop_texts)
    cut: JsonObject = {"return_sampling_mask": True, "sampling_logprobs_mode": "selected"} if kept else {}
    return {"rid": name, "input_ids": list(ids), "sampling_params": settings, "return_logprob": True, **cut}


def scoring_body(ids: Sequence[int]) -> JsonObject:
    """Return the request for the log-probs of `ids` after the first, at temperature 1."""
    settings: JsonObject = {**NEUTRAL, "max_new_tokens": 0, "temperature": 0.0}
    return {"input_ids": list(ids), "sampling_params": settings, "return_logprob": True, "logprob_start_len": 0}
