"""Tool calls written as JSON: Llama, lists of calls, Mistral, DeepSeek, Kimi."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.chat.calls import Form, call_of, calls_of, named
from grouprl.chat.forms.endings import Calls, call_named, dumped, ended
from grouprl.chat.scanning import Found, after_space, closed, joined, objects, scanned, value_at
from grouprl.chat.turn_content import Call, Malformed


class LlamaForm(Form):
    """`{"name": …, "parameters": {…}}` as the whole turn; several calls are separated by `;` (Llama 3)."""

    begins = re.compile(r'\{\s*"(?:type"\s*:\s*"function"\s*,\s*")?(?:name|function)"\s*:')
    tag = "<|python_tag|>"

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls, objects with a name and parameters; any other text is the answer."""
        found = self.begins.search(text)
        head = text if found is None else text[: found.start()]
        if found is None:
            flaw = Malformed(f'no object with a "name" after {self.tag}')
            return ([flaw], text.partition(self.tag)[0]) if self.tag in text else ([], text)
        read = list(objects(text, found.start()))
        if self.is_bare(text) and not any(_asks(value) for value, _ in read):
            return [], text  # an object of an answer, such as a record with a name
        calls = [call_of(value) for value, _ in read]
        return calls, joined([*head.split(self.tag), text[read[-1][1] :].strip(" ;\n")])

    def is_bare(self, text: str) -> bool:
        """Return whether the tag is absent."""
        return self.tag not in text

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls as objects."""
        return "; ".join(dumped({"name": call.name, "parameters": named(call)}) for call in calls)


def _asks(value: object) -> bool:
    """Return whether a JSON value is a call, one that cannot be read included, or a list that holds one."""
    if isinstance(value, list):
        return any(map(_asks, value))
    if not isinstance(value, dict):
        return isinstance(value, Malformed)
    inner = value.get("function")
    return bool({"parameters", "arguments"} & set(inner if isinstance(inner, dict) else value))


@dataclass(frozen=True)
class ListForm(Form):
    """A sign and a JSON list of calls: `<|tool_call|>[{"name": …, "arguments": {…}}]` (Granite 3, Phi 4 mini)."""

    sign: str
    close: str = ""
    others: tuple[str, ...] = ()
    """Further signs that are read but never written."""

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls of the lists after the signs."""
        sign = re.compile("|".join(map(re.escape, (self.sign, *self.others))))
        calls, beside = scanned(text, sign, self.close, self._list)
        return calls, joined([each.replace(self.close, "") if self.close else each for each in beside])

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the list of calls after the sign."""
        return self.sign + dumped([{"name": call.name, "arguments": named(call)} for call in calls]) + self.close

    def _list(self, text: str, at: int) -> Found:
        if after_space(text, at) == len(text):
            return [Malformed(f"nothing follows {self.sign}")], at
        value, end = value_at(text, at)
        return calls_of(value), end


@dataclass(frozen=True)
class MistralForm(Form):
    """`[TOOL_CALLS] [{"name": …, "arguments": {…}}]`, or since Mistral Small 3.2 `[TOOL_CALLS]name[ARGS]{…}`."""

    named: bool = False
    """Whether to write calls in the later form; both forms are read."""

    sign = "[TOOL_CALLS]"
    arguments = "[ARGS]"

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls after the sign."""
        calls, beside = scanned(text, re.compile(re.escape(self.sign)), "", self._read)
        return calls, joined(beside)

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the calls after the sign."""
        if self.named:
            return "".join(f"{self.sign}{call.name}{self.arguments}{dumped(named(call))}" for call in calls)
        return f"{self.sign} " + dumped([{"name": call.name, "arguments": named(call)} for call in calls])

    def think(self, text: str) -> str:
        """Return thinking as Magistral marks it."""
        return f"[THINK]{text}[/THINK]"

    head = re.compile(r"\s*([^\s\[\]{}\"',]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")

    def _read(self, text: str, at: int) -> Found:
        if text.startswith(("[", "{"), after_space(text, at)) and not text.startswith(
            self.arguments, after_space(text, at)
        ):
            value, end = value_at(text, at)
            return calls_of(value), end
        head = self.head.match(text, at)
        if head is None:
            return [Malformed(f"{self.sign} is followed by neither a list of calls nor name{self.arguments}{{…}}")], at
        value, end = value_at(text, head.end())
        return [call_named(head[1], value)], end


@dataclass(frozen=True)
class DeepSeekForm(Form):
    """`<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, then JSON in a fence (V3, R1); since V3.1 name, sign, JSON."""

    fenced: bool = True
    """Whether to write calls in the earlier form; both forms are read."""

    opens, closes = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    begin, parts, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    sign = re.compile(re.escape(begin))

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls between the signs."""
        calls, beside = scanned(text, self.sign, self.end, self._read)
        if not calls and self.opens in text:
            calls = [Malformed(f"{self.opens} without {self.begin}")]
        return calls, joined([each.replace(self.opens, "").replace(self.closes, "") for each in beside])

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the calls between the signs."""
        form = "function{parts}{name}\n```json\n{given}\n```" if self.fenced else "{name}{parts}{given}"
        written = (form.format(parts=self.parts, name=call.name, given=dumped(named(call))) for call in calls)
        between = "\n" if self.fenced else ""
        return self.opens + between.join(f"{self.begin}{each}{self.end}" for each in written) + self.closes

    def _read(self, text: str, at: int) -> Found:
        parts, stop = text.find(self.parts, at), text.find(self.end, at)
        if stop < 0 or not 0 <= parts < stop:
            return [Malformed(f"{self.begin} without {self.end if stop < 0 else self.parts}")], at
        left, behind = text[at:parts], parts + len(self.parts)
        fence = text.find("```json", behind)
        fenced = fence >= 0 and "{" not in text[behind:fence]
        name = text[behind:fence] if fenced else left
        value, end = value_at(text, fence + len("```json") if fenced else behind)
        end = closed(text, end, "```") if fenced and not isinstance(value, Malformed) else end
        return ended(call_named(name.strip(), value), text, end, self.end)


class KimiForm(Form):
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>` (Kimi K2)."""

    opens, closes = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    begin, parts, end = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    sign = re.compile(re.escape(begin))

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls between the signs."""
        calls, beside = scanned(text, self.sign, self.end, self._read)
        return calls, joined([each.replace(self.opens, "").replace(self.closes, "") for each in beside])

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the calls between the signs, numbered."""
        written = (
            f"{self.begin}functions.{call.name}:{i}{self.parts}{dumped(named(call))}{self.end}"
            for i, call in enumerate(calls)
        )
        return self.opens + "".join(written) + self.closes

    def _read(self, text: str, at: int) -> Found:
        parts, stop = text.find(self.parts, at), text.find(self.end, at)
        if stop < 0 or not 0 <= parts < stop:
            return [Malformed(f"{self.begin} without {self.end if stop < 0 else self.parts}")], at
        head = text[at:parts].strip().removeprefix("functions.")
        value, end = value_at(text, parts + len(self.parts))
        return ended(call_named(head.rpartition(":")[0] or head, value), text, end, self.end)
