"""One prompt of a task, and the forms that a prompt has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from grouprl.core.json_types import JsonMapping

Split = Literal["train", "eval"]
Columns: TypeAlias = JsonMapping
"""A prompt's fields in a data set besides its text, by name; a reward names those that it reads."""


class Message(TypedDict):
    """One chat message; an assistant's may hold tool calls, and a tool's names the call that it answers."""

    role: str
    content: str
    tool_calls: NotRequired[Sequence[JsonMapping]]
    name: NotRequired[str]
    tool_call_id: NotRequired[str]


Prompt = str | tuple[Message, ...]


@dataclass(frozen=True)
class Example:
    """One prompt.

    `id` is stable and unique within the task; `prompt` is plain text or chat messages; `columns` is what the reward
    receives as keyword arguments; `level` is the difficulty, 0 if unknown.
    """

    id: str
    prompt: str | tuple[Message, ...]
    columns: Columns = field(default_factory=dict)
    level: int = 0


class Chat(tuple[JsonMapping, ...]):
    """Chat messages that are a prompt, with the JSON schemas of the `tools` that the template announces.

    `variables` are passed to the chat template.
    """

    tools: tuple[JsonMapping, ...]
    variables: Mapping[str, object]

    def __new__(
        cls,
        messages: Iterable[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] = (),
        variables: Mapping[str, object] | None = None,
    ) -> Chat:
        """Return the messages with their tools and variables."""
        made = super().__new__(cls, messages)
        made.tools, made.variables = tuple(tools), dict(variables or {})
        return made


def prompt_text(prompt: Prompt) -> str:
    """Return a prompt as one text: chat messages as `role: content` lines, followed by tool calls as JSON."""
    return prompt if isinstance(prompt, str) else "\n".join(map(_line, prompt))


def _line(message: JsonMapping) -> str:
    calls = [json.dumps(call.get("function", call), ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return " ".join(part for part in (f"{message['role']}:", message.get("content") or "", *calls) if part)
