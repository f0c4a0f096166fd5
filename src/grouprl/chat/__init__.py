"""The chat protocols between programs and models: requests, replies, tool calls, and a server."""

from grouprl.chat.limits import Access, ChatLimits
from grouprl.chat.refusal import Refusal
from grouprl.chat.reply import Choice, Completion, Token
from grouprl.chat.request import ChatRequest
from grouprl.chat.server import Endpoint

__all__ = ["Access", "ChatLimits", "ChatRequest", "Choice", "Completion", "Endpoint", "Refusal", "Token"]
