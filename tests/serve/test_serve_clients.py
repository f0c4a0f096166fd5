"""What ordinary clients send: sampling parameters, any model name, plain completions, begun answers, thinking."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from chat_policies import chatting
from grouprl.serve import Service

openai = pytest.importorskip("openai", reason="openai is not installed: pip install 'grouprl[dev]'")
pytest.importorskip("starlette", reason="starlette is not installed: pip install 'grouprl[serve]'")
from grouprl.chat import Endpoint  # noqa: E402

SWITCHED = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def policy():
    return chatting()


def serving(policy, unknown):
    service = Service(policy, "tiny", max_tokens=40, unknown=unknown)
    endpoint = Endpoint(service)
    yield endpoint
    endpoint.close()
    service.close()


@pytest.fixture
def strict(policy):
    yield from serving(policy, "refuse")


@pytest.fixture
def lenient(policy):
    yield from serving(policy, "ignore")


def client_of(endpoint):
    return openai.OpenAI(base_url=endpoint.url, api_key="me", max_retries=0, timeout=30)


def post(endpoint, path, given):
    request = urllib.request.Request(f"{endpoint.url}/{path}", json.dumps(given).encode(), {"x-api-key": "me"})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def rows_of(endpoint):
    request = urllib.request.Request(f"{endpoint.url}/rows", headers={"x-api-key": "me"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())["data"]


def text_of(client, **settings):
    given = {"seed": 1, "max_tokens": 20, "temperature": 3.0, "model": "tiny", **settings}
    return client.chat.completions.create(messages=HELLO, **given).choices[0].message.content


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"min_p": 1.0}])
def test_top_k_and_min_p_are_applied(strict, cut):
    """Each leaves the likeliest token alone: hot sampling is greedy then."""
    client = client_of(strict)
    greedy = text_of(client, temperature=0)
    assert text_of(client) != greedy
    assert text_of(client, extra_body=cut) == greedy
    assert text_of(client, extra_body={"top_k": -1, "min_p": 0.0}) == text_of(client)


def test_top_k_of_messages(strict):
    given = {"messages": HELLO, "max_tokens": 20, "seed": 1, "model": "tiny", "temperature": 3.0}
    one, other = (post(strict, "messages", {**given, "top_k": 1, "seed": seed})[1]["content"] for seed in (1, 2))
    assert one == other != post(strict, "messages", given)[1]["content"]


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("chat/completions", {"messages": HELLO, "frequency_penalty": 0.5, "repetition_penalty": 1.1}),
        ("chat/completions", {"messages": HELLO, "model": "gpt-4o-mini", "presence_penalty": 0.1}),
        ("chat/completions", {"messages": HELLO, "mirostat": 2, "typical_p": 0.5}),
        ("responses", {"input": "Hello", "model": "gpt-5", "verbosity_level": 3}),
        ("messages", {"messages": HELLO, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 5}}),
        ("completions", {"prompt": "Hello", "best_of": 2, "echo": True}),
    ],
)
def test_one_setting_decides_on_what_cannot_be_applied(strict, lenient, path, given):
    status, reply = post(strict, path, given)
    assert status in (400, 404)
    assert any(name in reply["error"]["message"] for name in given)
    status, reply = post(lenient, path, given)
    assert status == 200
    assert reply["model"] == "tiny"


def test_wrong_values_are_refused_either_way(lenient):
    for path, given in (
        ("chat/completions", {"messages": HELLO, "temperature": -1}),
        ("chat/completions", {"messages": HELLO, "top_k": 1.5}),
        ("responses", {"input": "x", "previous_response_id": "resp_1"}),
        ("chat/completions", {"messages": HELLO, **{f"unknown{i}": 1 for i in range(100)}}),
    ):
        assert post(lenient, path, given)[0] == 400


def test_a_text_is_completed_as_it_is(strict, policy):
    client = client_of(strict)
    found = client.completions.create(model="tiny", prompt="<think>Hello", max_tokens=20, seed=1, logprobs=2)
    (row,) = rows_of(strict)
    assert row["prompt_ids"] == policy.encode_prompt("<think>Hello")
    (choice,) = found.choices
    assert choice.text == policy.decode(row["response_ids"])
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(row["prompt_ids"]), 20)
    assert choice.finish_reason == "length"
    assert choice.logprobs.token_logprobs == pytest.approx(row["logp"])
    assert len(choice.logprobs.top_logprobs[0]) == 2
    assert choice.logprobs.text_offset[:2] == [0, len(choice.logprobs.tokens[0])]
    again = client.completions.create(model="tiny", prompt=["<think>Hello"], seed=1)
    assert again.choices[0].text == choice.text[: len(again.choices[0].text)]
    assert again.usage.completion_tokens == 16, "OpenAI's default"
    assert len(rows_of(strict)) == 2


def test_streamed_texts_are_the_texts(strict):
    client = client_of(strict)
    given = {"model": "tiny", "prompt": "<think>a", "n": 2, "seed": 3, "max_tokens": 90}
    whole = [choice.text for choice in client.completions.create(**given).choices]
    texts, ends, usage = ["", ""], 0, None
    for chunk in client.completions.create(**given, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            ends += choice.finish_reason is not None
    assert texts == whole
    assert ends == 2
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 100


def test_an_answer_that_the_client_has_begun_is_continued(strict, policy):
    """The client sends "Sure, ", gets the rest, and goes on with both as one message: one row."""
    begun = [*HELLO, {"role": "assistant", "content": "Sure, "}]
    given = {"max_tokens": 20, "seed": 1, "model": "tiny"}
    reply = post(strict, "messages", {**given, "messages": begun})[1]
    (row,) = rows_of(strict)
    prompt = "".join(policy.tokenizer.convert_ids_to_tokens(row["prompt_ids"]))
    assert prompt == "<|user|>Hello<eos><|assistant|>Sure, "
    rest = policy.decode(row["response_ids"])
    assert reply["content"][0]["text"] == rest
    assert all(row["mask"])
    assert row["messages"][-1]["content"] == "Sure, " + rest
    talk = [*HELLO, {"role": "assistant", "content": "Sure, " + rest}, {"role": "user", "content": "More"}]
    second = post(strict, "messages", {**given, "messages": [*talk, {"role": "assistant", "content": "OK"}]})[1]
    (row,) = rows_of(strict)
    assert row["turns"] == 2
    assert row["messages"][-1]["content"] == "OK" + second["content"][0]["text"]
    unseen = [i for i, own in zip(row["response_ids"], row["mask"], strict=True) if not own]
    assert "".join(policy.tokenizer.convert_ids_to_tokens(unseen)).endswith("<|assistant|>OK")


def test_thinking_is_switched_where_the_template_has_a_switch():
    policy = chatting(SWITCHED)
    for endpoint in serving(policy, "refuse"):
        for kind in ("disabled", "enabled", "adaptive"):
            given = {"messages": HELLO, "max_tokens": 5, "thinking": {"type": kind, "budget_tokens": 1024}}
            assert post(endpoint, "messages", given)[0] == 200
        ends = ["".join(policy.tokenizer.convert_ids_to_tokens(row["prompt_ids"])) for row in rows_of(endpoint)]
    assert [end.endswith("</think>\n\n") for end in ends] == [True, False, False]


def test_a_call_that_is_required_is_made_without_thinking():
    """Free thinking before it would take the whole length of a policy that writes at random."""
    pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'grouprl[grammar]'")
    parameters = {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "add", "parameters": parameters}}]
    for endpoint in serving(chatting(SWITCHED), "refuse"):
        for seed in range(4):
            reply = client_of(endpoint).chat.completions.create(
                model="tiny",
                messages=HELLO,
                tools=tools,
                tool_choice="required",
                parallel_tool_calls=False,
                max_tokens=120,
                seed=seed,
                extra_body={"chat_template_kwargs": {"enable_thinking": False}},
            )
            (call,) = reply.choices[0].message.tool_calls
            assert set(json.loads(call.function.arguments)) <= {"a"}
