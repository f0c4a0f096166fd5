"""What a turn holds: thinking, tool calls in order, or the final answer; and what came of the calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from grouprl.core.json_types import JsonMapping

Status = Literal["ok", "malformed", "error", "timeout"]
THOUGHTS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>thought\n", "<channel|>"))
"""What thinking stands between, in the families that mark it: Qwen, DeepSeek, GLM and others; Mistral; Gemma."""


@dataclass(frozen=True)
class Call:
    """A call as it was written: arguments by name, or their text in order."""

    name: str
    arguments: JsonMapping | str
    untyped: bool = False
    """Whether the syntax writes every argument as text, so that only the tool's schema tells its type."""
    id: str = field(default="", compare=False)
    """The call's own id, where one was written."""


@dataclass(frozen=True)
class Malformed:
    """Something that was meant as a call, and what is wrong with it."""

    what: str


@dataclass(frozen=True)
class Said:
    """What a turn holds: calls, in order, or the final answer."""

    calls: tuple[Call | Malformed, ...] = ()
    answer: str | None = None
    thinking: str = ""
    """Reasoning that is no part of the answer."""
    beside: str = field(default="", compare=False)
    """Text besides the calls that is not marked as thinking."""


@dataclass(frozen=True)
class Result:
    """What came of a call: the text that the model reads."""

    name: str
    text: str
    status: Status = "ok"


class Spoken(str):
    """An action with what it holds by the policy's own syntax; for an environment it is the text that was sampled."""

    said: Said

    def __new__(cls, text: str, said: Said) -> Spoken:
        """Return the text with what it holds."""
        made = super().__new__(cls, text)
        made.said = said
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return Spoken, (str(self), self.said)


def split_thinking(text: str, opened: bool = False) -> tuple[str, str]:
    """Return (thinking, the rest) of a turn.

    Thinking that is never closed is all there is; `opened`: the prompt ends with the sign that begins it.
    """
    found = _thought(text, opened)
    if found is None:
        return "", text
    _, begin, end, behind = found
    return text[begin:end].strip(), text[behind:].lstrip("\n")


def told_apart(text: str) -> tuple[str, str]:
    """Return (thinking, answer) of a turn as far as it was sampled; what is not yet sure is left out of both.

    Both only grow while the text does.
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
    """Return where thinking begins and ends in a turn, its signs included; equal numbers where there is none."""
    found = _thought(text, opened)
    return (0, 0) if found is None else (found[0], found[3])


def thinking_leads(text: str) -> bool:
    """Return whether a turn begins with a sign that begins thinking."""
    return text.lstrip().startswith(tuple(begin for begin, _ in THOUGHTS))


def _thought(text: str, opened: bool) -> tuple[int, int, int, int] | None:
    """Return where thinking in front begins, without and with its signs, and where it ends likewise.

    The sign that begins a turn says which one ends its thinking; only where none does, any one may.
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
