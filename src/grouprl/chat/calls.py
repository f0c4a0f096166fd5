"""Tool calls in a model's text, in two forms: JSON in tags, as chat models do, and a compact one for tiny models."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

OPEN, CLOSE = "<tool_call>", "</tool_call>"
COMPACT = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)\((.*)\);?", re.DOTALL)
ANSWER = "="
Status = Literal["ok", "malformed", "error", "timeout"]


@dataclass(frozen=True)
class Call:
    """A call as it was written: arguments by name, or their text in order."""

    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True)
class Malformed:
    """Something that was meant as a call, and what is wrong with it."""

    what: str


@dataclass(frozen=True)
class Said:
    """What a turn holds: calls, in order, or the final answer."""

    calls: tuple[Call | Malformed, ...] = ()
    answer: str | None = None


@dataclass(frozen=True)
class Result:
    """What came of a call: the text that the model reads."""

    name: str
    text: str
    status: Status = "ok"


class Form(ABC):
    """How calls are written, and how results are shown."""

    @abstractmethod
    def read(self, text: str) -> Said:
        """Return what a turn holds; never raises."""

    @abstractmethod
    def show(self, results: Sequence[Result]) -> str:
        """Return the observation that follows calls."""

    @abstractmethod
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call as a model writes it; strings in the compact form hold no comma but in the last argument."""

    @abstractmethod
    def answer(self, text: str) -> str:
        """Return a final answer as a model writes it."""

    @abstractmethod
    def introduce(self, schemas: Sequence[Mapping[str, Any]], prompt: str) -> str:
        """Return the prompt of a model without a chat template, with the tools where the form announces them."""


class JsonForm(Form):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number in a turn; without one it is the answer."""

    def read(self, text: str) -> Said:
        """Return the calls in tags; text besides them is thought."""
        before, *pieces = text.split(OPEN)
        if not pieces and CLOSE not in before:
            return Said(answer=text.strip())
        calls = [Malformed(f"{CLOSE} without {OPEN}")] if CLOSE in before else []
        return Said((*calls, *map(_tagged, pieces)))

    def show(self, results: Sequence[Result]) -> str:
        """Return every result in tags of its own."""
        return "".join(f"\n<tool_response>\n{result.text}\n</tool_response>" for result in results) + "\n"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call in tags, on one line."""
        return OPEN + json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False) + CLOSE

    def answer(self, text: str) -> str:
        """Return the text itself."""
        return text

    def introduce(self, schemas: Sequence[Mapping[str, Any]], prompt: str) -> str:
        """Return the tools' schemas, how a call is written, and the prompt."""
        listed = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
        how = f'{OPEN}{{"name": <tool>, "arguments": {{<argument>: <value>}}}}{CLOSE}'
        return f"Tools:\n{listed}\n\nA call: {how}\nAnything without a call is the final answer.\n\n{prompt}"


class CompactForm(Form):
    """`name(first,second)` calls, `=text` answers; results end with '>', and what failed is '!'."""

    def read(self, text: str) -> Said:
        """Return the one call, or the answer."""
        text = text.strip()
        if text.startswith(ANSWER):
            return Said(answer=text[len(ANSWER) :].strip())
        call = COMPACT.fullmatch(text)
        return Said((Call(call[1], call[2]) if call else Malformed("neither name(…) nor =answer"),))

    def show(self, results: Sequence[Result]) -> str:
        """Return the results, or '!' where there is none."""
        return "".join(result.text if result.status == "ok" else "!" for result in results) + ">"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the call."""
        return f"{name}({','.join(str(value) for value in arguments.values())})"

    def answer(self, text: str) -> str:
        """Return the text behind the sign."""
        return ANSWER + text

    def introduce(self, schemas: Sequence[Mapping[str, Any]], prompt: str) -> str:
        """Return the prompt: a tiny model learns what tools there are by using them."""
        return prompt


FORMS: Mapping[str, Form] = {"json": JsonForm(), "compact": CompactForm()}
FormName = Literal["json", "compact"]


def _tagged(piece: str) -> Call | Malformed:
    written, close, _ = piece.partition(CLOSE)
    if not close:
        return Malformed(f"{OPEN} without {CLOSE}")
    try:
        found = json.loads(written)
        if isinstance(found, dict) and isinstance(found.get("arguments"), str):
            found["arguments"] = json.loads(found["arguments"])  # as OpenAI's protocol nests them
    except (ValueError, RecursionError) as error:
        return Malformed(f"the call is no JSON: {error}"[:200])
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return Malformed('the call is no object with a "name"')
    arguments = found.get("arguments", {})
    if not isinstance(arguments, dict):
        return Malformed('the "arguments" of the call are no object')
    return Call(found["name"], arguments)
