"""The table of call syntaxes by name, those of transformers' response templates, and your own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from grouprl.chat.calls import CompactForm, Form, JsonForm, call_of
from grouprl.chat.families import (
    DeepSeekForm,
    GemmaForm,
    GlmForm,
    HarmonyForm,
    KimiForm,
    ListForm,
    LlamaForm,
    MistralForm,
    PythonicForm,
    XmlForm,
)
from grouprl.chat.turn_content import Call, Malformed, Said
from grouprl.core.errors import InputError, suggest
from grouprl.core.importing import import_object

AUTO = "auto"
JSON = JsonForm()
SYNTAXES: Mapping[str, Form] = {
    "hermes": JSON,
    "qwen_xml": XmlForm(),
    "glm": GlmForm(),
    "mistral": MistralForm(),
    "mistral_args": MistralForm(named=True),
    "deepseek": DeepSeekForm(),
    "deepseek_v31": DeepSeekForm(fenced=False),
    "harmony": HarmonyForm(),
    "granite": ListForm("<|tool_call|>", others=("<tool_call>", "<function_call>")),
    "phi": ListForm("<|tool_call|>", "<|/tool_call|>", others=("functools",)),
    "gemma": GemmaForm(),
    "function_gemma": GemmaForm("<start_function_call>", "<end_function_call>", "<escape>"),
    "tool_code": PythonicForm("```tool_code\n", "\n```", lines=True),
    "lfm": PythonicForm("<|tool_call_start|>", "<|tool_call_end|>"),
    "olmo": PythonicForm("<function_calls>", "</function_calls>", lines=True),
    "kimi": KimiForm(),
    "llama": LlamaForm(),
    "pythonic": PythonicForm(),
}
"""Syntaxes of families by name, in the order in which they are tried on what a template writes."""
FORMS: Mapping[str, Form] = {"json": JSON, "compact": CompactForm(), **SYNTAXES}
"""Every form of calls by name; `json` is `hermes`."""
SIGNS = (
    ("<|channel|>", "harmony"),
    ("<｜tool▁sep｜>", "deepseek"),
    ("[ARGS]", "mistral_args"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|tool_calls_section_begin|>", "kimi"),
    ("<arg_key>", "glm"),
    ("<function=", "qwen_xml"),
    ("<|tool_call>", "gemma"),
    ("<start_function_call>", "function_gemma"),
    ("<|tool_call_start|>", "lfm"),
    ("<|tool_list_start|>", "lfm"),
    ("<function_calls>", "olmo"),
    ("functools", "phi"),
    ("<|/tool|>", "phi"),
    ("<|/tool_call|>", "phi"),
    ("<|start_of_role|>", "granite"),
    ("<|tool_call|>", "granite"),
    ("<tool_call>", "hermes"),
    ('"parameters"', "llama"),
    ("<|python_start|>", "pythonic"),
)
"""What a template's source holds where it announces tools but writes no calls, and the syntax that this means."""


def form_named(name: str) -> Form:
    """Return the form of calls with this name: of the table, or your own as pkg.module:name or file.py:name.

    Your own is a `Form`, a class of one, or a response template of transformers.

    Raises:
        InputError: if there is none.
    """
    if name in FORMS:
        return FORMS[name]
    if ":" not in name:
        raise InputError(f"There is no syntax of tool calls '{name}'", remedy=suggest(name, [AUTO, *FORMS]))
    found = import_object(name, "syntax of tool calls")
    if isinstance(found, Mapping):
        return ResponseForm(found)
    made = found() if inspect.isclass(found) else found
    if not isinstance(made, Form):
        raise InputError(
            f"The syntax of tool calls '{name}' is {type(made).__name__}",
            "it is a grouprl.tools.Form, a class of one, or a response template",
        )
    return made


class ResponseForm(Form):
    """Calls and thinking by a response template of transformers, which a tokenizer may ship.

    It says how a message is read, not how it is written: `write_all` writes JSON in tags.

    Raises:
        InputError: where transformers cannot use the template.
    """

    plain = False

    def __init__(self, template: Mapping[str, object]) -> None:
        try:
            from transformers.utils.chat_parsing import parse_response
            from transformers.utils.chat_parsing.response_templates import load_response_template
        except ImportError as error:
            raise InputError(
                "A response template needs a later version of transformers", remedy="pip install -U transformers"
            ) from error
        try:
            self._template: Any = load_response_template(dict(template))
        except Exception as error:
            raise InputError(f"The response template cannot be used: {error}") from error
        self._parse: Any = parse_response

    def read(self, text: str, opened: bool = False) -> Said:
        """Return what a turn holds; a call that cannot be read makes the whole turn malformed."""
        try:
            found = self._parse("<think>\n" + text if opened else text, self._template, prefix="")
        except Exception as error:  # templates and their parsers raise whatever they like
            return Said((Malformed(f"the turn is not read: {error}"[:200]),))
        thinking = str(found.get("reasoning_content") or found.get("thinking") or "").strip()
        calls = tuple(map(call_of, found.get("tool_calls") or ()))
        content = str(found.get("content") or "").strip()
        return Said(calls, None, thinking, content) if calls else Said((), content, thinking)

    def read_calls(self, text: str) -> tuple[list[Call | Malformed], str]:
        """Return the calls."""
        said = self.read(text)
        return list(said.calls), said.beside or said.answer or ""

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls as JSON in tags."""
        return JSON.write_all(calls)
