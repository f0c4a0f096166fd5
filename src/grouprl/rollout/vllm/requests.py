"""Requests to vLLM's servers: completions of token ids, and log-probs of given token ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from grouprl.core.json_types import JsonObject
from grouprl.rollout.servers.requests import PromptRequest

GENERATE = "/inference/v1/generate"
NEUTRAL: JsonObject = {
    "min_p": 0.0,
    "min_tokens": 0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Settings that switch off all changes to the distribution and to the end of a completion: a running server may have
defaults of its own, by --generation-config or --override-generation-config.
"""


def completion_body(request: PromptRequest, ends: Collection[int]) -> JsonObject:
    """Return the body of the call for a completion, which the tokens `ends` end."""
    settings: JsonObject = {
        **NEUTRAL,
        "n": 1,
        "max_tokens": request.budget,
        "temperature": 0.0 if request.greedy else request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
        "seed": request.seed % 2**63,
        "logprobs": 0,
        "ignore_eos": True,  # the policy decides which tokens end a completion
        "stop_token_ids": sorted(ends),
        "skip_special_tokens": False,
        "detokenize": bool(request.stop_texts),
    }
    if request.stop_texts:
        settings["stop"] = list(request.stop_texts)
    return {"token_ids": list(request.prompt), "sampling_params": settings}


def scoring_body(ids: Sequence[int]) -> JsonObject:
    """Return the body of the call for the log-probs of `ids` after the first, at temperature 1."""
    settings: JsonObject = {**NEUTRAL, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
    return {"token_ids": list(ids), "sampling_params": settings}
