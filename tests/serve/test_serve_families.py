"""Tools, their results and thinking in a served policy, whatever its chat template knows of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from chat_families import CHAT_FAMILIES, family_policy
from grouprl.chat.completions_api import CompletionsApi
from grouprl.chat.request import ChatRequest, read_request
from grouprl.serve import Service
from grouprl.serve.sampling import ServedTurn

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
    form = service.recorded.between.form
    service.texts = [form.think("hm") + form.write("add", {"a": 1}), form.answer("three")]
    messages: list[dict[str, Any]] = [{"role": "system", "content": "sys1"}, {"role": "user", "content": "use1"}]
    first = complete(service, messages, ADD)
    assert first["finish_reason"] == "tool_calls"
    (call,) = first["message"]["tool_calls"]
    assert (call["function"]["name"], first["message"]["content"]) == ("add", None)
    assert first["message"]["reasoning_content"] == "hm"
    messages += [first["message"], {"role": "tool", "tool_call_id": call["id"], "content": "res1"}]
    second = complete(service, messages, ADD)
    assert second["message"] == {"role": "assistant", "content": "three"}
    assert all(word in service.asked[0] for word in ("sys1", "use1", "add"))
    assert service.asked[1].startswith(service.asked[0]), "the row goes on"
    assert "res1" in service.asked[1][len(service.asked[0]) :]
    fresh = complete(Scripted(name, "x"), messages, ADD)
    assert fresh["message"]["content"] is not None
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
