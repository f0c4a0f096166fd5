"""What tests of engines with servers share: a small policy, requests, and an engine before its servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from grouprl.policy import load_policy
from grouprl.protocols import Request
from grouprl.rollout.servers.engine import ServerEngine
from vllm_stand_in import standing_in

SIZE = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 64}
PROMPTS = ((3, 4, 5), (5, 4, 3), (6, 6))
REQUESTS = [Request(PROMPTS[i % 3], 8, 7919 * i) for i in range(9)]
LETTERS = "".join(map(chr, range(32, 127))) + "\n"
RUN: dict[str, Any] = {
    "task": {"name": "reverse", "length": 2},
    "model": {"name": "tiny", "tiny": {"hidden": 64, "layers": 1, "heads": 2}},
    "batch": {"prompts": 4, "group_size": 4},
    "eval": {"every": 0, "prompts": 4, "final_prompts": 4},
}
"""A run whose model has heads that servers know."""


def small_policy(seed: int = 1, **more: Any) -> Any:
    """A language model of 15 tokens."""
    return load_policy("tiny", alphabet="0123456789+= ", seed=seed, **SIZE, **more)


def moved(policy: Any, seed: int = 0, scale: float = 0.3) -> None:
    """Change the weights as an optimiser step would; by as much as it takes for other completions, and more."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


Stand = Callable[..., tuple[Any, list[Any], list[str]]]
"""(how many servers, how they were started, settings) -> an engine, its servers, and what it says."""


@contextmanager
def engines(engine: Callable[..., Any], server: Callable[..., Any], **common: Any) -> Iterator[Stand]:
    """Yield what makes engines and their servers.

    `engine` makes one of settings, `server` a stand-in of how it was started; `common` are settings of all engines.
    """
    with ExitStack() as open_things:

        def make(count: int = 1, facts: Any = None, **settings: Any) -> tuple[Any, list[Any], list[str]]:
            servers = [server(**(facts or {})) for _ in range(count)]
            addresses = tuple(open_things.enter_context(standing_in(each)) for each in servers)
            found = engine(addresses=addresses, **{**common, **settings})
            open_things.callback(found.close)
            said: list[str] = []
            found.say = said.append
            return found, servers, said

        yield make


def endless(engine: ServerEngine) -> None:
    """Let no completion end by itself."""
    engine.served.ends = lambda request: frozenset()  # type: ignore[method-assign]
