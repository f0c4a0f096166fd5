"""Tiny policies that chat, for tests of what speaks the chat completions protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from grouprl.policy import PRINTABLE, load_policy

TOOLS = (
    "{% if tools %}<|tools|>{% for tool in tools %}{{ tool.function.name }};{% endfor %}<eos>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n</tool_call>{% endfor %}<eos>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def chatting(template: str | None = TOOLS, **sizes: int) -> Any:
    """A policy with random weights and a chat template."""
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 2048, **sizes}
    policy = load_policy("tiny", alphabet=PRINTABLE, **sizes)
    policy.tokenizer.chat_template = template
    return policy


CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


FORGETFUL = CHATML.replace(
    "{{ m['content'] }}",
    "{{ m['content'].split('</think>')[-1] if m['role'] == 'assistant' and not loop.last else m['content'] }}",
)


def scripted(policy: Any, texts: Iterator[str]) -> Any:
    """A sampler that writes given texts, for one request at a time."""
    from grouprl.rollout.local.decode_loop import Written

    written = {}

    def decode(_, requests, **settings):
        (request,) = requests
        prompt, budget = request.prompt, request.budget
        start = next((key for key in written if prompt[: len(key)] == key and prompt != key), None)
        if start is None or not written[start]:
            start = prompt
            written[start] = [*policy.encode(next(texts)), policy.eos_ids[0]]
        ids, written[start] = written[start][:budget], written[start][budget:]
        zeros = torch.zeros(1, len(ids))
        return Written((tuple(ids),), zeros, zeros, torch.zeros(1, dtype=torch.bool))

    return decode
