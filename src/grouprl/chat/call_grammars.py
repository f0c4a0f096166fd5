"""Grammars of the call syntaxes: they describe a turn of calls, including the JSON schemas of the tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grouprl.chat.bounded_schema import bounded
from grouprl.chat.calls import Form, JsonForm
from grouprl.chat.forms.harmony_form import HarmonyForm
from grouprl.chat.forms.json_forms import DeepSeekForm, KimiForm, ListForm, LlamaForm, MistralForm
from grouprl.chat.forms.python_forms import PythonicForm
from grouprl.chat.forms.tagged_forms import GlmForm, XmlForm
from grouprl.chat.lark import GrammarPart, JsonValue, Many, Maybe, OneOf, Pattern, Until
from grouprl.chat.literals import BARE_NAME
from grouprl.chat.tagged_families import CommandForm, FunctionTagForm, RecipientForm
from grouprl.core.json_types import JsonMapping, JsonObject

Schema = JsonMapping
ANY = {"type": "object"}
TEXT_KEYS = {"type", "title", "description", "default", "examples"}
"""Keys of a schema that any text satisfies."""


class NoGrammar(Exception):
    """A syntax, or a tool in it, has no grammar."""


@dataclass(frozen=True)
class CallShape:
    """The layout of the calls of a turn: the text before, between and after them."""

    call: Callable[[str, Schema], GrammarPart]
    """(name, schema of the arguments) -> a call."""
    head: str = ""
    between: str = ""
    tail: str = ""
    many: bool = True


def calls_grammar(form: Form, tools: Sequence[JsonMapping], *, several: bool) -> GrammarPart:
    """Return the grammar of a turn with one call or, with `several`, one or more.

    Raises:
        NoGrammar: if the syntax, or a tool's schema in it, cannot be expressed.
    """
    shape = _shape(form)
    functions = [tool["function"] for tool in tools]
    call = OneOf(tuple(shape.call(each["name"], bounded(each.get("parameters") or ANY)) for each in functions))
    return (shape.head, Many(call, shape.between) if several and shape.many else call, shape.tail)


def _shape(form: Form) -> CallShape:
    if isinstance(form, JsonForm):
        return CallShape(_object("<tool_call>\n", "arguments", "\n</tool_call>"), between="\n")
    if isinstance(form, LlamaForm):
        return CallShape(_object("", "parameters", ""), between="; ")
    if isinstance(form, ListForm):
        return CallShape(_object("", "arguments", ""), f"{form.sign}[", ", ", f"]{form.close}")
    if isinstance(form, MistralForm) and form.named:
        return CallShape(lambda name, schema: (f"{form.sign}{name}{form.arguments}", JsonValue(schema)))
    if isinstance(form, MistralForm):
        return CallShape(_object("", "arguments", ""), f"{form.sign} [", ", ", "]")
    if isinstance(form, DeepSeekForm):
        return _deepseek(form)
    if isinstance(form, KimiForm):
        return CallShape(
            lambda name, schema: (
                f"{form.begin}functions.{name}:",
                Pattern("[0-9]{1,2}"),
                form.parts,
                JsonValue(schema),
                form.end,
            ),
            form.opens,
            "",
            form.closes,
        )
    if isinstance(form, HarmonyForm):
        head = " to=functions.{}<|channel|>commentary json<|message|>"
        return CallShape(lambda name, schema: (head.format(name), JsonValue(schema)), many=False)
    if isinstance(form, XmlForm):
        return CallShape(
            _tagged(
                form.inside,
                f"{form.opens}\n<function={{}}>\n",
                f"<parameter={{}}>{form.around}",
                f"{form.around}</parameter>\n",
                f"</function>\n{form.close}",
            ),
            between="\n",
        )
    if isinstance(form, GlmForm):
        return CallShape(
            _tagged(
                form.inside, "<tool_call>{}\n", "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>"
            ),
            between="\n",
        )
    if isinstance(form, PythonicForm):
        inside = ("", "\n", "") if form.lines else ("[", ", ", "]")
        return CallShape(_python, form.opens + inside[0], inside[1], inside[2] + form.closes)
    if isinstance(form, CommandForm):
        return CallShape(
            _object("", "parameters", "", key_of_name="tool_name"), f"{form.opens}[", ", ", f"]{form.closes}"
        )
    if isinstance(form, FunctionTagForm):
        return CallShape(lambda name, schema: (f"<function={name}>", JsonValue(schema), form.close))
    if isinstance(form, RecipientForm):
        return CallShape(lambda name, schema: (f"{name}\n", JsonValue(schema)), between=form.sign)
    raise NoGrammar(f"calls in the syntax {type(form).__name__} have no grammar")


def _object(before: str, key: str, behind: str, key_of_name: str = "name") -> Callable[[str, Schema], GrammarPart]:
    def call(name: str, schema: Schema) -> GrammarPart:
        return (f'{before}{{"{key_of_name}": {json.dumps(name)}, "{key}": ', JsonValue(schema), "}" + behind)

    return call


def _deepseek(form: DeepSeekForm) -> CallShape:
    def call(name: str, schema: Schema) -> GrammarPart:
        if form.fenced:
            return (f"{form.begin}function{form.parts}{name}\n```json\n", JsonValue(schema), f"\n```{form.end}")
        return (f"{form.begin}{name}{form.parts}", JsonValue(schema), form.end)

    return CallShape(call, form.opens, "\n" if form.fenced else "", form.closes)


def _tagged(
    inside: Sequence[str], opens: str, before: str, behind: str, closes: str
) -> Callable[[str, Schema], GrammarPart]:
    """Return the grammar of a call with its arguments in tags: texts as they are, anything else as JSON."""

    def call(name: str, schema: Schema) -> GrammarPart:
        given = []
        for key, own, required in _arguments(name, schema):
            if any(sign in key for sign in ("<", ">", "\n")):
                raise NoGrammar(f"the argument {key!r} of {name} cannot stand in tags")
            part = (before.format(key), *_value_in_tags(name, key, own, behind, inside))
            given.append(part if required else Maybe(part))
        return (opens.format(name), *given, closes)

    return call


def _value_in_tags(name: str, key: str, schema: Schema, behind: str, inside: Sequence[str]) -> tuple[GrammarPart, ...]:
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is not None and all(isinstance(each, str) for each in choices):
        if any(sign in each for each in choices for sign in inside):
            raise NoGrammar(f"a choice of the argument {key!r} of {name} holds tags of arguments")
        return (OneOf(tuple(choices)), behind)
    if schema.get("type") == "string":
        if not set(schema) <= TEXT_KEYS:
            raise NoGrammar(
                f"the text {key!r} of {name} is written without quotes, so the bounds in its schema cannot be enforced"
            )
        return (Until(behind),)
    if _takes_text(schema):
        raise NoGrammar(f"the argument {key!r} of {name} may be a text or something else, and tags do not tell which")
    return (JsonValue(schema), behind)


def _takes_text(schema: object) -> bool:
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    plain = {"object", "array", "number", "integer", "boolean", "null"}
    return kinds is None or not set([kinds] if isinstance(kinds, str) else kinds) <= plain


def _python(name: str, schema: Schema) -> GrammarPart:
    """Return the grammar of a call in Python's syntax, with JSON values; optional arguments follow the others."""
    if not BARE_NAME.fullmatch(name):
        raise NoGrammar(f"the tool {name!r} cannot be called by its name in Python")
    parts: list[GrammarPart] = []
    for number, (key, own, required) in enumerate(sorted(_arguments(name, schema), key=lambda each: not each[2])):
        if not BARE_NAME.fullmatch(key):
            raise NoGrammar(f"the argument {key!r} of {name} cannot be given by its name in Python")
        first = number == 0
        if not required and not parts:
            return (f"{name}(", Maybe(_optional(name, schema)), ")")
        part: GrammarPart = (("" if first else ", ") + f"{key}=", JsonValue(own))
        parts.append(part if required else Maybe(part))
    return (f"{name}(", *parts, ")")


def _optional(name: str, schema: Schema) -> GrammarPart:
    """Return the grammar of at least one of several optional arguments, in order."""
    given = [(f"{key}=", JsonValue(own)) for key, own, _ in _arguments(name, schema)]
    for key, _, _ in _arguments(name, schema):
        if not BARE_NAME.fullmatch(key):
            raise NoGrammar(f"the argument {key!r} of {name} cannot be given by its name in Python")
    return OneOf(tuple((given[i], *(Maybe((", ", later)) for later in given[i + 1 :])) for i in range(len(given))))


def _arguments(name: str, schema: Schema) -> list[tuple[str, JsonObject, bool]]:
    """Return (key, schema, required) of each argument; raise NoGrammar for a schema of another kind."""
    known = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", *TEXT_KEYS, "$schema"}
    properties = schema.get("properties", {})
    if not set(schema) <= known or not isinstance(properties, Mapping):
        raise NoGrammar(f"the arguments of {name} are not listed as properties alone")
    beside = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    required = schema.get("required", ())
    return [
        (key, {**(own if isinstance(own, Mapping) else {}), **_read_by(own, beside)}, key in required)
        for key, own in properties.items()
    ]


def _read_by(schema: object, definitions: JsonMapping) -> JsonMapping:
    """Return the definitions that a schema needs: none, or all of them."""
    return definitions if '"$ref"' in json.dumps(schema) else {}


def thinking_signs(form: Form) -> tuple[str, str]:
    """Return the signs around the thinking at the beginning of a turn."""
    begin, _, end = form.think("\0").partition("\0")
    return begin, end


def answer_signs(form: Form) -> tuple[str, str]:
    """Return the signs around a final answer."""
    before, _, behind = form.answer("\0").partition("\0")
    return before, behind
