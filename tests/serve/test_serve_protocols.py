"""One policy behind three protocols, spoken to by the providers' own clients where they are installed."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
import torch

from chat_policies import chatting, scripted
from grouprl.chat.limits import Access, ChatLimits
from grouprl.core.errors import InputError
from grouprl.serve import Service

openai = pytest.importorskip("openai", reason="openai is not installed: pip install 'grouprl[dev]'")
pytest.importorskip("starlette", reason="starlette is not installed: pip install 'grouprl[serve]'")
from grouprl.chat import Endpoint  # noqa: E402

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
THINKING = (
    "{% if enable_thinking is defined and not enable_thinking %}{% set quiet = '<think></think>' %}{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ quiet or '' }}{% endif %}"
)
PATHS = ("chat/completions", "responses", "messages")


@pytest.fixture(scope="module")
def policy():
    return chatting()


@pytest.fixture
def served(policy):
    yield from serving(policy)


def serving(policy, access=None, **limits):
    service = Service(policy, "tiny", max_tokens=40)
    endpoint = Endpoint(service, limits=ChatLimits(**limits), access=access)
    yield endpoint
    endpoint.close()
    service.close()


def post(endpoint, path, given, key="me", header="authorization"):
    """Send a request; return the status and the body, as JSON unless it is a stream."""
    value = f"Bearer {key}" if header == "authorization" else key
    body = given if isinstance(given, bytes) else json.dumps(given).encode()
    request = urllib.request.Request(f"{endpoint.url}/{path}", body, {header: value} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            status, text = reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    return status, text if text.startswith(("event:", "data:")) else json.loads(text)


def events(text):
    """The (name, JSON) of a stream's events; '' for those without a name."""
    found = []
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if lines["data"] != "[DONE]":
            found.append((lines.get("event", ""), json.loads(lines["data"])))
    return found


def rows_of(endpoint, key="me"):
    request = urllib.request.Request(f"{endpoint.url}/rows", headers={"x-api-key": key})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())["data"]


def says(policy, monkeypatch, *texts):
    """Let the policy say these texts, one after another."""
    monkeypatch.setattr("grouprl.rollout.local.sampler.decode", scripted(policy, iter(texts)))


def body(path, text="Hello", **settings):
    """The same request in each protocol."""
    common = {"seed": 1, **settings}
    if path == "responses":
        return {"input": text, "max_output_tokens": 20, **common}
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 20, **common}


def text_of(path, reply):
    if path == "responses":
        return reply["output"][-1]["content"][0]["text"]
    return reply["content"][-1]["text"] if path == "messages" else reply["choices"][0]["message"]["content"]


def test_one_request_is_one_answer_in_every_protocol(served):
    replies = [post(served, path, body(path))[1] for path in PATHS]
    (one,) = {text_of(path, reply) for path, reply in zip(PATHS, replies, strict=True)}
    assert one
    rows = rows_of(served)
    assert len({tuple(row["response_ids"]) for row in rows}) == 1
    assert len({tuple(row["prompt_ids"]) for row in rows}) == 1
    usages = [reply["usage"] for reply in replies]
    (row, *_) = rows
    counted = (len(row["prompt_ids"]), len(row["response_ids"]))
    assert (usages[0]["prompt_tokens"], usages[0]["completion_tokens"]) == counted
    assert all((usage["input_tokens"], usage["output_tokens"]) == counted for usage in usages[1:])


def test_a_conversation_may_change_its_protocol_and_stays_in_its_row(served):
    """What is one conversation is one row, whichever client continues it."""
    first = post(served, "responses", body("responses"))[1]
    said = text_of("responses", first)
    talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": said}]
    second = post(served, "messages", body("messages") | {"messages": [*talk, {"role": "user", "content": "More"}]})[1]
    assert second["type"] == "message"
    (row,) = rows_of(served)
    assert row["turns"] == 2


def openai_client(endpoint):
    return openai.OpenAI(base_url=endpoint.url, api_key="me", max_retries=0, timeout=30)


def test_openais_client_finds_the_model_by_its_name(served):
    client = openai_client(served)
    assert client.models.retrieve("tiny") == client.models.list().data[0]
    with pytest.raises(Exception, match="There is no model 'tine'; this server has 'tiny'") as refused:
        client.models.retrieve("tine")
    assert refused.value.status_code == 404


def test_openais_client_reads_responses(served, policy):
    client = openai_client(served)
    reply = client.responses.create(
        model="tiny", input="Hello", instructions="Be brief.", max_output_tokens=20, extra_body={"seed": 1}
    )
    (row,) = rows_of(served)
    assert reply.output_text == row["messages"][-1]["content"] == policy.decode(row["response_ids"])
    written = "".join(policy.tokenizer.convert_ids_to_tokens(row["prompt_ids"]))
    assert written == "<|system|>Be brief.<eos><|user|>Hello<eos><|assistant|>"
    ended = row["response_ids"][-1] in policy.eos_ids
    assert reply.status == ("completed" if ended else "incomplete")
    assert reply.incomplete_details is None if ended else reply.incomplete_details.reason == "max_output_tokens"
    again = [{"role": "user", "content": "Hello"}, *reply.output, {"role": "user", "content": "More"}]
    items = [item if isinstance(item, dict) else item.model_dump() for item in again]
    client.responses.create(model="tiny", input=items, instructions="Be brief.", max_output_tokens=5)
    assert [row["turns"] for row in rows_of(served)] == [2]


def test_openais_client_reads_a_stream_of_events(served):
    client = openai_client(served)
    settings = {"model": "tiny", "input": "Hello", "max_output_tokens": 100, "extra_body": {"seed": 1}}
    whole = client.responses.create(**settings)
    found = list(client.responses.create(stream=True, **settings))
    deltas = [event.delta for event in found if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert len(deltas) > 2  # as it is sampled, not at the end
    kinds = list(dict.fromkeys(event.type for event in found))
    last = f"response.{whole.status}"
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        last,
    ]
    assert [event.sequence_number for event in found] == list(range(len(found)))
    assert found[-1].response.usage == whole.usage
    assert found[-1].response.output == whole.output


def test_openais_client_puts_a_stream_together(served, policy, monkeypatch):
    says(policy, monkeypatch, "<think>Odd.</think>It is 3, as was said before, and nothing else.")
    client = openai_client(served)
    with client.responses.stream(model="tiny", input="Hello", max_output_tokens=200) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.output_text == snapshots[-1] == "It is 3, as was said before, and nothing else."
    assert [item.type for item in final.output] == ["reasoning", "message"]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_in_responses(served, policy, monkeypatch, stream):
    says(policy, monkeypatch, f"Let me see.{CALL}", "It is 3.")
    tools = [{"type": "function", "name": "add", "description": "Adds.", "parameters": PARAMETERS, "strict": True}]
    client = openai_client(served)

    def respond(items):
        settings = {"model": "tiny", "input": items, "tools": tools, "max_output_tokens": 200}
        found = client.responses.create(stream=stream, **settings)
        if not stream:
            return found
        every = list(found)
        items = [event.item for event in every if event.type == "response.output_item.done"]
        assert items == every[-1].response.output
        return every[-1].response

    items = [{"role": "user", "content": "1+2?"}]
    first = respond(items)
    message, call = first.output
    assert (message.content[0].text, call.name, json.loads(call.arguments)) == ("Let me see.", "add", {"a": 1})
    items += [item.model_dump() for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "3"})
    second = respond(items)
    assert second.output_text == "It is 3."
    (row,) = rows_of(served)
    assert row["turns"] == 2
    text = "".join(policy.tokenizer.convert_ids_to_tokens(row["prompt_ids"] + row["response_ids"]))
    assert text.endswith("</tool_call><eos><|tool|>3<eos><|assistant|>It is 3.<eos>")


def anthropic_client(endpoint):
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed: pip install anthropic")
    return anthropic.Anthropic(base_url=endpoint.url.removesuffix("/v1"), api_key="me", max_retries=0, timeout=30)


def ask_anthropic(client, messages, **settings):
    given = {"model": "tiny", "max_tokens": 20, "messages": messages, "extra_body": {"seed": 1}, **settings}
    return client.messages.create(**given)


HELLO = [{"role": "user", "content": "Hello"}]


def test_anthropics_client_reads_messages(served, policy):
    client = anthropic_client(served)
    reply = ask_anthropic(client, HELLO, system=[{"type": "text", "text": "Be brief."}])
    (row,) = rows_of(served)
    assert reply.content[0].text == policy.decode(row["response_ids"])
    written = "".join(policy.tokenizer.convert_ids_to_tokens(row["prompt_ids"]))
    assert written == "<|system|>Be brief.<eos><|user|>Hello<eos><|assistant|>"
    ended = row["response_ids"][-1] in policy.eos_ids
    assert reply.stop_reason == ("end_turn" if ended else "max_tokens")
    talk = [*HELLO, {"role": "assistant", "content": reply.content}, {"role": "user", "content": "More"}]
    ask_anthropic(client, talk, system="Be brief.")
    assert [row["turns"] for row in rows_of(served)] == [2]
    stop = reply.content[0].text[3:5]
    cut = ask_anthropic(client, HELLO, system="Be brief.", stop_sequences=["never", stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].text == reply.content[0].text.partition(stop)[0]


def test_anthropics_client_reads_a_stream(served):
    client = anthropic_client(served)
    settings = {"model": "tiny", "max_tokens": 100, "messages": HELLO, "extra_body": {"seed": 1}}
    whole = client.messages.create(**settings)
    with client.messages.stream(**settings) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(texts) == whole.content[0].text
    assert len(texts) > 2
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert final.usage.input_tokens == whole.usage.input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_tools_in_messages(served, policy, monkeypatch, stream):
    says(policy, monkeypatch, f"Let me see.{CALL}", "It is 3.")
    client = anthropic_client(served)
    settings = {
        "model": "tiny",
        "max_tokens": 200,
        "tools": [{"name": "add", "description": "Adds.", "input_schema": PARAMETERS}],
    }

    def send(talk):
        if not stream:
            return client.messages.create(messages=talk, **settings)
        with client.messages.stream(messages=talk, **settings) as found:
            return found.get_final_message()

    talk = [{"role": "user", "content": "1+2?"}]
    first = send(talk)
    text, use = first.content
    assert (text.text, use.name, use.input, first.stop_reason) == ("Let me see.", "add", {"a": 1}, "tool_use")
    talk.append({"role": "assistant", "content": first.content})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "3"}]}
    talk.append({"role": "user", "content": [result]})
    assert send(talk).content[0].text == "It is 3."
    (row,) = rows_of(served)
    assert row["turns"] == 2


def test_messages_without_the_client(served, policy, monkeypatch):
    """The same wire format where no client is at hand: named events, in order, each once begun and once ended."""
    says(policy, monkeypatch, f"Let me see.{CALL}")
    given = body("messages", "1+2?", stream=True, max_tokens=200)
    status, text = post(served, "messages", given | {"tools": [{"name": "add", "input_schema": PARAMETERS}]})
    found = events(text)
    assert status == 200
    assert all(name == data["type"] for name, data in found)
    assert [name for name, _ in found] == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ]
    assert [data["index"] for name, data in found if name == "content_block_start"] == [0, 1]
    assert json.loads(found[5][1]["delta"]["partial_json"]) == {"a": 1}
    assert found[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_told_apart(policy, monkeypatch, stream):
    for served in serving(policy):
        says(policy, monkeypatch, *["<think>\nTwo of them are odd.\n</think>\n\nIt is 3."] * 2)
        reply = post(served, "responses", body("responses", stream=stream, max_output_tokens=100))[1]
        reply = events(reply)[-1][1]["response"] if stream else reply
        reasoning, message = reply["output"]
        assert reasoning["content"][0]["text"] == "Two of them are odd."
        assert message["content"][0]["text"] == "It is 3."
        reply = post(served, "messages", body("messages", stream=stream, max_tokens=100))[1]
        if stream:
            found = events(reply)
            blocks = [data["content_block"]["type"] for name, data in found if name == "content_block_start"]
            assert blocks == ["thinking", "text"]
            assert [data["index"] for name, data in found if name == "content_block_stop"] == [0, 1]
            deltas = [data["delta"] for name, data in found if name == "content_block_delta"]
            assert "".join(each.get("thinking", "") for each in deltas) == "Two of them are odd."
            assert "".join(each.get("text", "") for each in deltas) == "It is 3."
        else:
            thinking, text = reply["content"]
            assert (thinking["thinking"], text["text"]) == ("Two of them are odd.", "It is 3.")


@pytest.mark.parametrize("path", PATHS)
def test_token_ids_are_those_of_the_row(served, path):
    (status, reply), (_, plain) = (post(served, path, body(path, return_token_ids=flag)) for flag in (True, False))
    assert status == 200
    row = rows_of(served)[0]
    assert reply["prompt_token_ids"] == row["prompt_ids"]
    of = reply["choices"][0] if path == "chat/completions" else reply
    assert of["token_ids"] == row["response_ids"]
    assert "prompt_token_ids" not in plain
    found = [data for _, data in events(post(served, path, body(path, return_token_ids=True, stream=True))[1])]
    streamed = json.dumps(found)
    assert json.dumps(row["response_ids"]) in streamed
    assert json.dumps(row["prompt_ids"]) in streamed


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0])
def test_the_likeliest_tokens_are_the_policys_own(served, policy, temperature):
    settings = {"logprobs": True, "top_logprobs": 5, "temperature": temperature, "return_token_ids": True}
    reply = post(served, "chat/completions", body("chat/completions", **settings))[1]
    tokens = reply["choices"][0]["logprobs"]["content"]
    ids = [*reply["prompt_token_ids"], *reply["choices"][0]["token_ids"]]
    with torch.no_grad():
        logits_tv = policy.model(torch.tensor([ids])).logits[0].float()
    start = len(reply["prompt_token_ids"])
    for at, token in enumerate(tokens):
        logp_v = torch.log_softmax(logits_tv[start + at - 1] / (temperature or 1.0), -1)
        best = logp_v.topk(5)
        assert [each["logprob"] for each in token["top_logprobs"]] == pytest.approx(best.values.tolist(), abs=1e-4)
        names = policy.tokenizer.batch_decode([[i] for i in best.indices.tolist()])
        assert [each["token"] for each in token["top_logprobs"]] == names
        assert token["logprob"] == pytest.approx(float(logp_v[ids[start + at]]), abs=1e-4)
    given = body("responses", top_logprobs=2, temperature=temperature, include=["message.output_text.logprobs"])
    part = post(served, "responses", given)[1]["output"][0]["content"][0]
    assert [each["logprob"] for each in part["logprobs"]] == pytest.approx([t["logprob"] for t in tokens])
    assert all(len(each["top_logprobs"]) == 2 for each in part["logprobs"])


def test_tokens_are_counted_as_they_are_read(served):
    tools = [{"name": "add", "input_schema": PARAMETERS}]
    talk = [{"role": "user", "content": "Hello"}]
    for more in ({}, {"system": "Be brief."}, {"tools": tools}):
        asked = {"messages": talk, **more}
        status, counted = post(served, "messages/count_tokens", asked)
        _, reply = post(served, "messages", {**asked, "max_tokens": 5, "seed": 1})
        assert (status, counted) == (200, {"input_tokens": reply["usage"]["input_tokens"]})
    before = rows_of(served)
    talk += [{"role": "assistant", "content": text_of("messages", reply)}, {"role": "user", "content": "More"}]
    post(served, "messages/count_tokens", {"messages": talk, "tools": tools})
    assert rows_of(served) == before, "counting begins no row and goes on in none"
    status, reply = post(served, "messages/count_tokens", {"messages": "Hello"})
    assert (status, reply["type"]) == (400, "error")
    assert "it must be a list" in reply["error"]["message"]


def test_variables_of_the_template():
    policy = chatting(THINKING)
    for served in serving(policy):
        settings = {"chat_template_kwargs": {"enable_thinking": False}}
        talk = list(HELLO)
        for path in ("chat/completions", "messages"):
            reply = post(served, path, body(path, **settings) | {"messages": talk})[1]
            talk += [{"role": "assistant", "content": text_of(path, reply)}, {"role": "user", "content": "More"}]
        post(served, "chat/completions", body("chat/completions") | {"messages": talk})
        rows = rows_of(served)
        assert [row["turns"] for row in rows] == [2, 1]  # without the variable it is another conversation
        texts = ["".join(policy.tokenizer.convert_ids_to_tokens(row["prompt_ids"])) for row in rows]
        assert texts[0].endswith("<|assistant|><think></think>")
        assert texts[1].endswith("<|assistant|>")
        between = "".join(policy.tokenizer.convert_ids_to_tokens(rows[0]["response_ids"]))
        assert "<|user|>More<eos><|assistant|><think></think>" in between
        for wrong, said in (
            ("enable_thinkng", "no variable 'enable_thinkng'"),
            ("messages", "The messages determine it"),
        ):
            status, reply = post(served, "responses", body("responses", chat_template_kwargs={wrong: 1}))
            assert (status, reply["error"]["param"]) == (400, "chat_template_kwargs")
            assert said in reply["error"]["message"]


JSON_SCHEMA = {"type": "json_schema", "name": "x"}
REFUSED = [
    ("chat/completions", {"response_format": {"type": "xml"}}, "response_format = 'xml' is not known"),
    ("responses", {"text": {"format": JSON_SCHEMA}}, "text.format = json_schema has no schema"),
    ("messages", {"output_config": {"format": JSON_SCHEMA}}, "output_config.format = json_schema has no schema"),
    ("chat/completions", {"tool_choice": "required"}, "announces no tools"),
    ("messages", {"tool_choice": {"type": "tool", "name": "f"}}, "which is not a tool of the request"),
    ("chat/completions", {"top_logprobs": 3}, "with logprobs: true only"),
    ("chat/completions", {"top_logprobs": 21, "logprobs": True}, "top_logprobs = 21; at most 20"),
    ("responses", {"previous_response_id": "resp_1"}, "send the whole conversation as input"),
    ("responses", {"background": True}, "an answer is returned with its request"),
    ("responses", {"max_output_tokens": 0}, "max_output_tokens = 0"),
    ("responses", {"input": None}, "'input' is missing"),
    ("responses", {"input": []}, "it must be a text, or a list of 1 to"),
    ("responses", {"input": [{"type": "web_search_call"}]}, "known are messages"),
    ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "a list of text parts"),
    ("responses", {"input": [{"type": "function_call", "call_id": "a"}]}, "must have a function with a name"),
    ("responses", {"tools": [{"type": "web_search"}]}, "tools must be of type 'function'"),
    ("responses", {"max_outptu_tokens": 3}, "Did you mean 'max_output_tokens'"),
    ("responses", {"truncation": "auto"}, "a conversation is never shortened"),
    ("responses", {"model": "gpt"}, "There is no model 'gpt'; this server has 'tiny'"),
    ("responses", {"temperature": -1}, "temperature = -1"),
    ("responses", {"n": 2}, "no parameter 'n'"),
    ("messages", {"max_tokens": None}, "'max_tokens' is missing"),
    ("messages", {"messages": "Hello"}, "it must be a list"),
    ("messages", {"messages": [{"role": "tool", "content": "x"}]}, "role is user, assistant or system"),
    ("messages", {"messages": [*HELLO, {"role": "assistant", "content": []}]}, "begins with text"),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "only text is accepted here"),
    ("messages", {"stop_sequences": "x" * 300}, "stop_sequences"),
    ("messages", {"stop_sequences": 7}, "stop_sequences = 7"),
    ("messages", {"thinking": {"type": "enabled", "budget_tokens": 5}}, "has no switch for it"),
    ("messages", {"thinking": {"type": "deep"}}, "enabled, disabled or adaptive"),
    ("messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "the client runs it"),
    ("messages", {"top_n": 3}, "no parameter 'top_n'"),
    ("chat/completions", {"raw": True}, "no parameter 'raw'"),
    ("completions", {"suffix": "x", "messages": None, "prompt": "a"}, "suffix = 'x' is not supported"),
    ("completions", {"messages": None, "prompt": ["a", "b"]}, "a request for each prompt"),
    ("messages", {"thread": {"type": "create"}}, "nothing is stored here; send the whole conversation"),
    ("messages", {"mcp_servers": [{"url": "x"}]}, "tools are called by the client"),
    ("messages", {"prefill": "Sure"}, "let the last message be"),
]


PICTURE = [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]}]
UNNAMED = [{"type": "function", "function": {"name": "", "parameters": {}}}]
REFUSED += [
    ("chat/completions", {"messages": PICTURE}, "'image_url': {}}; it must be a text, or a list of parts"),
    ("chat/completions", {"messages": [{"role": "", "content": "x"}]}, "A message has no role"),
    ("chat/completions", {"parallel_tool_calls": "no"}, "parallel_tool_calls = 'no'; it must be true or false"),
    ("chat/completions", {"tools": UNNAMED}, "its name must not be empty"),
    ("messages", {"tools": [{"name": "f", "input_schema": 5}]}, "its parameters are a JSON schema, an object"),
    ("messages", {"stop_sequences": "x"}, "stop_sequences = 'x'; it must be a list of texts"),
    ("completions", {"messages": None, "prompt": "é"}, "not in the tokenizer's alphabet"),
    ("completions", {"messages": None, "prompt": "é", "stream": True}, "not in the tokenizer's alphabet"),
]


@pytest.mark.parametrize(("path", "change", "message"), REFUSED)
def test_errors_in_words_and_in_the_protocols_form(served, path, change, message):
    status, reply = post(served, path, {**body(path), **change})
    assert status == (404 if "model" in change else 400)
    assert message in reply["error"]["message"]
    kind = "not_found_error" if path == "messages" and status == 404 else "invalid_request_error"
    assert reply["error"]["type"] == kind
    assert ("type" in reply) is (path == "messages")


@pytest.mark.parametrize("path", PATHS)
def test_every_protocol_has_the_same_limits(policy, path):
    access = Access(keys=("secret",))
    for served in serving(policy, access, body_bytes=2000):
        assert post(served, path, body(path))[0] == 401
        for header in ("authorization", "x-api-key"):
            assert post(served, path, body(path), "secret", header)[0] == 200
        status, reply = post(served, path, body(path, "x" * 3000), "secret")
        assert (status, "too large" in reply["error"]["message"]) == (413, True)
        for junk in (b"{", b"[]", b"\xff", b"[" * 1000, b'{"input": "\\ud800", "max_tokens": 1}'):
            assert post(served, path, junk, "secret")[0] == 400
        assert post(served, path, body(path), "secret")[0] == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_cannot_be_answered_is_refused_with_a_status(served, path):
    streamed = post(served, path, body(path, "é", stream=True))
    assert streamed == post(served, path, body(path, "é"))
    assert streamed[0] == 400
    assert "not in the tokenizer's alphabet" in streamed[1]["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
def test_an_error_after_a_stream_has_begun_is_an_event(served, path, monkeypatch):
    def fail(*_):
        raise InputError("the engine is gone")

    monkeypatch.setattr(served.backend.batching.sampler, "sample", fail)
    status, text = post(served, path, body(path, stream=True))
    assert status == 200
    told = json.dumps(events(text)[-1][1], ensure_ascii=False)
    assert "the engine is gone" in told
    if path == "messages":
        assert events(text)[-1][1]["type"] == "error"
    if path == "responses":
        name, data = events(text)[-1]
        assert (name, data["type"]) == ("error", "error")


def test_what_is_not_there_names_what_is(served):
    status, reply = post(served, "embeddings", {})
    assert status == 404
    assert "available are /v1/chat/completions, /v1/responses, /v1/messages" in reply["error"]["message"]
