"""Checks of requests for settings that no server supports."""

from __future__ import annotations

from typing import TypeAlias

from grouprl.core.errors import InputError
from grouprl.protocols import Request

Prompt: TypeAlias = tuple[int, ...]
PromptRequest: TypeAlias = Request[Prompt]


def check_request(request: PromptRequest) -> None:
    """Raise InputError for a request that no server can honour."""
    if request.entropy_scaling is not None:
        raise InputError(
            "a temperature that follows the entropy", "servers sample at one temperature", "Use the engine local"
        )
    if request.grammar is not None:
        raise InputError("a grammar", "these servers do not take grammars", "Use the engine local")
    if request.sampled:
        raise InputError(
            f"the request continues a sample after {request.sampled} of its tokens",
            "a server's random numbers restart with each request",
            "Request it as a whole",
        )
    if not request.prompt:
        raise InputError("A prompt has no tokens", "A prompt needs at least one", "Begin it with bos")
