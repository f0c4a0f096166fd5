"""Tool calls whose arguments hold what syntaxes are made of: quotes, line breaks, braces, tags, half a turn, a thousand
calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.chat.syntaxes import SIGNS, SYNTAXES
from grouprl.chat.tool_calls import MOST_CALLS, protocol_calls, typed
from grouprl.chat.turn_content import THOUGHTS, Call, Malformed, Said
from grouprl.core.errors import InputError

TAGS = sorted(
    {
        *(sign for sign, _ in SIGNS),
        *(sign for pair in THOUGHTS for sign in pair),
        *("<tool_call>", "</tool_call>", "<arg_value>", "</arg_value>", "</arg_key>", "</function>", "</parameter>"),
        *("<parameter=x>", "<tool_call|>", '<|"|>', "<end_function_call>", "<escape>", "<|call|>", "<|end|>"),
        *("<|start|>", "<|message|>", "<|tool_call_end|>", "<|tool_call_begin|>", "<｜tool▁call▁end｜>"),
        *("<｜tool▁call▁begin｜>", "<|/tool_call|>", "<function_call>", "</function_calls>", "```json\n", "\n```"),
        *(
            "<|python_tag|>",
            "<|python_end|>",
            "<|im_end|>",
            "</s>",
            '{"name": "f"}',
            "[f(x=1)]",
            "\\n",
            '\\"',
            "\u2028",
        ),
    }
)
odd = st.text(st.characters(codec="utf-8"), max_size=6)
texts = st.lists(st.one_of(odd, st.sampled_from([*TAGS, '"', "'", "{", "}", "\n", "\r\n", "\t"])), max_size=5).map(
    "".join
)
numbers = st.one_of(st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False))
scalars = st.one_of(texts, numbers, st.booleans(), st.none())
values: Any = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=2)),
    max_leaves=4,
)
names = st.one_of(
    st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True), st.sampled_from(["get-time", "from", "fs.read"])
)
keys = st.one_of(names, texts.filter(bool))
calls = st.lists(st.builds(Call, names, st.dictionaries(keys, values, max_size=2)), min_size=1, max_size=3)


def written(name: str, asked: list[Call]) -> str | None:
    """The calls in a syntax; None where it says in words that it cannot write them."""
    try:
        return SYNTAXES[name].write_all(asked)
    except InputError:
        if name in ("gemma", "function_gemma", "glm", "qwen_xml", "seed", "tool_code", "lfm", "olmo", "pythonic"):
            return None
        raise


def same(found: Call | Malformed, asked: Call) -> bool:
    if isinstance(found, Malformed) or not found.untyped:
        return found == asked
    kinds = {key: {"type": "string" if isinstance(value, str) else "x"} for key, value in asked.arguments.items()}
    return (found.name, typed(found, kinds)) == (asked.name, asked.arguments)


@pytest.mark.parametrize("name", SYNTAXES)
@settings(max_examples=30, deadline=None)
@given(asked=calls)
def test_whatever_an_argument_holds_it_is_read_as_it_was_written(name: str, asked: list[Call]) -> None:
    if name in ("glm", "qwen_xml", "seed"):  # these trim the names of arguments
        asked = [Call(c.name, {key.strip() or "x": value for key, value in c.arguments.items()}) for c in asked]
    text = written(name, asked)
    if text is None:
        return
    found = SYNTAXES[name].read(text)
    assert len(found.calls) == len(asked)
    assert all(map(same, found.calls, asked))
    assert not found.thinking
    assert not found.beside


@pytest.mark.parametrize("name", SYNTAXES)
@settings(max_examples=25, deadline=None)
@given(asked=calls, data=st.data())
def test_half_a_turn_holds_no_call_that_was_not_written(name: str, asked: list[Call], data: st.DataObject) -> None:
    asked = [Call(c.name, {f"k{i}": value for i, value in enumerate(c.arguments.values())}) for c in asked]
    text = written(name, asked)
    if text is None:
        return
    found = SYNTAXES[name].read(text[: data.draw(st.integers(0, len(text)))])
    good = [call for call in found.calls if isinstance(call, Call)]
    assert len(good) <= len(asked)
    assert all(map(same, good, asked[: len(good)]))


@pytest.mark.parametrize("name", SYNTAXES)
def test_a_thousand_calls_are_read_in_order_and_are_too_many(name: str) -> None:
    asked = [Call(f"f{i}", {"x": i}) for i in range(1000)]
    text = SYNTAXES[name].write_all(asked)
    found = SYNTAXES[name].read(text).calls
    if len(text) > 20_000 and isinstance(found[0], Malformed):
        assert "at most 20000 are read" in found[0].what
        return
    assert len(found) == len(asked)
    assert all(map(same, found, asked))
    assert len(asked) > MOST_CALLS
    text = SYNTAXES["hermes"].write_all(asked)
    assert protocol_calls(SYNTAXES["hermes"].read(text), text, "about") == []


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral", "granite", "deepseek", "kimi", "harmony", "pythonic"])
@pytest.mark.parametrize(
    ("value", "wrong"),
    [("NaN", "NaN"), ("Infinity", "Infinity"), ("1e999", "too large"), ('"\\ud800"', "half a character")],
)
def test_what_no_client_and_no_tokenizer_could_read_is_no_argument(name: str, value: str, wrong: str) -> None:
    python = {"NaN": "nan", "Infinity": "inf"}.get(value, value)
    text = f"[f(x={python})]" if name == "pythonic" else SYNTAXES[name].write("f", {"x": 123}).replace("123", value)
    (found,) = SYNTAXES[name].read(text).calls
    assert isinstance(found, Malformed)
    assert wrong in found.what or "is not read" in found.what or "not read as" in found.what


def test_a_sign_of_another_family_ends_no_thinking() -> None:
    mistral = SYNTAXES["mistral"]
    text = mistral.think("hm </think> hm") + mistral.write("f", {"x": "</think> [/THINK]"})
    assert mistral.read(text) == Said((Call("f", {"x": "</think> [/THINK]"}),), None, "hm </think> hm")
    assert text[: mistral.thinking_ends(text)] == mistral.think("hm </think> hm")
    lone = SYNTAXES["hermes"].write("f", {"x": "</think>"})
    assert SYNTAXES["hermes"].thinking_ends(lone) == 0
    opened = SYNTAXES["hermes"].read("so </think>" + lone, opened=True)
    assert (opened.thinking, opened.calls) == ("so", (Call("f", {"x": "</think>"}),))


@pytest.mark.parametrize("name", ["pythonic", "lfm", "olmo", "tool_code"])
def test_names_that_python_does_not_know_are_called(name: str) -> None:
    asked = [Call("get-time", {"from": "a", "in": 1}), Call("fs.read-file", {"class": "a=b, c-d(e=f)"})]
    assert list(SYNTAXES[name].read(SYNTAXES[name].write_all(asked)).calls) == asked


def test_hostile_turns_are_read_in_linear_time() -> None:
    for text in (
        '{"name": "f", "parameters": {}};' * 20_000,
        "<tool_call>f<arg_key>" * 10_000,
        "<tool_call|>" * 20_000,
    ):
        for form in SYNTAXES.values():
            form.read(text)


def test_a_sign_in_a_cut_off_argument_begins_no_call_of_mistrals() -> None:
    text = SYNTAXES["mistral"].write_all([Call("a", {"k": "0[TOOL_CALLS]"}), Call("from", {})])
    found = [call for end in range(len(text)) for call in SYNTAXES["mistral"].read(text[:end]).calls]
    assert [call for call in found if isinstance(call, Call)] == []
