"""Tool calls of families whose templates name the parts of a call in their own words: Command R and functionary."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.chat.calls import Form, call_of, named
from grouprl.chat.scanning import Found, after_space, closed, joined, scanned, value_at
from grouprl.chat.turn_content import Call, Malformed, Said
from grouprl.core.json_types import JsonObject

Calls = list[Call | Malformed]


@dataclass(frozen=True)
class CommandForm(Form):
    """`<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>` (Command R7B, A); R+ has other signs."""

    opens: str = "<|START_ACTION|>"
    closes: str = "<|END_ACTION|>"
    response: tuple[str, str] = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    """The signs around an answer; ("", "") for none."""
    numbered: bool = True
    """Whether to number the calls of a turn."""

    @property
    def plain(self) -> bool:  # type: ignore[override]
        """True if an answer is the sampled text itself."""
        return not self.response[0]

    def read(self, text: str, opened: bool = False) -> Said:
        """Return the contents of a turn, without the signs around its answer."""
        said = super().read(text, opened)
        if said.answer is None or self.plain:
            return said
        before, sign, rest = said.answer.partition(self.response[0])
        answer = rest.partition(self.response[1])[0] if sign else before
        return Said(said.calls, answer.strip(), said.thinking)

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls of the lists between the signs."""
        calls, beside = scanned(text, re.compile(re.escape(self.opens)), self.closes, self._list)
        return calls, joined(beside)

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the list of calls between the signs."""
        found = [self._object(number, call) for number, call in enumerate(calls)]
        return f"{self.opens}{json.dumps(found, ensure_ascii=False)}{self.closes}"

    def think(self, text: str) -> str:
        """Return thinking as Command marks it."""
        return f"<|START_THINKING|>{text}<|END_THINKING|>"

    def answer(self, text: str) -> str:
        """Return the answer between its signs."""
        return f"{self.response[0]}{text}{self.response[1]}"

    def _object(self, number: int, call: Call) -> JsonObject:
        numbered = {"tool_call_id": str(number)} if self.numbered else {}
        return {**numbered, "tool_name": call.name, "parameters": named(call)}

    def _list(self, text: str, at: int) -> Found:
        value, end = value_at(text, at)
        behind = -1 if isinstance(value, Malformed) else closed(text, end, self.closes.strip())
        if isinstance(value, Malformed) or behind < 0:
            what = f"{self.opens.strip()} without {self.closes.strip()}"
            return [value if isinstance(value, Malformed) else Malformed(what)], at
        calls = [_command(each) for each in value] if isinstance(value, list) else [_command(value)]
        return calls or [Malformed("the list of calls is empty")], behind


class FunctionTagForm(Form):
    """`<function=name>{…}</function>` (functionary 3.1)."""

    sign, close = re.compile("<function="), "</function>"
    name = re.compile(r"([^<>\n]+)>")

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls in tags."""
        calls, beside = scanned(text, self.sign, self.close, self._read)
        return calls, joined(beside)

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls in tags."""
        return "".join(f"<function={call.name}>{_dumped(call)}{self.close}" for call in calls)

    def _read(self, text: str, at: int) -> Found:
        name = self.name.match(text, at)
        if name is None:
            return [Malformed("<function=…> without a name")], at
        value, end = value_at(text, name.end())
        behind = -1 if isinstance(value, Malformed) else closed(text, end, self.close)
        if behind < 0:
            flaw = (
                value if isinstance(value, Malformed) else Malformed(f"{name[1]}: no {self.close} after its arguments")
            )
            return [flaw], at
        return [call_of({"name": name[1].strip(), "arguments": value})], behind


class RecipientForm(Form):
    """`>>>name`, and JSON on the next line; `>>>all` begins an answer (functionary 3.2)."""

    plain = False
    sign = ">>>"
    ends = (sign, "<|")
    """The text that may follow a call: the next part, or the token that ends the turn."""
    everyone = "all"
    head = re.compile(r"(?:>>>)?([A-Za-z_][\w.-]*|(?=\n\{))\n")

    def read(self, text: str, opened: bool = False) -> Said:
        """Return the contents of a turn, part by part; its first `>>>` may be the end of the prompt."""
        calls, beside = self.read_calls(text)
        return Said(tuple(calls), None, "", beside) if calls else Said((), beside)

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls, and what is said to everyone."""
        calls, beside, at = list[Call | Malformed](), list[str](), 0
        while (found := self.head.match(text, at)) is not None and (at == 0 or text.startswith(self.sign, at)):
            following = text.find(self.sign, found.end())
            stop = len(text) if following < 0 else following
            begins = after_space(text, found.end())
            if found[1] == self.everyone:
                beside.append(text[found.end() : stop])
            elif not text.startswith("{", begins):
                return calls, joined([*beside, text[at:]])
            else:
                value, end = value_at(text, begins)
                whole = after_space(text, end)
                value = value if found[1] else Malformed("a call without a name")
                sound = not isinstance(value, Malformed) and (whole == len(text) or text.startswith(self.ends, whole))
                flaw = (
                    value if isinstance(value, Malformed) else Malformed("the call is not JSON: something follows it")
                )
                calls.append(call_of({"name": found[1], "arguments": value}) if sound else flaw)
                stop = whole if sound else stop
            at = stop
        rest = "" if calls and text.startswith(self.ends[1], at) else text[at:]
        return calls, joined([*beside, rest])

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls as the template writes them after the `>>>` at the end of the prompt."""
        return self.sign.join(f"{call.name}\n{_dumped(call)}" for call in calls)

    def think(self, text: str) -> str:
        """Return thinking as what is said to everyone before a call; the syntax has no signs for it."""
        return ""

    def answer(self, text: str) -> str:
        """Return an answer to everyone."""
        return f"{self.everyone}\n{text}"


def _command(found: object) -> Call | Malformed:
    """Return the call in an object with a tool's name and parameters, or its fault."""
    if not isinstance(found, dict) or not isinstance(found.get("tool_name"), str):
        return Malformed('the call is not an object with a "tool_name"')
    return call_of(
        {"name": found["tool_name"], "arguments": found.get("parameters", {}), "id": found.get("tool_call_id")}
    )


def _dumped(call: Call) -> str:
    return json.dumps(named(call), ensure_ascii=False)
