"""What servers are asked to sample, and what none of them can do."""

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
            "a temperature that follows the entropy", "servers sample at one temperature", "Take the engine local"
        )
    if request.grammar is not None:
        raise InputError("a grammar", "these servers are not told what a sample may be", "Take the engine local")
    if request.sampled:
        raise InputError(
            f"a sample that goes on behind {request.sampled} tokens of its own",
            "a server's random numbers begin with the request",
            "Request it as a whole",
        )
    if not request.prompt:
        raise InputError("A prompt has no tokens", "A prompt needs at least one", "Begin it with bos")
