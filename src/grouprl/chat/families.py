"""Tool calls as the families of chat models write them. What stands here are facts of their published templates."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.chat.calls import Form, call_of, calls_of, joined, named, objects, read_json
from grouprl.chat.literals import bare_object, bare_text, python_call, python_calls
from grouprl.chat.said import Call, Malformed, Said
from grouprl.core.json_types import JsonMapping

Calls = list[Call | Malformed]


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


class LlamaForm(Form):
    """`{"name": …, "parameters": {…}}` as the whole turn; several one after another, parted by `;` (Llama 3)."""

    begins = re.compile(r'\{\s*"(?:type"\s*:\s*"function"\s*,\s*")?(?:name|function)"\s*:')
    tag = "<|python_tag|>"

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls: objects with a name and parameters; any other text is the answer."""
        before, tagged, after = text.partition(self.tag)
        found = self.begins.search(after if tagged else text)
        if found is None:
            return ([Malformed(f'no object with a "name" after {self.tag}')], before) if tagged else ([], text)
        whole = after if tagged else text
        calls, end = [], found.start()
        for value, at in objects(whole[end:]):
            calls.append(call_of(value))
            last = at
        return calls, joined([before if tagged else "", whole[:end], whole[end + last :].strip(" ;\n")])

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls as objects."""
        return "; ".join(_dumped({"name": call.name, "parameters": named(call)}) for call in calls)


@dataclass(frozen=True)
class ListForm(Form):
    """A sign and a JSON list of calls: `<|tool_call|>[{"name": …, "arguments": {…}}]` (Granite 3, Phi 4 mini)."""

    sign: str
    close: str = ""
    others: tuple[str, ...] = ()
    """Further signs that are understood."""

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls of the lists behind the signs."""
        before, *pieces = re.split("|".join(map(re.escape, (self.sign, *self.others))), text)
        calls: Calls = []
        beside = [before]
        for piece in pieces:
            value, end = next(objects(piece.lstrip()), (Malformed(f"nothing follows {self.sign}"), 0))
            calls += calls_of(value)
            beside.append(piece.lstrip()[end:].replace(self.close, "") if self.close else piece.lstrip()[end:])
        return calls, joined(beside)

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the list behind the sign."""
        return self.sign + _dumped([{"name": call.name, "arguments": named(call)} for call in calls]) + self.close


@dataclass(frozen=True)
class MistralForm(Form):
    """`[TOOL_CALLS] [{"name": …, "arguments": {…}}]`, or since Mistral Small 3.2 `[TOOL_CALLS]name[ARGS]{…}`."""

    named: bool = False
    """Whether calls are written in the later way; both are read."""

    sign = "[TOOL_CALLS]"
    arguments = "[ARGS]"

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls behind the sign."""
        before, *pieces = text.split(self.sign)
        calls: Calls = []
        beside = [before]
        for piece in map(str.strip, pieces):
            if piece.startswith(("[", "{")):
                value, end = next(objects(piece))
                calls += calls_of(value)
                beside.append(piece[end:])
            else:
                calls.append(self._named(piece))
        return calls, joined(beside)

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the calls behind the sign."""
        if self.named:
            return "".join(f"{self.sign}{call.name}{self.arguments}{_dumped(named(call))}" for call in calls)
        return f"{self.sign} " + _dumped([{"name": call.name, "arguments": named(call)} for call in calls])

    def think(self, text: str) -> str:
        """Return thinking as Magistral marks it."""
        return f"[THINK]{text}[/THINK]"

    def _named(self, piece: str) -> Call | Malformed:
        head, sign, written = piece.partition(self.arguments)
        if not sign:
            at = head.find("{")
            head, written = (head[:at], head[at:]) if at >= 0 else (head, "")
        name = head.partition("[CALL_ID]")[0].strip()
        if not name or not written:
            return Malformed(f"{self.sign} is followed by neither a list of calls nor name{self.arguments}{{…}}")
        return call_of({"name": name, "arguments": written.strip()})


@dataclass(frozen=True)
class DeepSeekForm(Form):
    """`<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, then JSON in a fence (V3, R1); since V3.1 name, sign, JSON."""

    fenced: bool = True
    """Whether calls are written in the earlier way; both are read."""

    opens, closes = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    begin, parts, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls between the signs."""
        before, *pieces = text.split(self.begin)
        calls = [self._call(piece) for piece in pieces]
        if not pieces and self.opens in before:
            calls = [Malformed(f"{self.opens} without {self.begin}")]
        beside = [before, *(piece.partition(self.end)[2] for piece in pieces)]
        return calls, joined([each.replace(self.opens, "").replace(self.closes, "") for each in beside])

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the calls between the signs."""
        form = "function{parts}{name}\n```json\n{given}\n```" if self.fenced else "{name}{parts}{given}"
        written = (form.format(parts=self.parts, name=call.name, given=_dumped(named(call))) for call in calls)
        between = "\n" if self.fenced else ""
        return self.opens + between.join(f"{self.begin}{each}{self.end}" for each in written) + self.closes

    def _call(self, piece: str) -> Call | Malformed:
        inside, closed, _ = piece.partition(self.end)
        left, sign, right = inside.partition(self.parts)
        if not closed or not sign:
            return Malformed(f"{self.begin} without {self.parts if closed else self.end}")
        name, fence, given = right.partition("```json")
        if not fence:
            return call_of({"name": left.strip(), "arguments": right.strip()})
        return call_of({"name": name.strip(), "arguments": given.rpartition("```")[0].strip()})


@dataclass(frozen=True)
class PythonicForm(Form):
    """`[name(argument=value), …]`, between signs where a family has them (Llama 4, LFM 2, OLMo 3, Gemma 3)."""

    opens: str = ""
    closes: str = ""
    lines: bool = False
    """Whether calls stand line by line and not in a list."""

    begins = re.compile(r"\s*(?:<\|python_start\|>)?\s*\[\s*[A-Za-z_][\w.]*\s*\(")

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls between the signs, or those that are the whole turn."""
        if not self.opens:
            bare = text.replace("<|python_start|>", "").replace("<|python_end|>", "")
            return (python_calls(bare), "") if self.begins.match(text) else ([], text)
        before, sign, after = text.partition(self.opens)
        if not sign:
            return [], text
        inside, closed, rest = after.partition(self.closes)
        if not closed:
            return [Malformed(f"{self.opens.strip()} without {self.closes.strip()}")], before
        return python_calls(inside), joined([before, rest])

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
        before, *pieces = text.split(self.begin)
        return [self._call(piece) for piece in pieces], joined(
            [before, *(piece.partition(self.end)[2] for piece in pieces)]
        )

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the calls between the signs."""
        written = (f"call:{call.name}{bare_text(named(call), self.quote)}" for call in calls)
        return "".join(f"{self.begin}{each}{self.end}" for each in written)

    def think(self, text: str) -> str:
        """Return thinking as Gemma marks it."""
        return f"<|channel>thought\n{text}<channel|>"

    def _call(self, piece: str) -> Call | Malformed:
        inside, closed, _ = piece.partition(self.end)
        found = re.match(r"\s*call:\s*([\w.-]+)\s*(\{.*\})\s*$", inside, re.DOTALL)
        if not closed or found is None:
            return Malformed(f"{self.begin} without {'call:name{…}' if closed else self.end}")
        given = bare_object(found[2], self.quote)
        return given if isinstance(given, Malformed) else call_of({"name": found[1], "arguments": given})


class GlmForm(Form):
    """`<tool_call>name`, then `<arg_key>…</arg_key>` and `<arg_value>…</arg_value>` for each argument (GLM 4.5)."""

    argument = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls in tags."""
        before, *pieces = text.split("<tool_call>")
        calls = [self._call(piece) for piece in pieces]
        return calls, joined([before, *(piece.partition("</tool_call>")[2] for piece in pieces)])

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls in tags: texts as they are, anything else as JSON."""
        return "\n".join(f"<tool_call>{call.name}\n{self._arguments(named(call))}</tool_call>" for call in calls)

    def think(self, text: str) -> str:
        """Return thinking as GLM writes it, behind the line that the prompt leaves open."""
        return f"\n<think>{text}</think>\n"

    def _arguments(self, given: JsonMapping) -> str:
        pairs = ((key, value if isinstance(value, str) else _dumped(value)) for key, value in given.items())
        return "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in pairs)

    def _call(self, piece: str) -> Call | Malformed:
        inside, closed, _ = piece.partition("</tool_call>")
        name, _, rest = inside.partition("<arg_key>")
        if not closed or not name.strip() or re.search(r"[\s{}\"]", name.strip()):
            return Malformed("<tool_call> without " + ("a name" if closed else "</tool_call>"))
        found = self.argument.findall("<arg_key>" + rest) if rest else []
        if len(found) != inside.count("<arg_key>") or len(found) != inside.count("<arg_value>"):
            return Malformed(f"{name.strip()}: an <arg_key> without its <arg_value>, or the other way round")
        return Call(name.strip(), {key.strip(): value for key, value in found}, untyped=True)


class XmlForm(Form):
    """`<function=name>` and `<parameter=key>` inside `<tool_call>` (Qwen 3 Coder, Qwen 3.5)."""

    function = re.compile(r"\s*<function=([^>\n]+)>(.*?)</function>\s*$", re.DOTALL)
    argument = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls in tags."""
        before, *pieces = text.split("<tool_call>")
        calls = [self._call(piece) for piece in pieces]
        return calls, joined([before, *(piece.partition("</tool_call>")[2] for piece in pieces)])

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls in tags: texts as they are, anything else as JSON."""
        return "\n".join(self._written(call) for call in calls)

    def _written(self, call: Call) -> str:
        pairs = ((key, value if isinstance(value, str) else _dumped(value)) for key, value in named(call).items())
        inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
        return f"<tool_call>\n<function={call.name}>\n{inside}</function>\n</tool_call>"

    def _call(self, piece: str) -> Call | Malformed:
        inside, closed, _ = piece.partition("</tool_call>")
        found = self.function.match(inside)
        if not closed or found is None:
            return Malformed("<tool_call> without " + ("<function=name>…</function>" if closed else "</tool_call>"))
        given = self.argument.findall(found[2])
        if len(given) != found[2].count("<parameter="):
            return Malformed(f"{found[1].strip()}: <parameter=…> without </parameter>")
        return Call(found[1].strip(), {key.strip(): value for key, value in given}, untyped=True)


class KimiForm(Form):
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>` (Kimi K2)."""

    opens, closes = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    begin, parts, end = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls between the signs."""
        before, *pieces = text.split(self.begin)
        beside = [before, *(piece.partition(self.end)[2] for piece in pieces)]
        calls = [self._call(piece) for piece in pieces]
        return calls, joined([each.replace(self.opens, "").replace(self.closes, "") for each in beside])

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return the calls between the signs, numbered."""
        written = (
            f"{self.begin}functions.{call.name}:{i}{self.parts}{_dumped(named(call))}{self.end}"
            for i, call in enumerate(calls)
        )
        return self.opens + "".join(written) + self.closes

    def _call(self, piece: str) -> Call | Malformed:
        inside, closed, _ = piece.partition(self.end)
        head, sign, given = inside.partition(self.parts)
        if not closed or not sign:
            return Malformed(f"{self.begin} without {self.parts if closed else self.end}")
        name = head.strip().removeprefix("functions.").rpartition(":")[0] or head.strip()
        return call_of({"name": name, "arguments": read_json(given)})


class HarmonyForm(Form):
    """Messages on channels: analysis is thinking, commentary to a function is a call, final is the answer (gpt-oss)."""

    start, body, ends = "<|start|>", "<|message|>", ("<|end|>", "<|call|>", "<|return|>")
    plain = False
    recipient = re.compile(r"to=(?:functions\.)?([\w.-]+)")

    def read(self, text: str, opened: bool = False) -> Said:
        """Return what a turn holds, message by message."""
        if self.body not in text and "<|channel|>" not in text:
            return Said((), text.strip())
        thinking, beside, final = list[str](), list[str](), list[str]()
        calls: list[Call | Malformed] = []
        for message in text.split(self.start):
            head, sign, said = message.partition(self.body)
            said = re.split("|".join(map(re.escape, self.ends)), said)[0]
            to = self.recipient.search(head)
            if to is not None:
                calls.append(self._call(to[1], said, bool(sign)))
            elif "analysis" in head:
                thinking.append(said)
            else:
                (final if "final" in head else beside).append(said)
        thought = joined(thinking)
        if calls:
            return Said(tuple(calls), None, thought, joined([*beside, *final]))
        return Said((), joined(final or beside), thought)

    def thinking_ends(self, text: str, opened: bool = False) -> int:
        """Return at which character the message on the channel of analysis ends; 0 where none begins the turn."""
        if not text.lstrip().startswith("<|channel|>analysis"):
            return 0
        at = text.find(self.ends[0])
        return len(text) if at < 0 else at + len(self.ends[0])

    def read_calls(self, text: str) -> tuple[Calls, str]:
        """Return the calls."""
        said = self.read(text)
        return list(said.calls), said.beside or said.answer or ""

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls behind the `<|start|>assistant` that ends the prompt, as the template writes them."""
        written = (
            f" to=functions.{call.name}<|channel|>commentary json<|message|>{_dumped(named(call))}" for call in calls
        )
        return "<|call|><|start|>assistant".join(written)

    def think(self, text: str) -> str:
        """Return thinking on its channel, up to where the next message begins."""
        return f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant"

    def answer(self, text: str) -> str:
        """Return the answer on its channel."""
        return f"<|channel|>final<|message|>{text}"

    def _call(self, name: str, given: str, whole: bool) -> Call | Malformed:
        if not whole:
            return Malformed(f"a call to {name} without {self.body}")
        return call_of({"name": name, "arguments": given.strip() or "{}"})
