"""A served policy, spoken to by OpenAI's own client."""

from __future__ import annotations

import json
import os
import stat
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from chat_policies import chatting, scripted
from grouprl.policy import Tokens
from grouprl.serve import BatchedSampling, SampleJob, Service

openai = pytest.importorskip("openai", reason="openai is not installed: pip install 'grouprl[dev]'")
pytest.importorskip("starlette", reason="starlette is not installed: pip install 'grouprl[serve]'")
from grouprl.chat import Endpoint  # noqa: E402

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


@pytest.fixture(scope="module")
def policy():
    return chatting()


@pytest.fixture
def served(policy):
    service = Service(policy, "tiny", max_tokens=40)
    endpoint = Endpoint(service)
    yield endpoint, service
    endpoint.close()
    service.close()


def client_of(endpoint, key="me"):
    return openai.OpenAI(base_url=endpoint.url, api_key=key, max_retries=0, timeout=30)


def request(client, text="Hello", **settings):
    settings = {"seed": 1, "max_tokens": 20, **settings}
    return client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": text}], **settings)


def rows_of(endpoint, key="me"):
    return fetch(f"{endpoint.url}/rows", key=key)[1]["data"]


def fetch(url, body=None, key=""):
    """Send a request; return the status and the JSON of the reply."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def check_logp(policy, row):
    """The recorded log-probs are the policy's own, at the tokens it sampled."""
    logp_bt = policy.logp(Tokens.of([row["prompt_ids"]], [row["response_ids"]]))[0]
    mask = torch.tensor(row["mask"])
    assert mask.any()
    assert torch.allclose(logp_bt[mask].double(), torch.tensor(row["logp"], dtype=torch.float64)[mask], atol=1e-5)


def test_models(served):
    assert [model.id for model in client_of(served[0]).models.list()] == ["tiny"]


def test_an_answer_and_its_exact_tokens(served, policy):
    client = client_of(served[0])
    answer = request(client, logprobs=True)
    (row,) = rows_of(served[0])
    assert "".join(policy.tokenizer.convert_ids_to_tokens(row["prompt_ids"])) == "<|user|>Hello<eos><|assistant|>"
    assert policy.decode(row["response_ids"]) == answer.choices[0].message.content
    assert answer.usage.prompt_tokens == len(row["prompt_ids"])
    assert answer.usage.completion_tokens == len(row["response_ids"]) == len(answer.choices[0].logprobs.content)
    assert [token.logprob for token in answer.choices[0].logprobs.content] == pytest.approx(row["logp"])
    ended = row["response_ids"][-1] in policy.eos_ids
    assert answer.choices[0].finish_reason == ("stop" if ended else "length")
    check_logp(policy, row)


def test_the_seed_decides_and_neighbours_do_not(served):
    client, texts = client_of(served[0]), [f"Example {i}" for i in range(12)]
    alone = [request(client, text, max_tokens=50).choices[0].message.content for text in texts]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda text: request(client, text, max_tokens=50).choices[0].message.content, texts))
    assert together == alone
    assert len(set(alone)) > 1
    assert served[1].batching.largest > 1  # they were sampled together
    assert request(client, seed=2).choices[0].message.content != request(client, seed=3).choices[0].message.content
    assert request(client, seed=None).id  # a seed of the server's own


def test_several_answers_are_rows_of_their_own(served):
    answer = request(client_of(served[0]), n=3)
    assert len({choice.message.content for choice in answer.choices}) == 3
    rows = rows_of(served[0])
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert len({tuple(row["prompt_ids"]) for row in rows}) == 1


def test_greedy_needs_no_seed(served, policy):
    client = client_of(served[0])
    one, two = (request(client, temperature=0, seed=seed).choices[0].message.content for seed in (1, 2))
    assert one == two
    check_logp(policy, rows_of(served[0])[0])


def test_a_stop_text_ends_an_answer_and_is_not_shown(served, policy):
    client = client_of(served[0])
    whole = request(client, max_tokens=100).choices[0].message.content
    stop = whole[40:43]
    cut = request(client, max_tokens=100, stop=[stop, "never"])
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    row = rows_of(served[0])[1]
    assert policy.decode(row["response_ids"]) == whole[: whole.index(stop) + len(stop)]  # what was really sampled
    streamed = request(client, max_tokens=100, stop=stop, stream=True)
    assert "".join(x.choices[0].delta.content or "" for x in streamed) == cut.choices[0].message.content


def test_a_stream_is_the_answer_in_pieces(served):
    client = client_of(served[0])
    whole = request(client, max_tokens=100, logprobs=True)
    chunks = list(
        request(client, max_tokens=100, stream=True, logprobs=True, stream_options={"include_usage": True}, n=1)
    )
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(texts) == whole.choices[0].message.content
    assert len(texts) > 2  # as it is sampled, not at the end
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    logprobs = [t.logprob for c in chunks if c.choices and c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert logprobs == [token.logprob for token in whole.choices[0].logprobs.content]


def test_a_conversation_that_goes_on_goes_on_in_its_row(served, policy):
    client = client_of(served[0])
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]

    def turn(seed):
        answer = client.chat.completions.create(model="tiny", messages=messages, seed=seed, max_tokens=12)
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        return answer

    turn(1)
    before = rows_of(served[0])[0]
    messages.append({"role": "user", "content": "More"})
    second = turn(2)
    (row,) = rows_of(served[0])
    n = len(before["response_ids"])
    assert row["response_ids"][:n] == before["response_ids"]
    assert row["turns"] == 2
    own = [i for i, sampled in enumerate(row["mask"]) if sampled]
    between = row["response_ids"][n : own[own.index(n - 1) + 1]]
    end = "" if before["response_ids"][-1] in policy.eos_ids else "<eos>"
    assert "".join(policy.tokenizer.convert_ids_to_tokens(between)) == f"{end}<|user|>More<eos><|assistant|>"
    assert second.usage.prompt_tokens == len(row["prompt_ids"]) + n + len(between)
    check_logp(policy, row)
    messages[0]["content"] = "Be long."
    messages.append({"role": "user", "content": "Again"})
    turn(3)
    assert [row["turns"] for row in rows_of(served[0])] == [2, 1]  # another beginning, another row


def test_clients_do_not_see_each_other(served):
    request(client_of(served[0], "one"))
    request(client_of(served[0], "two"))
    assert len(rows_of(served[0], "one")) == len(rows_of(served[0], "two")) == 1
    assert fetch(f"{served[0].url}/rows", key="three")[0] == 404
    assert fetch(f"{served[0].url}/rows")[0] == 401


def test_two_requests_that_go_on_from_one_answer_become_two_rows(served, policy):
    client = client_of(served[0])
    first = request(client).choices[0].message.model_dump(exclude_none=True)
    said = [{"role": "user", "content": "Hello"}, first]

    def go_on(text):
        messages = [*said, {"role": "user", "content": text}]
        client.chat.completions.create(model="tiny", messages=messages, seed=5, max_tokens=5)

    go_on("A")
    go_on("B")
    rows = rows_of(served[0])
    assert [row["turns"] for row in rows] == [2, 1]
    for row in rows:
        check_logp(policy, row)


def test_tools_are_announced_and_called(served, policy, monkeypatch):
    client = client_of(served[0])
    script = iter(['Let me see.<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "It is 3."])
    monkeypatch.setattr("grouprl.rollout.local.sampler.decode", scripted(policy, script))
    messages = [{"role": "user", "content": "1+2?"}]
    first = client.chat.completions.create(model="tiny", messages=messages, tools=[ADD], max_tokens=200)
    (call,) = first.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
    assert first.choices[0].finish_reason == "tool_calls"
    assert first.choices[0].message.content == "Let me see."
    messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
    second = client.chat.completions.create(model="tiny", messages=messages, tools=[ADD], max_tokens=200)
    assert second.choices[0].message.content == "It is 3."
    (row,) = rows_of(served[0])
    text = "".join(policy.tokenizer.convert_ids_to_tokens(row["prompt_ids"] + row["response_ids"]))
    assert text == (
        "<|tools|>add;<eos><|user|>1+2?<eos><|assistant|>Let me see.<tool_call>\n"
        '{"name": "add", "arguments": {"a": 1}}\n</tool_call><eos><|tool|>3<eos><|assistant|>It is 3.<eos>'
    )


def test_streamed_tool_calls_come_whole(served, policy, monkeypatch):
    script = iter(['<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'])
    monkeypatch.setattr("grouprl.rollout.local.sampler.decode", scripted(policy, script))
    stream = request(client_of(served[0]), tools=[ADD], stream=True, max_tokens=200)
    chunks = [chunk.choices[0] for chunk in stream]
    (call,) = [each for chunk in chunks for each in chunk.delta.tool_calls or []]
    assert (call.index, call.function.name, json.loads(call.function.arguments)) == (0, "add", {"a": 1})
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["tool_calls"]


def test_a_malformed_call_is_text(served, policy, monkeypatch):
    for text in ('<tool_call>{"name": add}</tool_call>', '<tool_call>["add"]</tool_call>', "<tool_call>{"):
        monkeypatch.setattr("grouprl.rollout.local.sampler.decode", scripted(policy, iter([text])))
        answer = request(client_of(served[0], text), tools=[ADD], max_tokens=200).choices[0]
        assert (answer.message.content, answer.message.tool_calls, answer.finish_reason) == (text, None, "stop")


@pytest.mark.parametrize(
    ("settings", "status", "message"),
    [
        ({"model": "gpt"}, 404, "There is no model 'gpt'; this server has 'tiny'"),
        ({"temperature": -1}, 400, "temperature = -1.*greater than or equal to 0"),
        ({"n": 65}, 400, "at most 64"),
        ({"max_tokens": 0}, 400, "max_tokens = 0"),
        ({"max_tokens": 5000}, 400, "room for 2048"),
        ({"stop": [""]}, 400, "empty text"),
        ({"frequency_penalty": 1}, 400, "frequency_penalty = 1 is not supported"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty = 0.5 is not supported"),
        ({"top_logprobs": 3}, 400, "with logprobs: true only"),
        ({"extra_body": {"max_token": 3}}, 400, "no parameter 'max_token'.*Did you mean 'max_tokens'"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"content": "x"}]}, 400, "has no role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "must be a text"),
        ({"messages": [{"role": "user", "content": "é"}]}, 400, "'é'.*not in the tokenizer's alphabet"),
    ],
)
def test_errors_in_words(served, settings, status, message):
    given = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **settings}
    with pytest.raises(openai.APIStatusError, match=message) as caught:
        client_of(served[0]).chat.completions.create(**given)
    assert caught.value.status_code == status


def test_other_requests(served):
    url = served[0].url
    assert fetch(f"{url}/chat/completions", b"{")[1]["error"]["message"].startswith("The body is not")
    assert fetch(f"{url}/chat/completions", b"[]")[0] == 400
    assert "available are /v1/chat/completions" in fetch(f"{url}/completions")[1]["error"]["message"]
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        bare = Service(chatting(None), "tiny")
        endpoint = Endpoint(bare)
        try:
            request(client_of(endpoint), tools=[ADD])
        finally:
            endpoint.close()
            bare.close()


def test_without_a_template_messages_are_their_contents():
    policy = chatting(None)
    service = Service(policy, "tiny")
    endpoint = Endpoint(service)
    try:
        request(client_of(endpoint), "1+1=")
        (row,) = rows_of(endpoint)
        assert row["prompt_ids"] == policy.encode_prompt("1+1=")
    finally:
        endpoint.close()
        service.close()


@pytest.mark.parametrize("mode", [None, 0o644, 0o666])
def test_a_record_can_be_read_by_its_owner_only(policy, tmp_path, mode):
    file = tmp_path / "tokens.jsonl"
    if mode is not None:
        file.write_text("kept\n")
        file.chmod(mode)
    before = os.umask(0)
    try:
        Service(policy, "tiny", record=file).recorded.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == ("" if mode is None else "kept\n")


def test_a_record_holds_every_token(policy, tmp_path):
    file = tmp_path / "tokens.jsonl"
    service = Service(policy, "tiny", record=file)
    endpoint = Endpoint(service)
    client = client_of(endpoint)
    messages = [{"role": "user", "content": "Hello"}]
    for seed in range(3):
        answer = client.chat.completions.create(model="tiny", messages=messages, seed=seed, max_tokens=9)
        messages += [answer.choices[0].message, {"role": "user", "content": "More"}]
    (row,) = rows_of(endpoint)
    endpoint.close()
    service.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["key"], line["row"], line["turn"]) for line in lines] == [("me", 0, turn) for turn in range(3)]
    assert [i for line in lines for i in line["seen_ids"] + line["ids"]] == row["prompt_ids"] + row["response_ids"]


def test_a_client_that_goes_away_stops_its_answer(policy):
    sampler, begun = BatchedSampling(policy), threading.Event()
    seen = []
    line = SampleJob(tuple(policy.encode("x")), 1500, 0, told=lambda text: (seen.append(text), begun.set()))
    future = sampler.sample(line)
    begun.wait(20)
    ended = future.cancel()
    other = sampler.sample(SampleJob(tuple(policy.encode("y")), 5, 0)).result(20)
    sampler.close()
    assert ended
    assert len(other.ids) <= 5
    assert sum(map(len, seen)) < 1500
    sampler.close()


def test_what_fails_while_sampler_is_said(served, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no memory")

    monkeypatch.setattr("grouprl.rollout.local.sampler.decode", broken)
    with pytest.raises(openai.InternalServerError, match="RuntimeError: no memory"):
        request(client_of(served[0]))
    monkeypatch.undo()
    assert request(client_of(served[0])).choices  # the next request is served
