"""Probes that find out what a chat template shows of system messages, tools, calls, results and roles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Literal

from grouprl.core.errors import shortened
from grouprl.core.json_types import JsonObject
from grouprl.policy.language.message_fallbacks import Messages, Plain, TemplateFacts, Use, carried, roles

Raw = Callable[[Messages, Messages], str]
"""Function (messages, tools) -> the text that a template renders, up to where the assistant begins; it may raise
anything.
"""
TOOL = {
    "type": "function",
    "function": {
        "name": "qztool",
        "description": "qzabout",
        "parameters": {
            "type": "object",
            "properties": {"qzarg": {"type": "string", "description": "qzwhat"}},
            "required": ["qzarg"],
        },
    },
}
SYSTEM, USER, SAID, RESULT = "qzsystem", "qzuser", "qzsaid", "qzresult"


def template_facts(raw: Raw) -> TemplateFacts:
    """Return which kinds of messages a chat template renders, found by trying each."""
    return _Probe(raw).facts()


def lost(raw: Raw, facts: TemplateFacts, uses: set[Use]) -> Iterator[str]:
    """Say, in one sentence each, which of `uses` cannot be put into a prompt with this template in any way."""
    return _Probe(raw).lost(facts, uses)


def in_words(error: Exception) -> str:
    """Return the message of an exception that a template raised, shortened."""
    return shortened(str(error) or type(error).__name__, 300)


class _Probe:
    """Probes of a template with invented words, which occur in its output only if it shows them."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    def shows(self, messages: Messages, tools: Messages, *words: str) -> bool:
        """Return whether the template renders all `words` in this order; if it raises, it renders none."""
        try:
            text = self.raw(messages, tools)
        except Exception:
            return False
        at = 0
        for word in words:
            at = text.find(word, at)
            if at < 0:
                return False
            at += len(word)
        return True

    def facts(self) -> TemplateFacts:
        """Return which kinds of messages the template renders."""
        calls = next((each for each in CALLS if self._calls(*each)), None)
        short, text = calls or (False, False)
        results = self._results(short, text) if calls else ("text" if self._results_behind_text() else "no")
        tools = self._tools(short, text, results)
        return TemplateFacts(
            system=self._system(),
            system_beside_tools=tools == "argument" and self._system_beside_tools(short, text, results),
            late_system=self.shows([*DIALOG, _system("qzlate"), _user("qzmore")], (), SAID, "qzlate", "qzmore"),
            tools=tools,
            calls=calls is not None,
            text_arguments=text,
            short_ids=short,
            results=results,
            users=self.shows([_user(USER), _user("qzmore")], (), USER, "qzmore"),
            roles=self.shows([*DIALOG, {"role": "qzrole", "content": "qzmore"}], (), "qzmore"),
        )

    def lost(self, facts: TemplateFacts, uses: set[Use]) -> Iterator[str]:
        """Say which of `uses` cannot be put into a prompt in any way."""
        if not self.shows([_user(USER)], (), USER):
            yield f"the chat template does not render a user's message: {self._complaint([_user(USER)])}"
            return
        begin = [*[_system(SYSTEM)] * ("system" in uses), _user(USER)]
        tools = [TOOL] if "tools" in uses else []
        rounds = _two_rounds(False, False, structured=facts.results == "calls")
        talks = {
            (USER, SAID, "qzmore"): [*begin, _said(SAID), _user("qzmore")],
            (USER, "qzresult1", "qzresult2"): [*begin, *rounds] if "results" in uses else [],
            (USER, SAID, "qzother"): [*begin, _said(SAID), {"role": "qzrole", "content": "qzother"}]
            if "roles" in uses
            else [],
            (USER, "qznext", SAID): [*begin, _user("qznext"), _said(SAID)] if "users" in uses else [],
            ("qzlate",): [*begin, _said(SAID), _system("qzlate")] if "late_system" in uses else [],
        }
        words = [*[SYSTEM] * ("system" in uses), *["qztool"] * bool(tools)]
        for wanted, talk in talks.items():
            plain, announced = carried(talk, tools, facts)
            alone = all(self.shows(plain, announced, word) for word in words)
            if talk and not (alone and self.shows(plain, announced, *wanted)):
                what = f"{roles(plain)}{' with tools' * bool(announced)}"
                yield f"the chat template does not show a conversation of {what}: {self._complaint(plain, announced)}"

    def _complaint(self, messages: Messages, tools: Messages = ()) -> str:
        try:
            self.raw(messages, tools)
        except Exception as error:
            return f"{in_words(error)}. Set another chat template"
        return "some of it is left out silently. Set another chat template"

    def _system(self) -> bool:
        first = self.shows([_system(SYSTEM), _user(USER)], (), SYSTEM) and self.shows(
            [_system(SYSTEM), _user(USER)], (), USER
        )
        return first and self.shows([_system(SYSTEM), *DIALOG], (), SYSTEM)

    def _calls(self, short: bool, text: bool) -> bool:
        """Return whether the template renders an assistant's calls with ids and arguments of this kind."""
        said = [_user(USER), _calls_message(0, short, text)]
        return self.shows(said, [TOOL], USER, "qztool", "qzvalue") or self.shows(said, [], USER, "qztool", "qzvalue")

    def _results_behind_text(self) -> bool:
        talk = [_user(USER), *_two_rounds(False, False, structured=False)]
        wanted = (USER, "qzsaid0", "qzresult1", "qzsaid1", "qzresult2")
        return any(self.shows(talk, tools, *wanted) for tools in ([], [TOOL]))

    def _results(self, short: bool, text: bool) -> Literal["text", "calls", "no"]:
        if self._results_behind_text():
            return "text"
        talk = [_user(USER), *_two_rounds(short, text, structured=True)]
        wanted = (USER, "qzvalue0", "qzresult1", "qzvalue1", "qzresult2")
        return "calls" if any(self.shows(talk, tools, *wanted) for tools in ([], [TOOL])) else "no"

    def _tools(self, short: bool, text: bool, results: str) -> Literal["argument", "system", "no"]:
        """Return the place from which the template takes tools, if it renders them both before and after they are
        used.
        """
        used = [_user(USER), *_two_rounds(short, text, structured=results == "calls")]
        if self._named([_user(USER)]) and (results == "no" or self._named(used)):
            return "argument"
        inside = {**_system(SYSTEM), "tools": "qztool"}
        return "system" if self.shows([inside, _user(USER)], (), SYSTEM, "qztool", USER) else "no"

    def _named(self, talk: Messages) -> bool:
        return self.shows(talk, [TOOL], "qztool") and self.shows(talk, [TOOL], USER)

    def _system_beside_tools(self, short: bool, text: bool, results: str) -> bool:
        rounds = [] if results == "no" else _two_rounds(short, text, structured=results == "calls")
        first, used = [_system(SYSTEM), _user(USER)], [_system(SYSTEM), _user(USER), *rounds]
        return all(self.shows(talk, [TOOL], SYSTEM) and self._named(talk) for talk in (first, used))


def _system(text: str) -> dict[str, object]:
    return {"role": "system", "content": text}


def _user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def _said(text: str) -> JsonObject:
    return {"role": "assistant", "content": text}


def _calls_message(number: int, short: bool, text: bool) -> JsonObject:
    arguments: object = {"qzarg": f"qzvalue{number}"}
    function = {"name": "qztool", "arguments": json.dumps(arguments) if text else arguments}
    name = f"qzid{number:05}" if short else f"call_{number:08}"
    return {**_said(""), "tool_calls": [{"id": name, "type": "function", "function": function}]}


def _two_rounds(short: bool, text: bool, *, structured: bool) -> Plain:
    """Return a conversation of two turns with calls, each with its result."""
    made: Plain = []
    for number in range(2):
        said = _calls_message(number, short, text) if structured else _said(f"qzsaid{number}")
        name = said["tool_calls"][0]["id"] if structured else f"call_{number:08}"
        result = {"role": "tool", "name": "qztool", "tool_call_id": name, "content": f"qzresult{number + 1}"}
        made += [said, result]
    return made


CALLS = ((False, False), (False, True), (True, False), (True, True))
"""Kinds of calls that are tried: (whether ids have nine characters, whether arguments are a string)."""
DIALOG = [_user(USER), _said(SAID)]
