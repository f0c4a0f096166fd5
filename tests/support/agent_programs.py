"""Agent programs for the tests: nothing in them knows of this package."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
import urllib.request

import openai

SHARED = openai.DefaultHttpxClient()
"""Connections are kept over episodes: to begin a client takes longer than what it asks."""
EIGHT = threading.Barrier(8)


def client_of(base_url, api_key):
    return openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=SHARED)


def answer_once(prompt, base_url, api_key):
    """Ask once and return the completion."""
    client = client_of(base_url, api_key)
    reply = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": prompt}])
    return reply.choices[0].message.content


def counting(prompt, base_url, api_key):
    """Ask twice in one conversation; return the numbers of tokens that the replies say they have."""
    client = client_of(base_url, api_key)
    messages, counted = [{"role": "user", "content": prompt}], []
    for _ in range(2):
        reply = client.chat.completions.create(model="policy", messages=messages)
        counted.append([reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens])
        messages += [reply.choices[0].message, {"role": "user", "content": "?"}]
    return json.dumps(counted)


def wishing(prompt, base_url, api_key):
    """Ask with parameters that a trainer cannot apply; return what the server says."""
    given = {"messages": [{"role": "user", "content": prompt}], "model": "any", "frequency_penalty": 0.5}
    try:
        return client_of(base_url, api_key).chat.completions.create(**given, extra_body={"top_k": 3}).object
    except openai.APIStatusError as error:
        return error.message


def two_turns(prompt, base_url, api_key):
    """Ask, then ask whether that is sure, in the same conversation."""
    client = client_of(base_url, api_key)
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": prompt}]
    for _ in range(2):
        reply = client.chat.completions.create(model="policy", messages=messages)
        messages += [reply.choices[0].message, {"role": "user", "content": "Sure?"}]
    return messages[-2].content


def twice(prompt, base_url, api_key):
    """Ask the same thing twice; return everything that was said."""
    client = client_of(base_url, api_key)
    messages, said = [{"role": "user", "content": "?"}], ""
    for _ in range(2):
        reply = client.chat.completions.create(model="policy", messages=messages)
        said += reply.choices[0].message.content
        messages += [reply.choices[0].message, {"role": "user", "content": "?"}]
    return said


async def two_conversations(prompt, base_url, api_key):
    """Ask in one conversation, then in another that knows nothing of the first."""
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    texts = []
    for words in (prompt, "Unrelated"):
        reply = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": words}])
        texts.append(reply.choices[0].message.content)
    return texts[0]


def unsupported(prompt, base_url, api_key):
    """Ask for what cannot be trained."""
    client = client_of(base_url, api_key)
    messages = [{"role": "user", "content": prompt}]
    complaints = []
    for settings in ({"n": 2}, {"logprobs": True}):
        try:
            client.chat.completions.create(model="policy", messages=messages, **settings)
        except openai.BadRequestError as error:
            complaints.append(error.message)
    client.chat.completions.create(model="policy", messages=messages, stop=["."], stream=False)
    return " ".join(complaints)


def with_stop(prompt, base_url, api_key):
    client = client_of(base_url, api_key)
    stream = client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": prompt}], stop=["."], stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def tool_loop(prompt, base_url, api_key):
    """Let the model call a calculator until it answers."""
    client = client_of(base_url, api_key)
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    messages = [{"role": "user", "content": prompt}]
    while True:
        message = client.chat.completions.create(model="policy", messages=messages, tools=tools).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            given = json.loads(call.function.arguments)
            result = str(sum(given.values()))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def slow(prompt, base_url, api_key):
    for _ in range(2):
        time.sleep(0.3)
        answer_once(prompt, base_url, api_key)
    return "7"


def together(prompt, base_url, api_key):
    """Go on only once eight programs have come as far: one after the other they would never end."""
    for _ in range(2):
        EIGHT.wait(60)
        answer_once(prompt, base_url, api_key)
    return "7"


def crashing(prompt, base_url, api_key):
    answer_once(prompt, base_url, api_key)
    raise ValueError("cannot read the answer")


def silent(prompt):
    return "7"


def hanging(prompt, base_url, api_key):
    answer_once(prompt, base_url, api_key)
    time.sleep(3)


def expert(messages, rng, **columns):
    """What to answer to `answer_once` on sums: right half of the time."""
    right = eval(messages[-1]["content"].rstrip("="), {}, {})
    return str(right if rng.random() < 0.5 else rng.randrange(20))


if __name__ == "__main__":  # a command: where the model is stands in the environment
    reply = openai.OpenAI(max_retries=0).chat.completions.create(
        model="policy", messages=[{"role": "user", "content": sys.argv[1]}]
    )
    print(f"It is {reply.choices[0].message.content}")
    print(sys.stdin.read(), file=sys.stderr)
    if "fail" in sys.argv:
        sys.exit("no luck")


def boss_and_clerk(prompt, base_url, api_key):
    """Two agents: the boss asks the clerk twice, each time anew; what the clerk says last counts."""
    client = client_of(base_url, api_key)

    def request(name, messages):
        return client.chat.completions.create(model=name, messages=messages).choices[0].message.content

    said, answer = [{"role": "user", "content": prompt}], ""
    for _ in range(2):
        order = request("boss", said)
        answer = request("clerk", [{"role": "user", "content": order}])
        said += [{"role": "assistant", "content": order}, {"role": "user", "content": answer}]
    return answer


def through_responses(prompt, base_url, api_key):
    """A loop over tools by the responses' protocol, streamed."""
    client = client_of(base_url, api_key)
    tools = [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}]
    items = [{"role": "user", "content": prompt}]
    while True:
        *_, last = client.responses.create(model="policy", input=items, tools=tools, stream=True)
        reply = last.response
        items += [item.model_dump() for item in reply.output]
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return reply.output_text
        for call in calls:
            total = str(sum(json.loads(call.arguments).values()))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": total})


def post_json(url, given, api_key):
    request = urllib.request.Request(url, json.dumps(given).encode(), {"x-api-key": api_key})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())


def through_messages(prompt, anthropic_base_url, api_key):
    """A loop over tools by Anthropic's messages, without its client."""
    tools = [{"name": "add", "input_schema": {"type": "object", "properties": {}}}]
    messages = [{"role": "user", "content": prompt}]
    while True:
        given = {"model": "policy", "max_tokens": 50, "messages": messages, "tools": tools}
        reply = post_json(f"{anthropic_base_url}/v1/messages", given, api_key)
        messages.append({"role": "assistant", "content": reply["content"]})
        if reply["stop_reason"] != "tool_use":
            return reply["content"][0]["text"]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": str(sum(block["input"].values()))}
            for block in reply["content"]
            if block["type"] == "tool_use"
        ]
        messages.append({"role": "user", "content": results})


def wants_json(prompt, base_url, api_key):
    """Its first request cannot be served, and it does not notice."""
    client = client_of(base_url, api_key)
    messages = [{"role": "user", "content": prompt}]
    client.chat.completions.create(model="policy", messages=messages, response_format={"type": "json_object"})


def hides_refusals(prompt, base_url, api_key):
    """What it requests is refused, at an address that is not there, and it says nothing of it."""
    with contextlib.suppress(openai.NotFoundError):
        client_of(base_url, api_key).embeddings.create(model="policy", input=prompt)


def asks_then_hides(prompt, base_url, api_key):
    """It is answered once, then refused, and goes on as if nothing had been."""
    text = answer_once(prompt, base_url, api_key)
    with contextlib.suppress(openai.BadRequestError):
        wants_json(prompt, base_url, api_key)
    return text


def sulks(prompt, base_url, api_key):
    """After a refusal it neither asks again nor ends."""
    answer_once(prompt, base_url, api_key)
    with contextlib.suppress(openai.BadRequestError):
        wants_json(prompt, base_url, api_key)
    time.sleep(3)


def refused_aloud(prompt, base_url, api_key):
    """Say what it does; its request is refused."""
    print("planning")
    with contextlib.suppress(openai.BadRequestError):
        wants_json(prompt, base_url, api_key)
    print("no answer", file=sys.stderr)


def prints_then_ends(prompt, base_url, api_key):
    refused_aloud(prompt, base_url, api_key)


def prints_then_raises(prompt, base_url, api_key):
    refused_aloud(prompt, base_url, api_key)
    raise ValueError("odd")


async def prints_and_goes_on(prompt, base_url, api_key):
    await asyncio.to_thread(print, "aside")
    answer_once(prompt, base_url, api_key)
    refused_aloud(prompt, base_url, api_key)


def prints_and_sulks(prompt, base_url, api_key):
    answer_once(prompt, base_url, api_key)
    refused_aloud(prompt, base_url, api_key)
    time.sleep(3)


def with_variable(prompt, base_url, api_key, name, value=True):
    """Two turns with a variable of the chat template."""
    client, messages = client_of(base_url, api_key), [{"role": "user", "content": prompt}]
    for _ in range(2):
        given = {"chat_template_kwargs": {name: value}}
        reply = client.chat.completions.create(model="policy", messages=messages, extra_body=given)
        messages += [reply.choices[0].message, {"role": "user", "content": "Sure?"}]
    return messages[-2].content


def set_variable_quiet(prompt, base_url, api_key):
    return with_variable(prompt, base_url, api_key, "quiet")


def set_variable_quiet_to_false(prompt, base_url, api_key):
    return with_variable(prompt, base_url, api_key, "quiet", False)


def set_variable_quite(prompt, base_url, api_key):
    return with_variable(prompt, base_url, api_key, "quite")
