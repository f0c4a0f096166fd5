"""Tool calls with a pair of tags around each argument: GLM, Qwen3-Coder's XML, Seed-OSS."""

from __future__ import annotations

import re
from collections.abc import Sequence

from grouprl.chat.calls import Form, named
from grouprl.chat.forms.endings import Calls, dumped, without
from grouprl.chat.scanning import Found, after_space, closed, joined, scanned
from grouprl.chat.turn_content import Call, Malformed
from grouprl.core.json_types import JsonMapping


class GlmForm(Form):
    """`<tool_call>name`, then `<arg_key>…</arg_key>` and `<arg_value>…</arg_value>` for each argument (GLM 4.5)."""

    sign, close = re.compile("<tool_call>"), "</tool_call>"
    name = re.compile(r"\s*([^\s{}<>\"]+)\s*(?=<arg_key>|</tool_call>|$)")
    argument = re.compile(
        r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>((?:(?!</?arg_value>).)*)</arg_value>", re.DOTALL
    )
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
        pairs = ((key, value if isinstance(value, str) else dumped(value)) for key, value in given.items())
        return "".join(
            f"<arg_key>{without(key, ('<', '>'))}</arg_key>\n<arg_value>{without(value, self.inside)}</arg_value>\n"
            for key, value in pairs
        )

    def _read(self, text: str, at: int) -> Found:
        name = self.name.match(text, at)
        if self.close not in text[at:]:
            return [Malformed("<tool_call> without </tool_call>")], at
        if name is None:
            return [Malformed("<tool_call> without a name")], at
        end, given = name.end(), dict[str, str]()
        while (found := self.argument.match(text, end)) is not None:
            given[found[1].strip()], end = found[2], found.end()
        behind = closed(text, end, self.close)
        if behind < 0:
            return [Malformed(f"{name[1]}: an <arg_key> without its <arg_value>, or the other way round")], at
        return [Call(name[1], given, untyped=True)], behind


class XmlForm(Form):
    """`<function=name>` and `<parameter=key>` inside `<tool_call>` (Qwen 3 Coder, Qwen 3.5)."""

    opens, close = "<tool_call>", "</tool_call>"
    sign = re.compile(opens)
    function = re.compile(r"\s*<function=([^>\n]+)>")
    argument = re.compile(r"\s*<parameter=([^>\n]+)>\n?((?:(?!<parameter=|</parameter>).)*?)\n?</parameter>", re.DOTALL)
    ends = re.compile(r"\s*</function>\s*</tool_call>")
    inside = ("<parameter=", "</parameter>")
    """Signs that no argument can hold."""
    line = "\n"
    around = "\n"
    """The text before and after the value of an argument."""

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
        pairs = ((key, value if isinstance(value, str) else dumped(value)) for key, value in named(call).items())
        inside = "".join(
            f"<parameter={without(key, ('>', '<', self.line))}>{self.around}{without(value, self.inside)}"
            f"{self.around}</parameter>\n"
            for key, value in pairs
        )
        return f"{self.opens}\n<function={call.name}>\n{inside}</function>\n{self.close}"

    def _read(self, text: str, at: int) -> Found:
        function = self.function.match(text, at)
        if self.close not in text[at:]:
            return [Malformed(f"{self.opens} without {self.close}")], at
        if function is None:
            return [Malformed(f"{self.opens} without <function=name>…</function>")], at
        end, given = function.end(), dict[str, str]()
        while (found := self.argument.match(text, end)) is not None:
            given[found[1].strip()], end = found[2], found.end()
        if (ended := self.ends.match(text, end)) is not None:
            return [Call(function[1].strip(), given, untyped=True)], ended.end()
        if text.startswith("<parameter=", after_space(text, end)):
            return [Malformed(f"{function[1].strip()}: <parameter=…> without </parameter>")], at
        return [Malformed(f"{self.opens} without <function=name>…</function>")], at


class SeedForm(XmlForm):
    """`<function=name>` and `<parameter=key>` inside `<seed:tool_call>`, values without line breaks (Seed-OSS)."""

    opens, close = "<seed:tool_call>", "</seed:tool_call>"
    sign = re.compile(opens)
    argument = re.compile(r"\s*<parameter=([^>\n]+)>((?:(?!<parameter=|</parameter>).)*)</parameter>", re.DOTALL)
    ends = re.compile(r"\s*</function>\s*</seed:tool_call>")
    around = ""

    def think(self, text: str) -> str:
        """Return thinking as Seed-OSS marks it."""
        return f"<seed:think>{text}</seed:think>"
