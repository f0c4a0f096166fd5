"""What chat templates show, and how the rest is carried in prompts: nothing vanishes, and no template error is raw."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chat_families import CHAT_FAMILIES, family_tokenizer
from chat_policies import chatting
from grouprl.core.errors import InputError
from grouprl.policy.language.chat_template import template_of
from grouprl.policy.language.message_fallbacks import uses_of
from grouprl.policy.language.text import render_chat
from grouprl.records.examples import Chat

ADD = {
    "type": "function",
    "function": {
        "name": "adder",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"first": {"type": "integer"}}},
    },
}
CALL = {"id": "call_7", "type": "function", "function": {"name": "adder", "arguments": {"first": 12345}}}
TALKS: dict[str, list[dict[str, Any]]] = {
    "a system message": [{"role": "system", "content": "sys1"}, {"role": "user", "content": "use1"}],
    "consecutive users": [{"role": "user", "content": "use1"}, {"role": "user", "content": "use2"}],
    "a call and its result": [
        {"role": "system", "content": "sys1"},
        {"role": "user", "content": "use1"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "adder", "tool_call_id": "call_7", "content": "res1"},
    ],
    "a call as text and its result": [
        {"role": "user", "content": "use1"},
        {"role": "assistant", "content": "say1"},
        {"role": "tool", "name": "adder", "content": "res1"},
        {"role": "assistant", "content": "say2"},
        {"role": "tool", "name": "adder", "content": "res2"},
    ],
    "a role that no template knows": [
        {"role": "user", "content": "use1"},
        {"role": "assistant", "content": "say1"},
        {"role": "critic", "content": "cri1"},
    ],
    "a later system message": [
        {"role": "user", "content": "use1"},
        {"role": "assistant", "content": "say1"},
        {"role": "system", "content": "sys2"},
        {"role": "user", "content": "use2"},
    ],
}


@pytest.mark.parametrize("name", CHAT_FAMILIES)
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("tools", [[], [ADD]], ids=["no tools", "tools"])
def test_nothing_vanishes(name: str, talk: str, tools: list[Any]) -> None:
    messages = TALKS[talk]
    text = render_chat(family_tokenizer(CHAT_FAMILIES[name]), Chat(messages, tools))  # type: ignore[arg-type]
    words = [message["content"] for message in messages]
    words += ["adder", "12345"] if talk == "a call and its result" else []
    words += ["adder", "first"] if tools else []
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("name", CHAT_FAMILIES)
def test_nothing_is_refused_that_can_be_carried(name: str) -> None:
    template = template_of(family_tokenizer(CHAT_FAMILIES[name]))
    assert template.refusals({"system", "late_system", "tools", "results", "users", "roles"}) == []


def test_what_is_carried_is_said() -> None:
    notes = {
        name: template_of(family_tokenizer(CHAT_FAMILIES[name])).notes({"tools", "results"}) for name in CHAT_FAMILIES
    }
    silent = {name for name, found in notes.items() if not found}
    assert silent == {
        *("llama 3.1", "qwen 2.5", "qwen 3", "mistral 0.3", "mistral nemo", "phi 4 mini", "smollm 3"),
        *("deepseek 3.1", "granite 3", "gpt-oss", "glm 4.5", "seed-oss", "nemotron nano", "command r7b", "command r+"),
        *("functionary 3.1", "functionary 3.2"),
    }
    assert notes["phi 3"] == [
        "the chat template does not announce tools: they are described in the prompt, with calls as "
        '<tool_call>{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}</tool_call>',
        "the chat template does not show results of tools: they are part of a user's message, as "
        "<tool_response>…</tool_response>",
    ]
    gemma = template_of(family_tokenizer(CHAT_FAMILIES["gemma 2"]))
    said = " ".join(gemma.notes({"system", "users", "roles", "late_system"}))
    assert "in front of the first user's message" in said
    assert "neighbouring messages become one" in said
    assert "no other roles" in said


def test_the_carried_forms_by_hand() -> None:
    gemma = template_of(family_tokenizer(CHAT_FAMILIES["gemma 2"]))
    assert gemma.render(TALKS["a call as text and its result"]) == (
        "<bos><start_of_turn>user\nuse1<end_of_turn>\n<start_of_turn>model\nsay1<end_of_turn>\n<start_of_turn>user\n"
        "<tool_response>\nres1\n</tool_response><end_of_turn>\n<start_of_turn>model\nsay2<end_of_turn>\n"
        "<start_of_turn>user\n<tool_response>\nres2\n</tool_response><end_of_turn>\n<start_of_turn>model\n"
    )
    assert gemma.render([*TALKS["a system message"], {"role": "user", "content": "use2"}]) == (
        "<bos><start_of_turn>user\nsys1\n\nuse1\n\nuse2<end_of_turn>\n<start_of_turn>model\n"
    )
    phi = template_of(family_tokenizer(CHAT_FAMILIES["phi 4 mini"]))
    assert phi.render(TALKS["a system message"], [ADD]).startswith('<|system|>sys1<|tool|>[{"name": "adder"')
    mistral = template_of(family_tokenizer(CHAT_FAMILIES["mistral 0.3"])).render(TALKS["a call and its result"])
    name = mistral.partition('"id": "')[2][:9]
    assert name.isalnum()
    assert f'"call_id": "{name}"' in mistral


def test_calls_find_their_results_whatever_the_order() -> None:
    calls = [{**CALL, "id": name} for name in ("one", "two")]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in ("two", "one")]
    talk = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    text = template_of(family_tokenizer(CHAT_FAMILIES["mistral nemo"])).render(talk)
    first, second = (part[:9] for part in text.split('"id": "')[1:])
    assert f'"content": two, "call_id": "{second}"' in text
    assert f'"content": one, "call_id": "{first}"' in text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no luck') }}", "no luck"),
        ("{{ messages.nothing.at.all }}", "no attribute"),
        ("{% for m in messages %}{% endfor %}", "left out"),
        ("{% for m in messages %}", "Set another chat template"),
    ],
)
def test_a_template_that_renders_nothing_is_refused_in_words(template: str, words: str) -> None:
    (refusal,) = template_of(chatting(template).tokenizer).refusals({"tools"})
    assert "does not render a user's message" in refusal
    assert words in refusal


def test_messages_that_no_form_fits_are_an_error_in_words() -> None:
    tokenizer = family_tokenizer(CHAT_FAMILIES["gemma 3"])
    with pytest.raises(InputError, match="cannot render messages of the roles assistant, user") as error:
        render_chat(tokenizer, [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}])
    assert "must alternate" in str(error.value)


def test_uses_are_read_off_messages() -> None:
    assert uses_of(TALKS["a call and its result"], [ADD]) == {"system", "tools", "results"}
    assert uses_of(TALKS["consecutive users"]) == {"users"}
    assert uses_of(TALKS["a role that no template knows"]) == {"roles"}
    assert uses_of(TALKS["a later system message"]) == {"late_system"}


@pytest.mark.parametrize("name", CHAT_FAMILIES)
def test_a_longer_conversation_is_carried_as_the_shorter_one_was(name: str) -> None:
    """What becomes of messages depends on those before them: carrying never rewrites history by itself."""
    from grouprl.policy.language.message_fallbacks import carried

    facts = template_of(family_tokenizer(CHAT_FAMILIES[name])).facts
    rng = random.Random(0)
    for _ in range(20):
        talk: list[dict[str, Any]] = list(TALKS["a system message"])
        for number in range(5):
            talk.append(
                {"role": "assistant", "content": f"a{number}", **({"tool_calls": [CALL]} if rng.random() < 0.5 else {})}
            )
            shorter = carried(talk, [ADD], facts)[0]
            talk.append({"role": rng.choice(["tool", "user", "critic", "system"]), "content": f"x{number}"})
            assert carried(talk, [ADD], facts)[0][: len(shorter)] == shorter


def test_the_date_is_that_of_the_process() -> None:
    template = template_of(
        chatting("{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{% endfor %}").tokenizer
    )
    assert template.dated
    assert template.render([{"role": "user", "content": "x"}]).startswith("20")
    assert any("the date" in note for note in template.notes(set()))
