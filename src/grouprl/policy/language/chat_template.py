"""Rendering of messages by a chat template; whatever it does not show is put into the prompt in another way, or
refused.

A template may not support tools, results of tools or a system message, or may want user and assistant to alternate. It
is probed once (`template_probe`), and what it does not show is put where it does (`message_fallbacks`): tools are
described in the prompt, as for a model without a template, results are part of a user's message, and so on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from grouprl.chat.calls import Form
from grouprl.chat.syntaxes import JSON, SIGNS, SYNTAXES
from grouprl.chat.turn_content import Call
from grouprl.core.errors import InputError, shortened
from grouprl.core.json_types import JsonObject
from grouprl.policy.language.message_fallbacks import Messages, TemplateFacts, Use, carried, roles
from grouprl.policy.language.template_probe import TOOL, USER, in_words, lost, template_facts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TODAY = time.localtime()
ASKED = {"name": "qztool", "arguments": {"qzarg": "qzvalue"}}
ASKING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call_0000", "type": "function", "function": ASKED}],
}
RESERVED = (
    "add_generation_prompt",
    "bos_token",
    "chat_template",
    "continue_final_message",
    "conversation",
    "documents",
    "eos_token",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
)
"""Names in a template that users cannot set: the template's own input and settings."""
GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
"""Tags of transformers around what an assistant wrote."""
DATE = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")


@dataclass(eq=False)
class Found:
    """Facts about a template found so far; `source` is the template as its tokenizer holds it."""

    source: object
    facts: TemplateFacts | None = None
    family: str = ""
    chosen: Form | None = None
    """Syntax of calls, if it was set."""


class ChatTemplate:
    """The chat template of a tokenizer, and what it shows of messages."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, found: Found) -> None:
        self.tokenizer, self.found, self.source = tokenizer, found, found.source

    @property
    def chosen(self) -> Form | None:
        """Syntax of calls that was set for the tokenizer; None if none was."""
        return self.found.chosen

    def speak(self, form: Form) -> None:
        """Set the syntax of calls wherever the tokenizer is used."""
        self.found.chosen = form

    @property
    def dated(self) -> bool:
        """True if the template writes the date into prompts."""
        return "strftime_now" in str(self.source)

    @property
    def facts(self) -> TemplateFacts:
        """The parts of messages that the template shows, probed once."""
        if self.found.facts is None:
            self.found.facts = template_facts(self.raw)
        return self.found.facts

    @property
    def form(self) -> Form:
        """Syntax of calls: the one that was set, or that of the template."""
        return self.chosen or SYNTAXES[self.family]

    @property
    def family(self) -> str:
        """Name of the syntax in which the template writes calls; `hermes` if it shows none."""
        self.found.family = self.found.family or self._family()
        return self.found.family

    def _family(self) -> str:
        facts = self.facts
        text = self.written(ASKING) if facts.calls else None
        if text and (found := _read_by(text)):
            return found
        known = "no" if facts.tools == "no" and not facts.calls else str(self.source)
        return next((name for sign, name in SIGNS if sign in known), "hermes")

    @cached_property
    def today(self) -> object:
        """The template with the date on which this process began, so that midnight does not rewrite a conversation."""
        if not self.dated or not isinstance(self.source, str):
            return None
        return DATE.sub(lambda found: repr(time.strftime(found[2], TODAY)), self.source)

    def render(
        self,
        messages: Messages,
        tools: Messages = (),
        *,
        generation: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the text of messages, up to where the assistant begins to write; unsupported messages are carried in
        others.

        Raises:
            InputError: for messages that the template cannot render in any form, and for variables that it does not
                have.
        """
        given = dict(variables or {})
        self.check(given)
        plain, announced = carried(messages, tools, self.facts, self.form)
        try:
            return self.raw(plain, announced, generation=generation, **given)
        except Exception as error:  # templates can raise any exception
            raise InputError(
                f"The chat template cannot render messages of the roles {roles(plain)}: {in_words(error)}",
                "a prompt is the text that the template renders from its messages",
                "Send messages in an order that the template supports, or set another chat template.",
            ) from error

    def check(self, variables: Mapping[str, object]) -> None:
        """Raise InputError for a variable that does not occur in the template, or that users cannot set."""
        read = _read_variables(str(self.source))
        for name in variables:
            if name in RESERVED or name not in read:
                rule = "the messages determine it" if name in RESERVED else "the template does not use it"
                raise InputError(
                    f"The chat template has no variable '{name[:64]}' to set",
                    rule,
                    "Leave it out of chat_template_kwargs",
                )

    def raw(self, messages: Messages, tools: Messages = (), *, generation: bool = True, **variables: object) -> str:
        """Return the text that the template itself renders from messages; let its exceptions through."""
        given: JsonObject = {**variables, **({"tools": [dict(tool) for tool in tools]} if tools else {})}
        if self.today is not None:
            given["chat_template"] = self.today
        plain = [dict(message) for message in messages]
        made = self.tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=generation, **given)
        return str(made)

    def written(self, message: Mapping[str, object]) -> str | None:
        """Return the template's text of an assistant's last message, including its end; None if the template raises.

        `message` may have `tool_calls`; their tool is then announced. If the prompt itself begins the turn, the text
        starts with that beginning.
        """
        said = [{"role": "user", "content": USER}]
        plain, tools = carried([*said, message], [TOOL], self.facts, JSON)
        before, _ = carried(said, [TOOL], self.facts, JSON)
        try:
            begins = self.raw(before, tools)
            whole = self.raw(plain, tools, generation=False)
        except Exception:
            return None
        return whole[len(begins) :] if whole.startswith(begins) else whole.rpartition(USER)[2]

    def notes(self, uses: set[Use]) -> list[str]:
        """Say, in one sentence each, which of `uses` the template does not show and how they are put into the prompt
        instead.
        """
        facts, found = self.facts, list[str]()
        if "tools" in uses and facts.tools == "no":
            how = "they are described in the prompt, with calls as " + self.form.write("NAME", {"ARGUMENT": "VALUE"})
            found.append(f"the chat template does not announce tools: {how}")
        if "results" in uses and facts.results == "no":
            how = "they are part of a user's message, as <tool_response>…</tool_response>"
            found.append(f"the chat template does not show results of tools: {how}")
        beside = "tools" in uses and facts.tools != "no" and not facts.system_beside_tools
        if "system" in uses and (beside or not facts.system):
            found.append(
                f"the chat template does not show a system message{' beside tools' * facts.system}: it comes in front "
                "of the first user's message"
            )
        if "users" in uses and not facts.users:
            found.append("the chat template wants user and assistant to alternate: neighbouring messages become one")
        if "roles" in uses and not facts.roles:
            found.append(
                "the chat template knows no other roles: such messages become part of a user's, after their role"
            )
        if "late_system" in uses and not facts.late_system:
            found.append("the chat template shows no later system message: it becomes part of a user's")
        if self.dated:
            found.append("the chat template writes the date into prompts: on another day a run has other prompts")
        return found

    def refusals(self, uses: set[Use]) -> list[str]:
        """Say, in one sentence each, which of `uses` cannot be put into a prompt in any way."""
        unread = self.unread if "tools" in uses else ""
        refused = [
            f"the chat template writes calls of tools as {shortened(unread, 120)}, which no known syntax reads: set "
            f"sampling.tool_calls to your own (pkg.module:name), or to one of {', '.join(SYNTAXES)}"
        ]
        return [*(refused if unread else ()), *lost(self.raw, self.facts, uses)]

    @cached_property
    def unread(self) -> str:
        """A call as the template writes it if no known syntax reads it, and none was set; else ''."""
        if self.chosen or getattr(self.tokenizer, "response_template", None) or not self.facts.calls:
            return ""
        text = self.written(ASKING)
        return text if text and not _read_by(text) else ""


_FOUND: WeakKeyDictionary[object, Found] = WeakKeyDictionary()


def template_of(tokenizer: PreTrainedTokenizerBase) -> ChatTemplate:
    """Return the chat template of a tokenizer, with the facts found about it before.

    Raises:
        InputError: the tokenizer has no chat template.
    """
    source = getattr(tokenizer, "chat_template", None)
    if not source:
        raise InputError(
            "The data holds chat messages and the tokenizer has no chat template",
            "Messages become a prompt through the template of an instruct model",
            "Use an instruct model, put a template into the model's folder (chat_template.jinja), or give plain text",
        )
    try:
        known = _FOUND.get(tokenizer)
        if known is None or known.source != source:
            known = _FOUND[tokenizer] = Found(source)
    except TypeError:  # a user's own tokenizer may not be hashable
        known = Found(source)
    return ChatTemplate(tokenizer, known)


def _read_by(text: str) -> str:
    """Return the syntax that reads the call in a text best: one that writes it the same way, or else the one that
    leaves the least other text; '' if none reads it.
    """
    read = {name: form.read(text) for name, form in SYNTAXES.items()}
    found = [name for name, said in read.items() if list(map(_plain, said.calls)) == [ASKED]]
    call = Call(str(ASKED["name"]), {"qzarg": "qzvalue"})
    return min(found, key=lambda n: (SYNTAXES[n].write_all([call]) not in text, len(read[n].beside)), default="")


def _plain(call: object) -> JsonObject:
    return {"name": getattr(call, "name", ""), "arguments": getattr(call, "arguments", None)}


@lru_cache(maxsize=64)
def _read_variables(source: str) -> frozenset[str]:
    """Return the variables that a template reads and does not set first; in another dialect, every word of it."""
    import jinja2.ext  # loaded with transformers, which render templates by it
    import jinja2.meta

    try:
        parsed = jinja2.Environment(extensions=[jinja2.ext.loopcontrols]).parse(GENERATION.sub("", source))
        return frozenset(jinja2.meta.find_undeclared_variables(parsed))
    except jinja2.TemplateError:
        return frozenset(re.findall(r"\w+", source))
