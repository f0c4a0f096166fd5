"""Tool calls in the channels of the harmony format (gpt-oss)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from grouprl.chat.calls import Form, named
from grouprl.chat.forms.endings import Calls, call_named, dumped
from grouprl.chat.scanning import after_space, joined, value_at
from grouprl.chat.turn_content import Call, Malformed, Said


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
            f" to=functions.{call.name}<|channel|>commentary json<|message|>{dumped(named(call))}" for call in calls
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
            value = Malformed("the call is not JSON: something follows it")
        return call_named(name, value), self._next(text, end)
