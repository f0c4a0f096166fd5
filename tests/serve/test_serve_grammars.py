"""Answers that are held to a form: JSON, under a schema, calls of tools; sampled by policies with random weights."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_families import CHAT_FAMILIES, family_policy
from chat_policies import chatting
from grouprl.chat.call_grammars import NoGrammar, calls_grammar, thinking_signs
from grouprl.chat.completions_api import CompletionsApi
from grouprl.chat.lark import lark_of
from grouprl.chat.refusal import Refusal
from grouprl.chat.reply import Choice, assistant_message
from grouprl.chat.request import read_request
from grouprl.chat.syntaxes import FORMS, SYNTAXES
from grouprl.chat.turn_content import Spoken
from grouprl.policy import Tokens
from grouprl.policy.logprobs import log_softmax_of
from grouprl.protocols import Grammar, Request
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.serve import Service

pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'grouprl[grammar]'")
from grouprl.rollout.local.grammars import grammar_error, single_tokens

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "number"}, "up": {"type": "boolean"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "say",
            "parameters": {
                "type": "object",
                "properties": {"how": {"enum": ["loud", "low"]}, "what": {"type": "string"}},
                "required": ["how"],
                "additionalProperties": False,
            },
        },
    },
]
SHORT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["x", "y"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "word": {"type": "string", "maxLength": 5},
    },
    "required": ["kind", "n", "flags"],
    "additionalProperties": False,
}


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


@pytest.fixture(scope="module")
def tiny() -> Any:
    return chatting()


@pytest.fixture
def service(tiny: Any) -> Iterator[Service]:
    made = Service(tiny, "tiny", max_tokens=300)
    yield made
    made.close()


def answered(service: Service, pieces: Any = None, **given: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The completion of a request, and its choices as clients get them."""
    asked = read_request({"messages": [{"role": "user", "content": "?"}], "seed": 1, **given})
    completion = asyncio.run(service.answer(asked, "me", pieces))
    return completion, CompletionsApi().whole(asked, completion, "tiny")["choices"]


def check(text: str, schema: Any) -> None:
    jsonschema.validate(json.loads(text), schema)


def test_every_answer_is_json_or_cut(service: Service) -> None:
    whole = 0
    for seed in range(6):
        for choice in answered(service, response_format={"type": "json_object"}, seed=seed, n=2)[1]:
            if choice["finish_reason"] == "stop":
                whole += 1
                assert isinstance(json.loads(choice["message"]["content"]), dict)
            else:
                assert choice["finish_reason"] == "length"
                assert choice["message"]["content"].startswith("{")
    assert whole >= 2


@pytest.mark.parametrize("more", [{}, {"temperature": 0}, {"temperature": 2.0}, {"top_p": 0.5}])
def test_every_answer_follows_its_schema(service: Service, more: dict[str, Any]) -> None:
    for choice in answered(service, response_format=form(SCHEMA), n=8, **more)[1]:
        assert choice["finish_reason"] == "stop"
        check(choice["message"]["content"], SCHEMA)


def test_what_is_too_long_is_cut_and_says_so(service: Service) -> None:
    (choice,) = answered(service, response_format=form(SCHEMA), max_tokens=7)[1]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")
    (stopped,) = answered(service, response_format=form(SCHEMA), stop=["flags"])[1]
    assert stopped["finish_reason"] == "stop"
    assert "flags" not in stopped["message"]["content"], "a stop text of the client's own ends JSON, too"


def test_a_stream_tells_the_same_answer(service: Service) -> None:
    told: dict[int, str] = {}

    def pieces(index: int, text: str) -> None:
        told[index] = told.get(index, "") + text

    _, choices = answered(service, pieces, response_format=form(SCHEMA), n=3)
    assert [told[i] for i in range(3)] == [choice["message"]["content"] for choice in choices]
    _, quiet = answered(service, response_format=form(SCHEMA), n=3)
    assert [choice["message"] for choice in quiet] == [choice["message"] for choice in choices]


def test_log_probs_are_those_of_what_the_grammar_leaves(tiny: Any, service: Service) -> None:
    completion, _ = answered(service, response_format=form(SCHEMA), temperature=0.7, logprobs=True, top_logprobs=5)
    (choice,) = completion.choices
    ids, prompt = [token.id for token in choice.tokens], list(completion.prompt_ids)
    free = [
        log_softmax_of(logits_cv, 0.7)
        for _, readout in tiny.readouts(Tokens.of([prompt], [ids]))
        for _, logits_cv in readout.chunks()
    ]
    free_tv = torch.cat(free)
    for t, token in enumerate(choice.tokens):
        assert token.logp >= free_tv[t, token.id] - 1e-5, "the mass of what is forbidden is shared out"
        assert sum(math.exp(logp) for _, logp in token.top) <= 1 + 1e-5
        assert (token.text, pytest.approx(token.logp, abs=1e-4)) in token.top or len(token.top) == 5
    forced = [token for token in choice.tokens if len(token.top) == 1]
    assert forced, "where one token is allowed it has all the mass"
    assert all(token.logp == pytest.approx(0, abs=1e-6) for token in forced)
    assert all(token.logp <= 1e-6 for token in choice.tokens)


def test_rows_with_and_without_a_grammar_are_sampled_side_by_side(tiny: Any) -> None:
    sampler, lark = LocalSampler(tiny), 'start: "a" ("b" | "c")+\n'
    prompt = tuple(tiny.encode("xy"))
    alone = sampler.sample([Request(prompt, 12, seed=5)])
    held = [Request(prompt, 12, seed=s, grammar=Grammar(lark)) for s in range(6)]
    mixed = sampler.sample([*held[:3], Request(prompt, 12, seed=5), *held[3:]])
    assert mixed.actions[3] == alone.actions[0]
    assert mixed.logp_bt[3, : len(alone.actions[0])] == pytest.approx(alone.logp_bt[0], abs=1e-5)
    for i in (0, 1, 2, 4, 5, 6):
        text = tiny.decode(mixed.actions[i])
        assert text[:1] == "a"
        assert set(text[1:]) <= set("bc")
    assert mixed.entropy_bt is not None
    assert bool((mixed.entropy_bt >= 0).all())
    assert mixed.entropy_bt[0, 0] == 0, "one token is allowed"
    assert mixed.entropy_bt[0, 1] <= math.log(2) + 1e-6


def test_a_sample_taken_in_pieces_is_the_sample_taken_at_once(tiny: Any) -> None:
    sampler, lark = LocalSampler(tiny), 'start: "a" /[bc]{6}/ "d"\n'
    prompt = tuple(tiny.encode("xy"))
    whole = sampler.sample([Request(prompt, 20, seed=5, grammar=Grammar(lark))]).actions[0]
    head = sampler.sample([Request(prompt, 4, seed=5, grammar=Grammar(lark))]).actions[0]
    rest = sampler.sample([Request((*prompt, *head), 16, seed=5, sampled=4, grammar=Grammar(lark, behind=4))])
    assert head + rest.actions[0] == whole
    assert tiny.decode(whole)[0] + tiny.decode(whole)[-1] == "ad"
    assert whole[-1] in tiny.eos_ids


leaves: Any = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": "null"},
        {"type": "integer", "minimum": -9, "maximum": 99},
        {"enum": ["x", 'q"', "<tool_call>", 3, None]},
        {"const": {"k": [1, "v"]}},
        {"type": "string", "maxLength": 4},
        {"type": "string", "pattern": "^[ab]{1,3}$"},
    ]
)
schemas: Any = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda item: {"type": "array", "items": item, "maxItems": 2}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(
            lambda own, n: {
                "type": "object",
                "properties": own,
                "required": sorted(own)[:n],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["a", "b c", 'd"', "e<|"]), inner, max_size=3),
            st.integers(0, 2),
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=15, deadline=None)
@given(schema=schemas, seed=st.integers(0, 99))
def test_whatever_the_schema_the_answer_follows_it(schema: Any, seed: int) -> None:
    service = Service(_tiny(), "tiny", max_tokens=400)
    try:
        (choice,) = answered(service, response_format=form(schema), seed=seed)[1]
    finally:
        service.close()
    if choice["finish_reason"] == "stop":
        check(choice["message"]["content"], schema)


_POLICIES: list[Any] = []


def _tiny() -> Any:
    if not _POLICIES:
        _POLICIES.append(chatting())
    return _POLICIES[0]


EXPRESSIBLE = [name for name in SYNTAXES if name not in ("gemma", "function_gemma")]


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_sampled_calls_are_read_and_fit_their_tools(tiny: Any, name: str) -> None:
    """In every syntax: what the grammar lets random weights write is read as calls with arguments under the schema."""
    several = EXPRESSIBLE.index(name) % 2 == 0
    lark = lark_of(calls_grammar(SYNTAXES[name], TOOLS, several=several), single_tokens(tiny.tokenizer))
    policy = tiny if lark.isascii() else family_policy("deepseek 3")
    lark = lark_of(calls_grammar(SYNTAXES[name], TOOLS, several=several), single_tokens(policy.tokenizer))
    assert not grammar_error(policy, lark)
    prompt = tuple(policy.encode("xy"))
    requests = [Request(prompt, 300, seed=s, grammar=Grammar(lark)) for s in range(4)]
    found = LocalSampler(policy).sample(requests)
    ended = [ids for ids, cut in zip(found.actions, found.truncated_b, strict=True) if not cut]
    assert ended
    for ids in ended:
        text = policy.decode(ids)
        asked = read_request({"messages": [{"role": "user", "content": "?"}], "tools": TOOLS})
        message = assistant_message(asked, Choice(Spoken(text, SYNTAXES[name].read(text)), "stop"))
        calls = message.get("tool_calls") or pytest.fail(f"{text!r} holds no call that can be read")
        assert several or len(calls) == 1
        for call in calls:
            (tool,) = [each["function"] for each in TOOLS if each["function"]["name"] == call["function"]["name"]]
            check(call["function"]["arguments"], tool["parameters"])


@pytest.mark.parametrize("name", ["gemma", "function_gemma", "json", "compact"])
def test_a_syntax_without_a_grammar_says_so(name: str) -> None:
    if name == "json":
        assert calls_grammar(FORMS[name], TOOLS, several=True)
        return
    with pytest.raises(NoGrammar, match="have no grammar"):
        calls_grammar(FORMS[name], TOOLS, several=True)


def test_what_cannot_be_told_in_tags_is_refused() -> None:
    def tool(schema: Any) -> list[dict[str, Any]]:
        parameters = {"type": "object", "properties": {"x": schema}}
        return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]

    for schema in ({"type": ["string", "integer"]}, {}, {"type": "string", "maxLength": 3}, {"enum": ["a", 1]}):
        for name in ("qwen_xml", "glm"):
            with pytest.raises(NoGrammar):
                calls_grammar(SYNTAXES[name], tool(schema), several=False)
        assert calls_grammar(SYNTAXES["hermes"], tool(schema), several=False)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "say"}}])
def test_a_required_call_is_made(service: Service, choice: Any) -> None:
    for seed in range(2):
        (found,) = answered(service, tools=TOOLS, tool_choice=choice, seed=seed, max_tokens=400)[1]
        if found["finish_reason"] == "length":
            continue
        assert found["finish_reason"] == "tool_calls"
        names = {call["function"]["name"] for call in found["message"]["tool_calls"]}
        assert names <= ({"add", "say"} if choice == "required" else {"say"})
    (one,) = answered(service, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=400)[1]
    assert one["finish_reason"] == "length" or len(one["message"]["tool_calls"]) == 1


def test_no_call_is_made_where_none_is_wished(tiny: Any) -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    asked = read_request({"messages": [{"role": "user", "content": "?"}], "tools": TOOLS, "tool_choice": "none"})
    assert assistant_message(asked, Choice(text, "stop")) == {"role": "assistant", "content": text}


FAMILIES = [n for n in CHAT_FAMILIES if CHAT_FAMILIES[n].syntax not in ("gemma", "function_gemma")]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_writes_json_and_calls(name: str) -> None:
    """With the family's own template, tokens and syntax, thinking where it thinks."""
    service = Service(family_policy(name), "tiny", max_tokens=150)
    try:
        (found,) = answered(service, response_format=form(SHORT), temperature=0.3)[1]
        if found["finish_reason"] == "stop":
            check(found["message"]["content"], SHORT)
        (called,) = answered(service, tools=TOOLS[:1], tool_choice="required", parallel_tool_calls=False)[1]
        if called["finish_reason"] != "length":
            assert called["finish_reason"] == "tool_calls"
            check(called["message"]["tool_calls"][0]["function"]["arguments"], TOOLS[0]["function"]["parameters"])
    finally:
        service.close()


def test_thinking_ends_before_the_answer_begins() -> None:
    assert thinking_signs(SYNTAXES["hermes"]) == ("<think>\n", "\n</think>\n\n")
    assert thinking_signs(SYNTAXES["harmony"])[1] == "<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"response_format": form({"not": {"type": "string"}})}, 'Unimplemented keys: \\["not"\\]'),
        (
            {"response_format": form({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}})},
            "cannot be enforced",
        ),
        ({"response_format": {"type": "json_schema"}}, "has no schema"),
        ({"response_format": {"type": "xml"}}, "is not known; use text, json_object or json_schema"),
        ({"response_format": form({"enum": ["x" * 200_000]})}, "more than 100000 characters"),
        ({"tool_choice": "required"}, "announces no tools"),
        ({"tool_choice": "sometimes"}, "it must be auto, none, required"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "ad"}}},
            "not a tool of the request",
        ),
    ],
)
def test_what_cannot_be_held_to_is_refused_in_words(service: Service, given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(Refusal, match=wrong):
        answered(service, **given)


def test_without_the_extra_it_is_refused_as_ever(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grouprl.serve.answer_grammar.can_constrain", lambda: False)
    with pytest.raises(Refusal, match=r"not held to a form without the package llguidance \(pip install"):
        answered(service, response_format={"type": "json_object"})
    with pytest.raises(Refusal, match="not held to a form without"):
        answered(service, tools=TOOLS, tool_choice="required")
    assert answered(service, tools=TOOLS, tool_choice="auto")[1]


def test_a_row_of_held_answers_goes_on(service: Service) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
    for _ in range(3):
        _, (choice,) = answered(service, response_format=form(SCHEMA), messages=messages)
        messages += [choice["message"], {"role": "user", "content": "more"}]
        check(choice["message"]["content"], SCHEMA)
    assert len(service.recorded) == 1
