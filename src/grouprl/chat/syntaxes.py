"""Call syntaxes by name: built-in ones, those of transformers' response templates, and your own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from grouprl.chat.calls import CompactForm, Form, JsonForm, call_of
from grouprl.chat.forms.harmony_form import HarmonyForm
from grouprl.chat.forms.json_forms import DeepSeekForm, KimiForm, ListForm, LlamaForm, MistralForm
from grouprl.chat.forms.python_forms import GemmaForm, PythonicForm
from grouprl.chat.forms.tagged_forms import GlmForm, SeedForm, XmlForm
from grouprl.chat.tagged_families import CommandForm, FunctionTagForm, RecipientForm
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
    "seed": SeedForm(),
    "nemotron": ListForm("<TOOLCALL>", "</TOOLCALL>"),
    "command": CommandForm(),
    "command_r": CommandForm("Action: ```json\n", "\n```", ("", ""), numbered=False),
    "functionary_31": FunctionTagForm(),
    "functionary_32": RecipientForm(),
    "llama": LlamaForm(),
    "pythonic": PythonicForm(),
}
"""Syntaxes of model families by name, in the order in which they are tried on the output of a template."""
FORMS: Mapping[str, Form] = {"json": JSON, "compact": CompactForm(), **SYNTAXES}
"""All forms of calls by name; `json` is another name of `hermes`."""
SIGNS = (
    ("<|channel|>", "harmony"),
    ("<｜tool▁sep｜>", "deepseek"),
    ("[ARGS]", "mistral_args"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|tool_calls_section_begin|>", "kimi"),
    ("<arg_key>", "glm"),
    ("<seed:tool_call>", "seed"),
    ("<TOOLCALL>", "nemotron"),
    ("<|START_ACTION|>", "command"),
    ("Action: ```json", "command_r"),
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
"""Signs in the source of a template that announces tools but writes no calls, and the syntax that each implies."""


def form_named(name: str) -> Form:
    """Return the form of calls with this name: a built-in one, or your own as pkg.module:name or file.py:name.

    Your own must be a `Form`, a subclass of it, or a response template of transformers.

    Raises:
        InputError: if there is no such form.
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
            "it must be a grouprl.tools.Form, a subclass of it, or a response template",
        )
    return made


class ResponseForm(Form):
    """A form of calls and thinking from a response template of transformers, which a tokenizer may include.

    A response template can only read messages, so `write_all` writes JSON in tags.

    Raises:
        InputError: if transformers cannot use the template.
    """

    plain = False

    def __init__(self, template: Mapping[str, object]) -> None:
        try:
            from transformers.utils.chat_parsing import parse_response
            from transformers.utils.chat_parsing.response_templates import load_response_template
        except ImportError as error:
            raise InputError(
                "A response template needs a later version of transformers", remedy="Run pip install -U transformers"
            ) from error
        try:
            self._template: Any = load_response_template(dict(template))
        except Exception as error:
            raise InputError(
                f"The response template cannot be used: {error}", remedy="Set sampling.tool_calls to a name"
            ) from error
        self._parse: Any = parse_response

    def read(self, text: str, opened: bool = False) -> Said:
        """Return the contents of a turn; a call that cannot be read makes the whole turn malformed."""
        try:
            found = self._parse("<think>\n" + text if opened else text, self._template, prefix="")
        except Exception as error:  # templates and their parsers may raise anything
            return Said((Malformed(f"the turn cannot be read: {error}"[:200]),))
        thinking = str(found.get("reasoning_content") or found.get("thinking") or "").strip()
        calls = tuple(map(call_of, found.get("tool_calls") or ()))
        content = str(found.get("content") or "").strip()
        return Said(calls, None, thinking, content) if calls else Said((), content, thinking)

    def read_calls(self, text: str) -> tuple[list[Call | Malformed], str]:
        """Return the calls that the template finds, and the other text."""
        said = self.read(text)
        return list(said.calls), said.beside or said.answer or ""

    def write_all(self, calls: Sequence[Call]) -> str:
        """Return calls as JSON in tags."""
        return JSON.write_all(calls)
