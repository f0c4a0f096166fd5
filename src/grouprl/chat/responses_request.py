"""Translation of requests to OpenAI's /v1/responses: items become messages; references to stored data are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from grouprl.chat.refusal import Refusal
from grouprl.chat.request import MOST_MESSAGES, refuse_unknown
from grouprl.core.errors import shortened
from grouprl.core.json_types import JsonMapping, JsonObject

UNSTORED = "nothing is stored here; send the whole conversation as input"
UNABLE = {
    "background": "an answer is returned with its request",
    "conversation": UNSTORED,
    "max_tool_calls": "tools are called by the client, which counts them",
    "previous_response_id": UNSTORED,
    "prompt": "there are no stored prompts here; send the messages as input",
}
"""Unsupported parameters that would change the answer, and the reason for each."""
SHARED = (
    "chat_template_kwargs",
    "model",
    "parallel_tool_calls",
    "return_token_ids",
    "seed",
    "stop",
    "stream",
    "temperature",
    "tool_choice",
    "min_p",
    "top_k",
    "top_logprobs",
    "top_p",
)
"""Parameters that mean the same in a `ChatRequest`."""
IGNORED = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream_options",
    "user",
)
"""Parameters that change nothing here."""
OWN = ("include", "input", "instructions", "max_output_tokens", "text", "tools", "truncation")
LOGPROBS = "message.output_text.logprobs"
TEXTS = ("input_text", "output_text", "text")
ROLES = ("user", "assistant", "system", "developer")


def translated(given: Mapping[str, object]) -> dict[str, object]:
    """Return the chat completions request for a request's object; raise Refusal if that is impossible."""
    wanted = {name: value for name, value in given.items() if value is not None and value is not False}
    for name, why in UNABLE.items():
        if name in wanted:
            raise Refusal(f"{name} = {shortened(wanted[name], 40)} is not supported: {why}", name)
    refuse_unknown(wanted, (*SHARED, *IGNORED, *OWN))
    _check_form(wanted)
    found = {name: wanted[name] for name in SHARED if name in wanted}
    if given.get("parallel_tool_calls") is False:
        found["parallel_tool_calls"] = False
    if "max_output_tokens" in wanted:
        found["max_tokens"] = wanted["max_output_tokens"]
    include = wanted.get("include", [])
    if not isinstance(include, list) or not all(isinstance(each, str) for each in include):
        raise Refusal(f"include = {shortened(include)}; it must be a list of names", "include")
    found["logprobs"] = LOGPROBS in include or bool(found.get("top_logprobs"))
    written = wanted.get("text")
    found["response_format"] = written.get("format") if isinstance(written, dict) else None
    found["tools"] = _tools(wanted.get("tools", []))
    found["messages"] = [*_instructions(wanted), *_messages(wanted.get("input"))]
    return found


def _check_form(wanted: Mapping[str, object]) -> None:
    truncation, text = wanted.get("truncation", "disabled"), wanted.get("text", {})
    if truncation != "disabled":
        rule = "a conversation is never shortened; leave it out"
        raise Refusal(f"truncation = {shortened(truncation, 40)} is not supported: {rule}", "truncation")
    if not isinstance(text, dict):
        raise Refusal(f"text = {shortened(text)}; it must be an object with a format", "text")


def _instructions(wanted: Mapping[str, object]) -> list[JsonObject]:
    given = wanted.get("instructions", "")
    if not isinstance(given, str):
        raise Refusal(f"instructions = {shortened(given)}; it must be a text", "instructions")
    return [{"role": "system", "content": given}] if given else []


def _messages(given: object) -> list[dict[str, object]]:
    """Return the messages for the items of the input; calls belong to the assistant's message before them."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if given is None:
        raise Refusal("'input' is missing", "input")
    if not isinstance(given, list) or not given or len(given) > MOST_MESSAGES:
        raise Refusal(
            f"input = {shortened(given)}; it must be a text, or a list of 1 to {MOST_MESSAGES} items", "input"
        )
    messages: list[JsonObject] = []
    for item in given:
        if not isinstance(item, dict):
            raise Refusal(f"An item of input is {shortened(item)}; it must be an object", "input")
        _add(messages, item)
    return messages


def _add(messages: list[JsonObject], item: JsonMapping) -> None:
    kind = item.get("type", "message")
    if kind == "reasoning":
        return  # other models' thinking; a policy's own thinking is part of its text
    if kind == "message" and item.get("role") in ROLES:
        messages.append({"role": item["role"], "content": _text(item.get("content"))})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        messages[-1].setdefault("tool_calls", []).append({"id": item.get("call_id"), "function": function})
    elif kind == "function_call_output":
        output = _text(item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    else:
        known = "messages (of the roles user, assistant, system, developer), function_call and function_call_output"
        raise Refusal(f"An item of input is {shortened(dict(item))}; known are {known}", "input")


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") not in TEXTS or not isinstance(part.get("text"), str):
            raise Refusal(f"The content is {shortened(part)}; it must be a text, or a list of text parts", "input")
        texts.append(part["text"])
    return "".join(texts)


def _tools(given: object) -> list[object]:
    if not isinstance(given, list):
        raise Refusal(f"tools = {shortened(given)}; it must be a list", "tools")
    return list(_each_tool(given))


def _each_tool(given: list[object]) -> Iterator[dict[str, object]]:
    for tool in given:
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise Refusal(
                f"A tool is {shortened(tool)}; tools must be of type 'function', and the client runs them", "tools"
            )
        said = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
        yield {"type": "function", "function": said}
