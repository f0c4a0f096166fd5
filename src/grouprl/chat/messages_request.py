"""Translation of requests to Anthropic's /v1/messages: blocks become messages, and `system` the first message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from grouprl.chat.refusal import Refusal
from grouprl.chat.request import refuse_unknown
from grouprl.core.errors import shortened
from grouprl.core.json_types import JsonMapping, JsonObject

SHARED = (
    "chat_template_kwargs",
    "max_tokens",
    "model",
    "return_token_ids",
    "seed",
    "stream",
    "temperature",
    "tool_choice",
    "top_k",
    "top_p",
)
"""Parameters that mean the same in a `ChatRequest`."""
UNSTORED = "nothing is stored here; send the whole conversation"
UNABLE = {
    "compaction": "a conversation is never shortened here",
    "container": "nothing is run here",
    "context_management": "a conversation is never shortened here",
    "fallbacks": "there is one model",
    "mcp_servers": "tools are called by the client",
    "prefill": "let the last message be the assistant's beginning of the answer",
    "thread": UNSTORED,
}
"""Unsupported parameters that would change the answer, and the reason for each."""
IGNORED = (
    "cache_control",
    "diagnostics",
    "inference_geo",
    "metadata",
    "service_tier",
    "speed",
    "user_profile_id",
    "workspace_id",
)
"""Parameters that change nothing here."""
THINKING: Mapping[object, bool | None] = {None: None, "adaptive": None, "disabled": False, "enabled": True}
"""Meanings of `thinking.type`."""
OWN = ("messages", "output_config", "stop_sequences", "system", "thinking", "tools")


def translated(given: Mapping[str, object]) -> dict[str, object]:
    """Return the chat completions request for a request's object; raise Refusal if that is impossible."""
    wanted = {name: value for name, value in given.items() if value is not None}
    for name, why in UNABLE.items():
        if name in wanted:
            raise Refusal(f"{name} = {shortened(wanted[name], 40)} is not supported: {why}", name)
    refuse_unknown(wanted, (*SHARED, *IGNORED, *OWN))
    if "max_tokens" not in wanted:
        raise Refusal("'max_tokens' is missing", "max_tokens")
    _check_form(wanted)
    found = {name: wanted[name] for name in SHARED if name in wanted}
    if "stop_sequences" in wanted:
        found["stop"] = wanted["stop_sequences"]
    written = wanted.get("output_config")
    found["response_format"] = written.get("format") if isinstance(written, dict) else None
    found["tools"] = list(_tools(wanted.get("tools", [])))
    system = _text(wanted.get("system", ""), "system")
    messages, found["prefill"] = _begun(_messages(wanted))
    found["thinking"] = THINKING[_kind_of_thinking(wanted)]
    found["messages"] = [*([{"role": "system", "content": system}] if system else []), *messages]
    return found


def _begun(messages: list[JsonObject]) -> tuple[list[JsonObject], str]:
    """Return the messages without an answer that the client has begun, and its text."""
    if not messages or messages[-1]["role"] != "assistant":
        return messages, ""
    *before, last = messages
    if not last["content"] or "tool_calls" in last:
        rule = "an answer that is begun by the client begins with text"
        raise Refusal(f"The last message is the assistant's: {rule}", "messages")
    return before, str(last["content"])


def _kind_of_thinking(wanted: Mapping[str, object]) -> object:
    given = wanted.get("thinking", {})
    return given.get("type") if isinstance(given, dict) else given


def _check_form(wanted: Mapping[str, object]) -> None:
    kind, config = _kind_of_thinking(wanted), wanted.get("output_config", {})
    if not (kind is None or isinstance(kind, str)) or kind not in THINKING:
        rule = "its type is enabled, disabled or adaptive"
        raise Refusal(f"thinking = {shortened(kind, 40)} is not known: {rule}", "thinking")
    if not isinstance(wanted.get("stop_sequences", []), list):
        rule = "it must be a list of texts"
        raise Refusal(f"stop_sequences = {shortened(wanted['stop_sequences'], 40)}; {rule}", "stop_sequences")
    if not isinstance(config, dict):
        raise Refusal(f"output_config = {shortened(config)}; it must be an object with a format", "output_config")


def _messages(wanted: Mapping[str, object]) -> list[dict[str, object]]:
    given = wanted.get("messages")
    if given is None:
        raise Refusal("'messages' is missing", "messages")
    if not isinstance(given, list):
        raise Refusal(f"messages = {shortened(given)}; it must be a list", "messages")
    messages: list[JsonObject] = []
    for message in given:
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            rule = "it must be an object whose role is user, assistant or system"
            raise Refusal(f"A message is {shortened(message)}; {rule}", "messages")
        messages += _each(message["role"], message.get("content"))
    return messages


def _each(role: str, content: object) -> Iterator[JsonObject]:
    """Yield the messages for the blocks of one message; results of tools become separate messages."""
    texts: list[str] = []
    calls: list[JsonObject] = []
    for block in _blocks(content, "messages"):
        kind = block.get("type")
        if kind == "tool_result" and role == "user":
            if texts:
                yield {"role": role, "content": "".join(texts)}
                texts = []
            yield _result(block)
        elif kind == "tool_use" and role == "assistant":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "function": function})
        elif kind in ("thinking", "redacted_thinking") and role == "assistant":
            continue  # other models' thinking; a policy's own thinking is part of its text
        else:
            texts.append(_text([block], "messages"))
    if texts or role == "assistant":
        yield {"role": role, "content": "".join(texts), **({"tool_calls": calls} if calls else {})}


def _result(block: Mapping[str, object]) -> dict[str, object]:
    text = _text(block.get("content", ""), "messages")
    failed = "error" if block.get("is_error") else ""
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text or failed}


def _blocks(content: object, param: str) -> list[JsonMapping]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise Refusal(f"The content is {shortened(content)}; it must be a text, or a list of blocks", param)
    return content


def _text(content: object, param: str) -> str:
    blocks = _blocks(content, param)
    for block in blocks:
        if block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise Refusal(f"A block is {shortened(dict(block))}; only text is accepted here", param)
    return "".join(block["text"] for block in blocks)


def _tools(given: object) -> Iterator[dict[str, object]]:
    if not isinstance(given, list):
        raise Refusal(f"tools = {shortened(given)}; it must be a list", "tools")
    for tool in given:
        if not isinstance(tool, dict) or tool.get("type", "custom") != "custom" or "input_schema" not in tool:
            rule = "a tool needs a name and an input_schema, and the client runs it"
            raise Refusal(f"A tool is {shortened(tool)}; {rule}", "tools")
        said = {"name": tool.get("name"), "parameters": tool["input_schema"]}
        about = {"description": tool["description"]} if tool.get("description") else {}
        yield {"type": "function", "function": {**said, **about}}
