"""Conversations of a program with the policy: they decide which request continues which row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from grouprl.chat.reply import Choice, said
from grouprl.chat.request import ChatRequest, continues
from grouprl.core.json_types import JsonMapping
from grouprl.envs.environment import Observation


@dataclass
class _Context:
    """The conversation of an agent, and the tools announced to it."""

    said: tuple[JsonMapping, ...] = ()
    tools: tuple[JsonMapping, ...] = ()
    variables: Mapping[str, object] = field(default_factory=dict)


class Conversations:
    """A converter of a program's requests into observations.

    A request whose messages begin with the whole conversation so far, including the last completion, continues the row
    of its agent, token for token; any other request begins a new row.
    """

    def __init__(self, agents: Sequence[str] = ("",)) -> None:
        self._agents = tuple(agents)
        self._contexts: dict[str, _Context] = {}
        self._waiting: ChatRequest | None = None
        self.acting = self._agents[0]
        """The agent whose request was observed last."""

    def observe(self, request: ChatRequest) -> Observation:
        """Return the part of a request that the row of its agent does not contain yet."""
        self._waiting = request
        self.acting = request.model if request.model in self._agents else self._agents[0]
        before = self._contexts.get(self.acting, _Context())
        variables = request.chat_template_kwargs
        announced = request.tools == before.tools and variables == before.variables
        goes_on = bool(before.said) and announced and continues(before.said, request.messages)
        fresh = self.acting in self._contexts and not goes_on
        self._contexts[self.acting] = _Context(before.said, request.tools, variables)
        new = request.messages[len(before.said) if goes_on else 0 :]
        text, tools = "".join(message["content"] for message in new), () if goes_on else request.tools
        shown = Observation(text, agent=self.acting, fresh=fresh, messages=new, tools=tools, variables=variables)
        return replace(shown, counting=True)

    def complete(self, action: str) -> None:
        """Record the policy's completion of the request that was observed last."""
        assert self._waiting is not None
        self._contexts[self.acting].said = said(self._waiting, Choice(action, "stop"))
