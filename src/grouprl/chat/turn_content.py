"""The contents of a turn (thinking, tool calls in order, or the final answer), and the results of calls."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from grouprl.core.json_types import JsonMapping

Status = Literal["ok", "malformed", "error", "timeout"]
THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought\n", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""The signs around thinking: of Qwen, DeepSeek, GLM and others; of Mistral; of Gemma; of Seed-OSS; of Command."""


@dataclass(frozen=True)
class Call:
    """A call as the model wrote it: arguments by name, or one text of positional arguments."""

    name: str
    arguments: JsonMapping | str
    untyped: bool = False
    """Whether the syntax writes every argument as text, so that only the tool's schema determines its type."""
    id: str = field(default="", compare=False)
    """The call's own id, if the model wrote one."""

    def __str__(self) -> str:
        """Return the name and the arguments, which are equal for equal calls."""
        return f"{self.name}({json.dumps(self.arguments, sort_keys=True, default=str)})"


@dataclass(frozen=True)
class Malformed:
    """A failed attempt to write a call, with its fault."""

    what: str


@dataclass(frozen=True)
class Said:
    """The contents of a turn: calls, in order, or the final answer."""

    calls: tuple[Call | Malformed, ...] = ()
    answer: str | None = None
    thinking: str = ""
    """Reasoning that is not part of the answer."""
    beside: str = field(default="", compare=False)
    """Text around the calls that is not marked as thinking."""


@dataclass(frozen=True)
class Result:
    """The result of a call: the text that the model reads."""

    name: str
    text: str
    status: Status = "ok"


class Spoken(str):
    """An action together with its contents in the policy's own syntax; environments see the sampled text."""

    said: Said
    counted: tuple[int, int] | None
    """Numbers of tokens that were read before it and sampled for it, where an environment needs them."""

    def __new__(cls, text: str, said: Said, counted: tuple[int, int] | None = None) -> Spoken:
        """Return the text together with its contents, `said`."""
        made = super().__new__(cls, text)
        made.said, made.counted = said, counted
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return Spoken, (str(self), self.said, self.counted)


def split_thinking(text: str, opened: bool = False) -> tuple[str, str]:
    """Return (thinking, the rest) of a turn.

    Thinking that is never closed takes the whole turn. With `opened`, the prompt ends with the sign that begins it.
    """
    found = _thought(text, opened)
    if found is None:
        return "", text
    _, begin, end, behind = found
    return text[begin:end].strip(), text[behind:].lstrip("\n")


def told_apart(text: str) -> tuple[str, str]:
    """Return (thinking, answer) of a partly sampled turn; text that may still belong to either is left out.

    Both only grow as the text grows.
    """
    lead = text.lstrip()
    for begin, end in THOUGHTS:
        if lead.startswith(begin):
            inside, closed, after = lead[len(begin) :].partition(end)
            if closed:
                return inside.strip(), after.strip()
            held = next((n for n in range(len(end) - 1, 0, -1) if inside.endswith(end[:n])), 0)
            return inside[: len(inside) - held].strip(), ""
        if begin.startswith(lead):
            return "", ""
    return "", text


def thinking_span(text: str, opened: bool = False) -> tuple[int, int]:
    """Return the start and end of thinking in a turn, including its signs; equal numbers without thinking."""
    found = _thought(text, opened)
    return (0, 0) if found is None else (found[0], found[3])


def thinking_leads(text: str) -> bool:
    """Return whether a turn begins with a sign for the start of thinking."""
    return text.lstrip().startswith(tuple(begin for begin, _ in THOUGHTS))


def _thought(text: str, opened: bool) -> tuple[int, int, int, int] | None:
    """Return the start of the first thinking, without and with its signs, and its end in the same way.

    The sign at the beginning of a turn determines the sign that ends its thinking; without one, any may end it.
    """
    lead = text.lstrip()
    at = len(text) - len(lead)
    for begin, end in THOUGHTS:
        if lead.startswith(begin):
            stop = text.find(end, at + len(begin))
            return (
                (at, at + len(begin), len(text), len(text))
                if stop < 0
                else (at, at + len(begin), stop, stop + len(end))
            )
    closing = [(text.find(end), begin, end) for begin, end in THOUGHTS if end in text]
    for stop, begin, end in sorted(closing):
        if begin not in text[:stop]:
            return 0, 0, stop, stop + len(end)
    return (0, 0, len(text), len(text)) if opened else None
