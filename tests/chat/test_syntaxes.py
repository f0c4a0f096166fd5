"""Tool calls and thinking in the syntax of every family: written, rendered by templates, and read again."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from chat_families import CHAT_FAMILIES, family_tokenizer
from grouprl.chat.literals import python_calls
from grouprl.chat.syntaxes import FORMS, SYNTAXES, form_named
from grouprl.chat.tool_calls import protocol_calls, typed
from grouprl.chat.turn_content import Call, Malformed, Said, Spoken, split_thinking, thinking_span, told_apart
from grouprl.core.errors import InputError
from grouprl.policy.language.call_syntax import call_syntax
from grouprl.policy.language.chat_template import template_of
from grouprl.tasks.task import final_answer

SIGNS = ("<", ">", "[", "]", "`", "｜", "{", "}")
"""What control tokens are made of: a value that holds one is not told apart from it by any family."""
plain = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=12).filter(
    lambda text: text == text.strip() and not any(sign in text for sign in SIGNS)
)
values: Any = st.one_of(plain, st.integers(-(10**9), 10**9), st.booleans(), st.none(), st.lists(plain, max_size=2))
names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not __import__("keyword").iskeyword(name)
)
calls = st.lists(st.builds(Call, names, st.dictionaries(names, values, max_size=3)), min_size=1, max_size=3)


def as_written(found: Said, asked: list[Call]) -> list[Call]:
    """The calls that were read, arguments that syntaxes write as text in the types of those that were asked."""
    made = []
    for each, wanted in zip(found.calls, asked, strict=True):
        assert isinstance(each, Call), each
        kinds = {key: {"type": "string" if isinstance(value, str) else "x"} for key, value in wanted.arguments.items()}
        made.append(Call(each.name, typed(each, kinds) if each.untyped else each.arguments))
    return made


@pytest.mark.parametrize("name", SYNTAXES)
@settings(max_examples=40, deadline=None)
@given(calls=calls, thought=plain)
def test_what_is_written_is_read_again_in_order(name: str, calls: list[Call], thought: str) -> None:
    form, thought = FORMS[name], "" if name in UNTHINKING else thought
    found = form.read((form.think(thought) if thought else "") + form.write_all(calls))
    assert found.thinking == thought
    assert as_written(found, calls) == calls


@pytest.mark.parametrize("name", SYNTAXES)
@settings(max_examples=30, deadline=None)
@given(answer=plain, thought=plain)
def test_an_answer_stays_an_answer(name: str, answer: str, thought: str) -> None:
    assume(answer)
    form, thought = FORMS[name], "" if name in UNTHINKING else thought
    found = form.read((form.think(thought) if thought else "") + form.answer(answer))
    assert (found.calls, found.answer, found.thinking) == ((), answer, thought)


WRITERS = [name for name in CHAT_FAMILIES if template_of(family_tokenizer(CHAT_FAMILIES[name])).facts.calls]


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=calls)
def test_what_a_template_renders_is_read(name: str, asked: list[Call]) -> None:
    tokenizer = family_tokenizer(CHAT_FAMILIES[name])
    if name in ("llama 3.1", "gpt-oss"):  # one call at a time
        asked = asked[:1]
    told = [
        {"id": f"id{i:07}", "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
        for i, c in enumerate(asked)
    ]
    text = template_of(tokenizer).written({"role": "assistant", "content": "", "tool_calls": told})
    assert text is not None
    assert as_written(call_syntax(tokenizer).read(text), asked) == asked


def test_a_template_names_its_family() -> None:
    found = {name: template_of(family_tokenizer(family)).family for name, family in CHAT_FAMILIES.items()}
    assert found == {name: family.syntax for name, family in CHAT_FAMILIES.items()}


MALFORMED = {
    "hermes": ('<tool_call>{"name": "f", "arguments": }</tool_call>', "not JSON"),
    "qwen_xml": ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</function>\n</tool_call>", "without </parameter>"),
    "glm": ("<tool_call>f\n<arg_key>x</arg_key>\n</tool_call>", "f: an <arg_key> without its <arg_value>"),
    "llama": ('{"name": "f", "parameters": {"x": 1}', "not JSON"),
    "mistral": ('[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}]', "not JSON"),
    "mistral_args": ("[TOOL_CALLS]f", "neither a list of calls nor name[ARGS]"),
    "deepseek": ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f", "without <｜tool▁call▁end｜>"),
    "harmony": (" to=functions.f<|channel|>commentary json<|message|>{x}", "not JSON"),
    "granite": ("<|tool_call|>", "nothing follows"),
    "phi": ("functools[1]", 'object with a "name"'),
    "gemma": ('<|tool_call>call:f{x:<|"|>1}<tool_call|>', "opened with"),
    "function_gemma": ("<start_function_call>call:f{", "without <end_function_call>"),
    "tool_code": ("```tool_code\nf(1)\n```", "every argument must be given by name"),
    "lfm": ("<|tool_call_start|>[f(x=g())]<|tool_call_end|>", "not read as name(argument=value)"),
    "olmo": ("<function_calls>import os</function_calls>", "not expressions"),
    "kimi": ("<|tool_call_begin|>f:0<|tool_call_end|>", "without <|tool_call_argument_begin|>"),
    "pythonic": ("[f(x=1)", "was never closed"),
    "seed": ("<seed:tool_call>\n<function=f>\n<parameter=x>1\n</function>\n</seed:tool_call>", "without </parameter>"),
    "nemotron": ("<TOOLCALL>", "nothing follows"),
    "command": ('<|START_ACTION|>[{"name": "f"}]<|END_ACTION|>', 'object with a "tool_name"'),
    "command_r": ('Action: ```json\n[{"tool_name": "f", "parameters": {}}', "not JSON"),
    "functionary_31": ('<function=f>{"x": 1}', "no </function>"),
    "functionary_32": ('f\n{"x": 1} and more', "something follows it"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_call_that_cannot_be_read_says_what_is_wrong(name: str) -> None:
    text, wrong = MALFORMED[name]
    (call,) = FORMS[name].read(text).calls
    assert isinstance(call, Malformed)
    assert wrong in call.what


@pytest.mark.parametrize("name", SYNTAXES)
@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.sampled_from(sorted({text for text, _ in MALFORMED.values()})), st.integers(0, 60))
def test_nothing_that_a_model_writes_makes_reading_raise(name: str, text: str, piece: str, cut: int) -> None:
    found = FORMS[name].read(piece[:cut] + text + piece[cut:])
    assert found.calls or found.answer is not None


@pytest.mark.parametrize("name", SYNTAXES)
def test_hostile_turns_are_read_in_time(name: str) -> None:
    for text in ("[" * 100_000, '{"name":' * 20_000, "[f(" * 50_000, "<tool_call>" * 20_000, "[f(x=" + "-" * 50_000):
        FORMS[name].read(text)


UNTHINKING = ("functionary_32",)
"""Syntaxes without signs of thinking."""


@pytest.mark.parametrize("text", ['{"name": "Bob", "age": 5}', '[{"name": "Bob"}]', 'He is {"name": "Bob", "age": 5}.'])
def test_a_record_with_a_name_is_an_answer(text: str) -> None:
    found = FORMS["llama"].read(text)
    assert (found.calls, found.answer) == ((), text)
    tagged = FORMS["llama"].read(f"<|python_tag|>{text}")
    assert tagged.calls


@pytest.mark.parametrize("name", ["llama", "pythonic"])
def test_a_call_of_no_announced_tool_is_an_answer_where_no_sign_makes_it_a_call(name: str) -> None:
    form = FORMS[name]
    text = form.write("paint", {"x": 1})
    assert form.read_for(text, ["paint"]).calls == (Call("paint", {"x": 1}),)
    assert form.read_for(text, []).calls == (Call("paint", {"x": 1}),)
    other = form.read_for("<think>hm</think>" + text, ["add"])
    assert (other.calls, other.answer, other.thinking) == ((), text, "hm")
    marked = FORMS["hermes"].read_for(FORMS["hermes"].write("paint", {}), ["add"])
    assert marked.calls == (Call("paint", {}),)


def test_parts_for_everyone_stand_beside_calls() -> None:
    form = FORMS["functionary_32"]
    found = form.read('>>>all\nI look.\n>>>add\n{"a": ">>>b\\n{}"}>>>add\n{"a": 2}')
    assert found.calls == (Call("add", {"a": ">>>b\n{}"}), Call("add", {"a": 2}))
    assert found.beside == "I look."
    assert form.read("all\nYes.").answer == "Yes."
    assert form.read("Yes.\nNo.").answer == "Yes.\nNo."


@pytest.mark.parametrize(
    ("name", "piece", "end"),
    [
        ("glm", "<tool_call>f<arg_key>", "</tool_call>"),
        ("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>", "</tool_call>"),
        ("qwen_xml", "<tool_call><function=f><parameter=x>", "</tool_call>"),
        ("seed", "<seed:tool_call><function=f><parameter=x>", "</seed:tool_call>"),
        ("command", "<|START_ACTION|>[", "<|END_ACTION|>"),
        ("functionary_31", "<function=f>{", "</function>"),
        ("functionary_32", ">>>f\n{", ""),
    ],
)
def test_calls_that_begin_again_and_again_are_read_in_time(name: str, piece: str, end: str) -> None:
    text = piece * (100_000 // len(piece)) + end
    began = time.process_time()
    FORMS[name].read(text)
    assert time.process_time() - began < 2.0


def test_a_thousand_answers_that_begin_are_none() -> None:
    began = time.process_time()
    assert final_answer("<answer>" * 20_000) == "<answer>" * 20_000
    assert final_answer("<answer>a<answer>b</answer>") == "b"
    assert time.process_time() - began < 2.0


def test_thinking_is_told_apart() -> None:
    assert split_thinking("<think>\na\n</think>\n\nb") == ("a", "b")
    assert split_thinking("a</think>b") == ("a", "b")
    assert split_thinking("<think>a") == ("a", "")
    assert split_thinking("a", opened=True) == ("a", "")
    assert split_thinking("b, not <think>a</think>") == ("", "b, not <think>a</think>")
    assert split_thinking("[THINK]a[/THINK]b") == ("a", "b")
    assert thinking_span(" <think>a</think>b") == (1, 17)
    assert thinking_span("a</think>b") == (0, 9)
    assert thinking_span("plain") == (0, 0)
    assert FORMS["hermes"].read('<think><tool_call>{"name": "f"}</tool_call></think>4') == Said(
        (), "4", '<tool_call>{"name": "f"}</tool_call>'
    )


@given(st.text("ab<think>/ \n", max_size=40))
def test_what_is_told_while_a_turn_grows_never_shrinks(text: str) -> None:
    before = ("", "")
    for length in range(len(text) + 1):
        now = told_apart("<think>" + text[:length])
        assert now[0].startswith(before[0])
        assert now[1].startswith(before[1])
        before = now


def test_actions_are_texts_that_know_what_they_hold() -> None:
    import pickle

    spoken = Spoken("f", Said((Call("f", {}),)))
    again = pickle.loads(pickle.dumps(spoken))
    assert (spoken == "f", again == "f", again.said) == (True, True, spoken.said)


def test_the_protocol_gets_calls_in_order_and_no_more_than_it_takes() -> None:
    one = FORMS["mistral"].read('[TOOL_CALLS] [{"name": "b", "arguments": {}}, {"name": "a", "arguments": {"x": 1}}]')
    made = protocol_calls(one, "text", "about")
    assert [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in made] == [
        ("b", {}),
        ("a", {"x": 1}),
    ]
    text = FORMS["hermes"].write("f", {}) * 65
    assert protocol_calls(FORMS["hermes"].read(text), text, "about") == []


class Shout(type(FORMS["hermes"])):
    """A syntax of one's own: `!name`."""

    def read_calls(self, text):
        return ([Call(text[1:], {})], "") if text.startswith("!") else ([], text)

    def write_all(self, calls):
        return "".join(f"!{call.name}" for call in calls)


TEMPLATE = {
    "start_anchor": "<a>",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open": "<c>",
            "close": "</c>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<end>"},
    },
}


def test_a_syntax_of_ones_own_by_name() -> None:
    assert form_named(f"{__file__}:Shout").read("!f").calls == (Call("f", {}),)
    with pytest.raises(InputError, match="Did you mean 'mistral'"):
        form_named("mistrall")
    with pytest.raises(InputError, match=r"It must be a grouprl\.tools\.Form"):
        form_named(f"{__file__}:SIGNS")


def test_a_response_template_of_transformers_is_used() -> None:
    text = '<think>hm</think><c>{"name": "f", "arguments": {"x": 1}}</c><c>{"name": "g", "arguments": {}}</c>'
    own = form_named(f"{__file__}:TEMPLATE")
    assert own.read(text) == Said((Call("f", {"x": 1}), Call("g", {})), None, "hm")
    (wrong,) = own.read("<c>{</c>").calls
    assert isinstance(wrong, Malformed)
    tokenizer = family_tokenizer(CHAT_FAMILIES["qwen 2.5"])
    tokenizer.response_template = TEMPLATE
    assert call_syntax(tokenizer).read(text).calls == (Call("f", {"x": 1}), Call("g", {}))
    assert call_syntax(tokenizer, "llama") is FORMS["llama"]
    assert call_syntax(tokenizer) is FORMS["llama"], "what was set for a tokenizer stays"


def test_an_unpacked_object_in_a_call_is_a_flaw() -> None:
    (found,) = python_calls('f(x={"b": 2, **{"a": 1}})')
    assert isinstance(found, Malformed)
    assert "unpacks another object" in found.what
