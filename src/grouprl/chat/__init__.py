"""The chat completions protocol: requests, replies, tool calls, and a server that speaks it."""

from grouprl.chat.reply import Choice, Completion, Token
from grouprl.chat.request import ChatRequest, Refusal
from grouprl.chat.server import Endpoint

__all__ = ["ChatRequest", "Choice", "Completion", "Endpoint", "Refusal", "Token"]
