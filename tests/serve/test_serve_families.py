"""Tools, their results and thinking in a served policy, whatever its chat template knows of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from chat_families import CHAT_FAMILIES, family_policy
from grouprl.chat.completions_api import CompletionsApi
from grouprl.chat.request import ChatRequest, read_request
from grouprl.core.errors import InputError
from grouprl.serve import Service
from grouprl.serve.joint_sampling import ServedTurn

openai = pytest.importorskip("openai", reason="openai is not installed: pip install 'grouprl[dev]'")
pytest.importorskip("starlette", reason="starlette is not installed: pip install 'grouprl[serve]'")
from grouprl.chat import Endpoint  # noqa: E402

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


class Scripted(Service):
    """A service that says what it is told to, in the tokens of its policy."""

    def __init__(self, name: str, *texts: str, **settings: Any) -> None:
        super().__init__(family_policy(name), "tiny", **settings)
        self.texts, self.asked = list(texts), list[str]()

    async def _sample(self, key: str, line: Any) -> ServedTurn:
        text = self.texts.pop(0)
        self.asked.append(self.policy.tokenizer.decode(list(line.prompt_ids)))
        ids = (*self.policy.encode(text), self.policy.eos_ids[0])
        if line.told is not None:
            for letter in text:
                line.told(letter)
        return ServedTurn(ids, (0.0,) * len(ids), text, True)


def request(messages: list[dict[str, Any]], *tools: Any) -> ChatRequest:
    return read_request({"messages": messages, "tools": list(tools)})


def complete(service: Service, messages: list[dict[str, Any]], *tools: Any) -> dict[str, Any]:
    asked = request(messages, *tools)
    completion = asyncio.run(service.answer(asked, "me", None))
    found: dict[str, Any] = CompletionsApi().whole(asked, completion, "tiny")["choices"][0]
    return found


@pytest.mark.parametrize("name", [name for name in CHAT_FAMILIES if name not in ("mistral nemo", "gemma 3", "phi 4")])
def test_a_served_policy_is_told_of_tools_and_of_what_they_returned(name: str) -> None:
    service = Scripted(name)
    form = service.recorded.turn_text.form
    service.texts = [form.think("hm") + form.write("add", {"a": 1}), form.answer("three")]
    messages: list[dict[str, Any]] = [{"role": "system", "content": "sys1"}, {"role": "user", "content": "use1"}]
    first = complete(service, messages, ADD)
    assert first["finish_reason"] == "tool_calls"
    (call,) = first["message"]["tool_calls"]
    assert (call["function"]["name"], first["message"]["content"]) == ("add", None)
    assert first["message"].get("reasoning_content", "") == ("hm" if form.think("hm") else "")
    messages += [first["message"], {"role": "tool", "tool_call_id": call["id"], "content": "res1"}]
    second = complete(service, messages, ADD)
    assert second["message"] == {"role": "assistant", "content": "three"}
    assert all(word in service.asked[0] for word in ("sys1", "use1", "add"))
    assert service.asked[1].startswith(service.asked[0]), "the row goes on"
    assert "res1" in service.asked[1][len(service.asked[0]) :]
    fresh = complete(Scripted(name, "x"), messages, ADD)
    assert fresh["message"]["content"] is not None
    service.close()


def conversation(name: str, history: Any, odd: bool, tools: bool) -> tuple[Service, list[dict[str, Any]], str | None]:
    """A service after two requests of a conversation, its messages, and why the second one was refused, if it was."""
    from grouprl.chat.refusal import Refusal

    service = Scripted(name, history=history)
    form = service.recorded.turn_text.form
    first = form.write("add", {"a": 1}) if tools else form.answer("five")
    service.texts = [form.think("hm") + first if odd else first, "x"]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "use1"}]
    said = complete(service, messages, *[ADD] * tools)["message"]
    calls = said.get("tool_calls")
    new = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "res1"} if calls else None
    messages += [said, new or {"role": "user", "content": "use2"}]
    try:
        complete(service, messages, *[ADD] * tools)
    except Refusal as error:
        return service, messages, error.message
    finally:
        service.close()
    return service, messages, None


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("name", CHAT_FAMILIES)
def test_history_in_a_served_row_is_what_it_is_in_training(name: str, odd: bool, tools: bool) -> None:
    """A row goes on where the real rendering leaves it as it was; else the setting decides, as in training."""
    refused, split, kept = (conversation(name, history, odd, tools) for history in ("refuse", "split", "append"))
    assert kept[2] is None
    assert len(kept[0].recorded) == 1, "the row stays as it was written"
    assert kept[0].asked[1].startswith(kept[0].asked[0])
    if refused[2] is None:
        assert split[0].asked == kept[0].asked == refused[0].asked, "nothing is rewritten: one row under all three"
        assert len(split[0].recorded) == len(refused[0].recorded) == 1
        return
    assert "the chat template rewrites history: what was" in refused[2]
    assert "--history" in refused[2]
    assert "sampling.history" not in refused[2]
    fresh = Scripted(name, "x")
    complete(fresh, split[1], *[ADD] * tools)
    fresh.close()
    assert split[0].asked[1] == fresh.asked[0], "what the template makes of the messages"
    assert len(split[0].recorded) == 2


def test_what_rewrites_history_is_known() -> None:
    """Facts of the templates: who drops thinking behind the next user's message."""
    found = {name: conversation(name, "refuse", True, False)[2] is not None for name in CHAT_FAMILIES}
    assert found["qwen 3"]
    assert not found["qwen 2.5"]
    assert not conversation("qwen 3", "refuse", True, True)[2], "results of tools follow: nothing is dropped"


def test_an_unknown_history_is_refused() -> None:
    with pytest.raises(InputError, match="Did you mean 'split'"):
        Scripted("qwen 3", history="splitt")


def test_completions_of_one_request_go_on_apart() -> None:
    """Two completions of one request are two rows; each goes on by its own text."""
    service = Scripted("qwen 2.5", "one", "two", "x", "y")
    asked = read_request({"messages": [{"role": "user", "content": "q"}], "n": 2})
    asyncio.run(service.answer(asked, "me", None))
    for word in ("two", "one"):
        talk = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": word},
            {"role": "user", "content": "r"},
        ]
        complete(service, talk)
        assert service.asked[-1].startswith(service.asked[0] + word)
    assert len(service.recorded) == 2
    service.close()


def test_thinking_is_streamed_apart() -> None:
    service = Scripted("qwen 3", "<think>\nfirst this\n</think>\n\nthen that", "plain <think> text")
    endpoint = Endpoint(service)
    client = openai.OpenAI(base_url=endpoint.url, api_key="me", max_retries=0, timeout=30)
    try:
        for thinking, answer in (("first this", "then that"), ("", "plain <think> text")):
            messages = [{"role": "user", "content": "?"}]
            chunks = list(client.chat.completions.create(model="tiny", messages=messages, stream=True))
            deltas = [chunk.choices[0].delta for chunk in chunks]
            assert "".join(delta.content or "" for delta in deltas) == answer
            assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == thinking
            assert len(deltas) > 5, "it comes as it is sampled"
    finally:
        endpoint.close()
        service.close()


@pytest.fixture
def gemma() -> Iterator[Service]:
    service = Scripted("gemma 3", "x")
    yield service
    service.close()


def test_messages_in_an_impossible_order_are_refused_in_words(gemma: Service) -> None:
    from grouprl.chat.refusal import Refusal

    wrong = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(Refusal, match="cannot render messages of the roles assistant, user"):
        complete(gemma, wrong)


def test_a_syntax_can_be_set() -> None:
    service = Scripted("phi 3", "[add(a=1)]", tool_calls="pythonic")
    found = complete(service, [{"role": "user", "content": "?"}], ADD)
    assert found["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert "[NAME(ARGUMENT='VALUE')]" in service.asked[0]
    service.close()
