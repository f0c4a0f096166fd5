"""Tool calls written as calls of functions: Python's, and Gemma's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.chat.calls import Form, named
from grouprl.chat.forms.endings import MOST_TRIES, Calls, call_named, first_sound
from grouprl.chat.literals import bare_object, bare_text, python_call, python_calls
from grouprl.chat.scanning import Found, joined, scanned
from grouprl.chat.turn_content import Call, Malformed


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
        return first_sound(after, self.closes, python_calls, before)

    def is_bare(self, text: str) -> bool:
        """Return whether the family has no signs around calls, and none is written."""
        return not self.opens and "<|python_start|>" not in text

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
        return [call_named(found[1], bare_object(found[2], self.quote))], stop + len(self.end)
