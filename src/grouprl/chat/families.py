"""Tool calls as the families of chat models write them, according to their published templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grouprl.chat.calls import Form, call_of, calls_of, named
from grouprl.chat.literals import bare_object, bare_text, python_call, python_calls
from grouprl.chat.scanning import Found, after_space, closed, joined, objects, scanned, unclosed, value_at
from grouprl.chat.turn_content import Call, Malformed, Said
from grouprl.core.errors import InputError, shortened
from grouprl.core.json_types import JsonMapping

Calls = list[Call | Malformed]
MOST_TRIES = 16
"""Most closing signs that are tried as the end of a call, because earlier ones may be part of its texts."""


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


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
        calls = [call_of(value) for value, _ in read]
        return calls, joined([*head.split(self.tag), text[read[-1][1] :].strip(" ;\n")])

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls as objects."""
        return "; ".join(_dumped({"name": call.name, "parameters": named(call)}) for call in calls)


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
        return self.sign + _dumped([{"name": call.name, "arguments": named(call)} for call in calls]) + self.close

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
            return "".join(f"{self.sign}{call.name}{self.arguments}{_dumped(named(call))}" for call in calls)
        return f"{self.sign} " + _dumped([{"name": call.name, "arguments": named(call)} for call in calls])

    def think(self, text: str) -> str:
        """Return thinking as Magistral marks it."""
        return f"[THINK]{text}[/THINK]"

    head = re.compile(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")

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
        return [_named(head[1], value)], end


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
        written = (form.format(parts=self.parts, name=call.name, given=_dumped(named(call))) for call in calls)
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
        return _ended(_named(name.strip(), value), text, end, self.end)


@dataclass(frozen=True)
class PythonicForm(Form):
    """`[name(argument=value), …]`, between signs in some families (Llama 4, LFM 2, OLMo 3, Gemma 3)."""

    opens: str = ""
    closes: str = ""
    lines: bool = False
    """Whether calls are on separate lines instead of in a list."""

    begins = re.compile(r"\s*(?:<\|python_start\|>)?\s*\[\s*[A-Za-z_][\w.-]*\s*\(")
    around = re.compile(r"\s*(?:<\|python_start\|>)?(.*?)(?:<\|python_end\|>)?\s*", re.DOTALL)

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls between the signs, or those that make up the whole turn."""
        if not self.opens:
            bare = self.around.fullmatch(text)
            return (python_calls(bare[1]), "") if bare and self.begins.match(text) else ([], text)
        before, sign, after = text.partition(self.opens)
        if not sign:
            return [], text
        if self.closes not in after:
            return [Malformed(f"{self.opens.strip()} without {self.closes.strip()}")], before
        return _first_sound(after, self.closes, python_calls, before)

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the calls between the signs."""
        written = [python_call(Call(call.name, named(call))) for call in calls]
        inside = "\n".join(written) if self.lines else f"[{', '.join(written)}]"
        return f"{self.opens}{inside}{self.closes}"


@dataclass(frozen=True)
class GemmaForm(Form):
    """`<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>` (Gemma 4); FunctionGemma has other signs."""

    begin: str = "<|tool_call>"
    end: str = "<tool_call|>"
    quote: str = '<|"|>'

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls between the signs."""
        calls, beside = scanned(text, re.compile(re.escape(self.begin)), self.end, self._read)
        return calls, joined(beside)

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the calls between the signs.

        Raises:
            InputError: if a name needs quotes, or a text holds the quotation sign.
        """
        written = (f"call:{call.name}{bare_text(named(call), self.quote)}" for call in calls)
        return "".join(f"{self.begin}{each}{self.end}" for each in written)

    def think(self, text: str) -> str:
        """Return thinking as Gemma marks it."""
        return f"<|channel>thought\n{text}<channel|>"

    def _read(self, text: str, at: int) -> Found:
        stop = at
        for _ in range(MOST_TRIES):  # a sign inside a text does not end the call
            stop = text.find(self.end, stop)
            if stop < 0 or text.count(self.quote, at, stop) % 2 == 0:
                break
            stop += len(self.end)
        stop = text.find(self.end, at) if stop < 0 else stop
        found = re.fullmatch(r"\s*call:\s*([\w.-]+)\s*(\{.*\})\s*", text[at:stop], re.DOTALL) if stop >= 0 else None
        if found is None:
            return [Malformed(f"{self.begin} without {self.end if stop < 0 else 'call:name{…}'}")], at
        return [_named(found[1], bare_object(found[2], self.quote))], stop + len(self.end)


class GlmForm(Form):
    """`<tool_call>name`, then `<arg_key>…</arg_key>` and `<arg_value>…</arg_value>` for each argument (GLM 4.5)."""

    sign, close = re.compile("<tool_call>"), "</tool_call>"
    name = re.compile(r"\s*([^\s{}<>\"]+)\s*(?=<arg_key>|</tool_call>|$)")
    argument = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
    inside = ("<arg_value>", "</arg_value>")
    """Signs that no argument can hold."""

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls in tags."""
        calls, beside = scanned(text, self.sign, self.close, self._read)
        return calls, joined(beside)

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls in tags: texts as they are, anything else as JSON.

        Raises:
            InputError: if an argument holds tags of arguments.
        """
        return "\n".join(f"<tool_call>{call.name}\n{self._arguments(named(call))}</tool_call>" for call in calls)

    def think(self, text: str) -> str:
        """Return thinking as GLM writes it, after the line that the prompt leaves open."""
        return f"\n<think>{text}</think>\n"

    def _arguments(self, given: JsonMapping) -> str:
        pairs = ((key, value if isinstance(value, str) else _dumped(value)) for key, value in given.items())
        return "".join(
            f"<arg_key>{_without(key, ('<', '>'))}</arg_key>\n<arg_value>{_without(value, self.inside)}</arg_value>\n"
            for key, value in pairs
        )

    def _read(self, text: str, at: int) -> Found:
        name = self.name.match(text, at)
        if unclosed(text, at, self.sign, self.close) and self.close not in text[at:]:
            return [Malformed("<tool_call> without </tool_call>")], at
        if name is None:
            return [Malformed("<tool_call> without a name")], at
        end, given = name.end(), dict[str, str]()
        while (found := self.argument.match(text, end)) is not None and not any(
            sign in found[2] for sign in self.inside
        ):
            given[found[1].strip()], end = found[2], found.end()
        behind = closed(text, end, self.close)
        if behind < 0 or any("<" in key for key in given):
            return [Malformed(f"{name[1]}: an <arg_key> without its <arg_value>, or the other way round")], at
        return [Call(name[1], given, untyped=True)], behind


class XmlForm(Form):
    """`<function=name>` and `<parameter=key>` inside `<tool_call>` (Qwen 3 Coder, Qwen 3.5)."""

    sign, close = re.compile("<tool_call>"), "</tool_call>"
    function = re.compile(r"\s*<function=([^>\n]+)>")
    argument = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
    ends = re.compile(r"\s*</function>\s*</tool_call>")
    inside = ("<parameter=", "</parameter>")
    """Signs that no argument can hold."""
    line = "\n"

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls in tags."""
        calls, beside = scanned(text, self.sign, self.close, self._read)
        return calls, joined(beside)

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls in tags: texts as they are, anything else as JSON.

        Raises:
            InputError: if an argument holds tags of arguments.
        """
        return "\n".join(self._written(call) for call in calls)

    def _written(self, call: Call) -> str:
        pairs = ((key, value if isinstance(value, str) else _dumped(value)) for key, value in named(call).items())
        inside = "".join(
            f"<parameter={_without(key, ('>', '<', self.line))}>\n{_without(value, self.inside)}\n</parameter>\n"
            for key, value in pairs
        )
        return f"<tool_call>\n<function={call.name}>\n{inside}</function>\n</tool_call>"

    def _read(self, text: str, at: int) -> Found:
        function = self.function.match(text, at)
        if self.close not in text[at:]:
            return [Malformed("<tool_call> without </tool_call>")], at
        if function is None:
            return [Malformed("<tool_call> without <function=name>…</function>")], at
        end, given = function.end(), dict[str, str]()
        while (found := self.argument.match(text, end)) is not None and not any(
            sign in found[2] for sign in self.inside
        ):
            given[found[1].strip()], end = found[2], found.end()
        if (ended := self.ends.match(text, end)) is not None:
            return [Call(function[1].strip(), given, untyped=True)], ended.end()
        if text.startswith("<parameter=", after_space(text, end)):
            return [Malformed(f"{function[1].strip()}: <parameter=…> without </parameter>")], at
        return [Malformed("<tool_call> without <function=name>…</function>")], at


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
            f"{self.begin}functions.{call.name}:{i}{self.parts}{_dumped(named(call))}{self.end}"
            for i, call in enumerate(calls)
        )
        return self.opens + "".join(written) + self.closes

    def _read(self, text: str, at: int) -> Found:
        parts, stop = text.find(self.parts, at), text.find(self.end, at)
        if stop < 0 or not 0 <= parts < stop:
            return [Malformed(f"{self.begin} without {self.end if stop < 0 else self.parts}")], at
        head = text[at:parts].strip().removeprefix("functions.")
        value, end = value_at(text, parts + len(self.parts))
        return _ended(_named(head.rpartition(":")[0] or head, value), text, end, self.end)


class HarmonyForm(Form):
    """Messages on channels: analysis is thinking, commentary to a function a call, final the answer (gpt-oss)."""

    start, body, ends = "<|start|>", "<|message|>", ("<|end|>", "<|call|>", "<|return|>")
    plain = False
    recipient = re.compile(r"to=(?:functions\.)?([\w.-]+)")
    end = re.compile("|".join(map(re.escape, (start, *ends))))

    def read(self, text: str, opened: bool = False) -> Said:
        """Return the contents of a turn, message by message."""
        if self.body not in text and "<|channel|>" not in text:
            return Said((), text.strip())
        thinking, beside, final = list[str](), list[str](), list[str]()
        calls: list[Call | Malformed] = []
        at = 0
        while at <= len(text):
            head, sign, begins = self._head(text, at)
            to = self.recipient.search(head)
            if to is not None:
                call, at = self._call(to[1], text, begins, bool(sign))
                calls.append(call)
                continue
            stop = self.end.search(text, begins) if sign else None
            said = text[begins : stop.start() if stop else len(text)] if sign else ""
            part = thinking if "analysis" in head else final if "final" in head else beside
            part.append(said)
            at = self._next(text, begins)
        thought = joined(thinking)
        if calls:
            return Said(tuple(calls), None, thought, joined([*beside, *final]))
        return Said((), joined(final or beside), thought)

    def thinking_ends(self, text: str, opened: bool = False) -> int:
        """Return the position after a message on the analysis channel at the beginning of the turn; 0 without one."""
        if not text.lstrip().startswith("<|channel|>analysis"):
            return 0
        at = text.find(self.ends[0])
        return len(text) if at < 0 else at + len(self.ends[0])

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls on the commentary channel."""
        said = self.read(text)
        return list(said.calls), said.beside or said.answer or ""

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls as the template writes them after the `<|start|>assistant` at the end of the prompt."""
        written = (
            f" to=functions.{call.name}<|channel|>commentary json<|message|>{_dumped(named(call))}" for call in calls
        )
        return "<|call|><|start|>assistant".join(written)

    def think(self, text: str) -> str:
        """Return thinking on its channel, up to the beginning of the next message."""
        return f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant"

    def answer(self, text: str) -> str:
        """Return the answer on its channel."""
        return f"<|channel|>final<|message|>{text}"

    def _head(self, text: str, at: int) -> tuple[str, str, int]:
        """Return the head of a message, the sign after it ('' without one), and the start of its body."""
        start, body = text.find(self.start, at), text.find(self.body, at)
        if body < 0 or 0 <= start < body:
            stop = len(text) if start < 0 else start
            return text[at:stop], "", stop
        return text[at:body], self.body, body + len(self.body)

    def _next(self, text: str, at: int) -> int:
        """Return the start of the message after the next `<|start|>`; the end of the text without one."""
        start = text.find(self.start, at)
        return len(text) + 1 if start < 0 else start + len(self.start)

    def _call(self, name: str, text: str, at: int, whole: bool) -> tuple[Call | Malformed, int]:
        """Return the call whose arguments begin at `at`, and the start of the next message."""
        if not whole:
            return Malformed(f"a call to {name} without {self.body}"), self._next(text, at)
        begins = after_space(text, at)
        if begins == len(text):
            return Malformed(f"a call to {name} without arguments; write {{}} for none"), len(text) + 1
        if text.startswith((self.start, *self.ends), begins):
            return Call(name, {}), self._next(text, begins)
        value, end = value_at(text, begins)
        if (
            not isinstance(value, Malformed)
            and after_space(text, end) < len(text)
            and not self.end.match(text, after_space(text, end))
        ):
            value = Malformed("the call is not JSON: something stands behind it")
        return _named(name, value), self._next(text, end)


def _named(name: str, arguments: object) -> Call | Malformed:
    """Return a call from its name and arguments, or its fault."""
    if not name:
        return Malformed("a call without a name")
    return arguments if isinstance(arguments, Malformed) else call_of({"name": name, "arguments": arguments})


def _ended(call: Call | Malformed, text: str, at: int, end: str) -> Found:
    """Return a call if `end` follows it, else its fault."""
    behind = -1 if isinstance(call, Malformed) else closed(text, at, end) if at >= 0 else -1
    if behind < 0 and isinstance(call, Call):
        call = Malformed("the call is not JSON: something stands behind it")
    return [call], max(behind, 0)


def _first_sound(text: str, close: str, read: Callable[[str], Calls], before: str) -> tuple[Calls, str]:
    """Return the calls before the first `close` that leaves them sound, or else before the first `close`."""
    stop, first = -1, text.find(close)
    for _ in range(MOST_TRIES):
        stop = text.find(close, stop + 1)
        if stop < 0:
            break
        calls = read(text[:stop])
        if not any(isinstance(call, Malformed) for call in calls):
            return calls, joined([before, text[stop + len(close) :]])
    return read(text[:first]), joined([before, text[first + len(close) :]])


def _without(text: str, signs: Sequence[str]) -> str:
    """Return a text; raise InputError if it holds one of the signs that would end it."""
    found = next((sign for sign in signs if sign in text), None)
    if found is not None:
        raise InputError(
            f"the argument {shortened(text, 80)} cannot be written in this syntax of tool calls",
            f"it holds {found!r}, which would end it",
            "Set sampling.tool_calls to a syntax that writes JSON, such as hermes",
        )
    return text
