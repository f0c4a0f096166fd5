"""The forms of tool calls in a model's text: one per model family, and a compact one for tiny models."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from grouprl.chat.scanning import Found, after_space, closed, joined, scanned, unclosed, value_at
from grouprl.chat.turn_content import (
    THOUGHTS,
    Call,
    Malformed,
    Result,
    Said,
    Spoken,
    Status,
    split_thinking,
    thinking_leads,
    thinking_span,
)
from grouprl.core.json_types import JsonMapping, JsonObject

__all__ = [
    "Call",
    "CompactForm",
    "Form",
    "JsonForm",
    "Malformed",
    "Result",
    "Said",
    "Spoken",
    "Status",
    "call_of",
    "joined",
    "read_json",
]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TAG = re.compile(re.escape(OPEN))
COMPACT = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)\((.*)\);?", re.DOTALL)
ANSWER = "="


class Form(ABC):
    """A form of tool calls and their results. A form of your own overrides `read_calls` and `write_all`."""

    announces = True
    """Whether tools are announced to the model, by its template or in the prompt."""
    plain = True
    """Whether an answer is the sampled text itself, apart from thinking before it."""

    def read(self, text: str, opened: bool = False) -> Said:
        """Return the contents of a turn; never raise. With `opened`, the prompt ended with the start of thinking."""
        thinking, rest = ("", text) if self._stray(text, opened) else split_thinking(text, opened)
        calls, beside = self.read_calls(rest)
        if calls:
            return Said(tuple(calls), None, thinking, beside.strip())
        return Said((), rest.strip(), thinking)

    def thinking_ends(self, text: str, opened: bool = False) -> int:
        """Return the position after the thinking at the beginning of a turn, including its signs; 0 without any."""
        return 0 if self._stray(text, opened) else thinking_span(text, opened)[1]

    def _stray(self, text: str, opened: bool) -> bool:
        """Return whether the sign that ends thinking occurs only inside a call, in a turn without thinking."""
        ends = [end for _, end in THOUGHTS if end in text]
        if opened or not ends or thinking_leads(text):
            return False
        calls, beside = self.read_calls(text)
        return any(isinstance(call, Call) for call in calls) and not any(end in beside for end in ends)

    def is_bare(self, text: str) -> bool:
        """Return whether no sign shows that a turn holds calls, so that an answer may look like one."""
        return False

    def read_for(self, text: str, tools: Collection[str], opened: bool = False) -> Said:
        """Return the contents of a turn for which tools of these names were announced.

        Objects that only their form marks as calls are an answer if none of them names such a tool.
        """
        said = self.read(text, opened)
        named = {call.name for call in said.calls if isinstance(call, Call)}
        if not tools or not named or named & set(tools) or not self.is_bare(text):
            return said
        return Said((), text[self.thinking_ends(text, opened) :].strip(), said.thinking)

    @abstractmethod
    def read_calls(self, text: str) -> tuple[list[Call | Malformed], str]:
        """Return the calls of a turn without its thinking, in order, and the other text; never raise."""

    @abstractmethod
    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the calls of one turn as a model writes them."""

    def write(self, name: str, arguments: JsonMapping) -> str:
        """Return a call as a model writes it; in the compact form only the last argument may hold commas."""
        return self.write_all([Call(name, arguments)])

    def think(self, text: str) -> str:
        """Return thinking as a model writes it at the beginning of a turn."""
        return f"<think>\n{text}\n</think>\n\n"

    def answer(self, text: str) -> str:
        """Return a final answer as a model writes it."""
        return text

    def show(self, results: Sequence[Result]) -> str:
        """Return the results of calls as one text, each in tags, for templates without messages for results."""
        return "".join(f"\n<tool_response>\n{result.text}\n</tool_response>" for result in results) + "\n"

    def introduce(self, schemas: Sequence[Mapping[str, object]], prompt: str) -> str:
        """Return the prompt after the tools' schemas and instructions, for templates that do not announce tools."""
        return f"{self.announce(schemas)}\n\n{prompt}"

    def announce(self, schemas: Sequence[Mapping[str, object]]) -> str:
        """Return the tools' schemas, and how a call is written."""
        listed = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
        how = self.write("NAME", {"ARGUMENT": "VALUE"})
        return f"Tools:\n{listed}\n\nA call: {how}\nAnything without a call is the final answer."


class JsonForm(Form):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number in a turn: Hermes, Qwen, SmolLM, Granite 4."""

    def read_calls(self, text: str) -> tuple[list[Call | Malformed], str]:
        """Return the calls in tags, and the other text."""
        calls, beside = scanned(text, TAG, CLOSE, _tagged)
        stray = [Malformed(f"{CLOSE} without {OPEN}")] if CLOSE in beside[0] else []
        return [*stray, *calls], "".join(beside)

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls in tags, each on one line."""
        written = (json.dumps({"name": call.name, "arguments": named(call)}, ensure_ascii=False) for call in calls)
        return "\n".join(f"{OPEN}{each}{CLOSE}" for each in written)

    def announce(self, schemas: Sequence[Mapping[str, object]]) -> str:
        """Return the tools' schemas, and how a call is written."""
        listed = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
        how = f'{OPEN}{{"name": <tool>, "arguments": {{<argument>: <value>}}}}{CLOSE}'
        return f"Tools:\n{listed}\n\nA call: {how}\nAnything without a call is the final answer."


class CompactForm(Form):
    """`name(first,second)` is a call, `=text` an answer; results end with '>', and a failed call gives '!'."""

    announces = False

    def read(self, text: str, opened: bool = False) -> Said:
        """Return the single call, or the answer."""
        text = text.strip()
        if text.startswith(ANSWER):
            return Said(answer=text[len(ANSWER) :].strip())
        return Said(tuple(self.read_calls(text)[0]))

    def read_calls(self, text: str) -> tuple[list[Call | Malformed], str]:
        """Return the single call of the turn."""
        call = COMPACT.fullmatch(text.strip())
        return [Call(call[1], call[2]) if call else Malformed("neither name(…) nor =answer")], ""

    def show(self, results: Sequence[Result]) -> str:
        """Return the results, with '!' for a failed call."""
        return "".join(result.text if result.status == "ok" else "!" for result in results) + ">"

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the call as `name(first,second)`."""
        return "".join(f"{call.name}({','.join(str(value) for value in named(call).values())})" for call in calls)

    def think(self, text: str) -> str:
        """Return an empty text: tiny models write no thinking."""
        return ""

    def answer(self, text: str) -> str:
        """Return the answer with the sign `=` before it."""
        return ANSWER + text

    def introduce(self, schemas: Sequence[Mapping[str, object]], prompt: str) -> str:
        """Return the prompt unchanged: a tiny model learns the tools by using them."""
        return prompt


def named(call: Call) -> JsonObject:
    """Return the arguments of a call by name; positional ones have their numbers as names."""
    return dict(call.arguments) if not isinstance(call.arguments, str) else {"0": call.arguments}


def read_json(text: str) -> object | Malformed:
    """Return the JSON value of a text, or its fault."""
    found, end = value_at(text, 0)
    if not isinstance(found, Malformed) and after_space(text, end) < len(text):
        return Malformed("the call is not JSON: something follows it")
    return found


def call_of(found: object) -> Call | Malformed:
    """Return the call in an object with a name and arguments (or parameters), or its fault."""
    if isinstance(found, Malformed):
        return found
    if isinstance(found, dict) and isinstance(found.get("function"), dict):
        found = found["function"]
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return Malformed('the call is not an object with a "name"')
    key = "arguments" if "arguments" in found or "parameters" not in found else "parameters"
    arguments = found.get(key, {})
    if isinstance(arguments, str):  # OpenAI's protocol nests calls this way
        arguments = read_json(arguments)
    if isinstance(arguments, Malformed):
        return arguments
    if not isinstance(arguments, dict):
        return Malformed(f'the "{key}" of the call are not an object')
    return Call(found["name"], arguments, id=found["id"] if isinstance(found.get("id"), str) else "")


def calls_of(found: object) -> list[Call | Malformed]:
    """Return the calls in a list of objects, in order, or in a single object."""
    if isinstance(found, list):
        return [call_of(each) for each in found] or [Malformed("the list of calls is empty")]
    return [call_of(found)]


def _tagged(text: str, at: int) -> Found:
    """Return the call between two tags, the first of which ends at `at`."""
    value, end = value_at(text, at)
    behind = -1 if isinstance(value, Malformed) else closed(text, end, CLOSE)
    if behind >= 0:
        return [call_of(value)], behind
    if unclosed(text, at, TAG, CLOSE):
        return [Malformed(f"{OPEN} without {CLOSE}")], at
    return [value if isinstance(value, Malformed) else Malformed("the call is not JSON: something follows it")], at
