"""The text between two turns of a policy: an environment's text with what a chat template writes around it.

Token-in token-out needs a template that leaves the past unchanged: the rendering of a longer conversation has to begin
with the text of the row. Some templates rewrite history (they drop earlier thoughts, trim white space, move tools).
Each episode is checked against the actual rendering of its messages; a setting decides what happens if they differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from grouprl.chat.calls import Form
from grouprl.chat.syntaxes import AUTO, JSON
from grouprl.chat.tool_calls import protocol_calls
from grouprl.chat.turn_content import Call, Said, Spoken
from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.envs.environment import Observation
from grouprl.policy.language.call_syntax import call_syntax, opens_thinking
from grouprl.policy.language.chat_template import ChatTemplate, template_of
from grouprl.policy.language.text import render_chat
from grouprl.records.episode_records import Turn
from grouprl.records.examples import Chat, Example, Message
from grouprl.rollout.episode import Context, shown_messages

if TYPE_CHECKING:
    from grouprl.records.token_policy import TextSide

History = Literal["refuse", "append", "split"]
"""Action if a template rewrites history: refuse the episode, keep the row as it was written, or continue in a new
row.
"""
MARK = "qzmark"
PLAIN = "§A§"
SHOWN = 40
"""Number of characters of a difference that a message shows."""


@dataclass(frozen=True)
class Onward:
    """The continuation of an episode after an action: one of `text`, `prompt` and `refused` is set."""

    text: str | None = None
    """Text that follows in the same row."""
    prompt: tuple[Message, ...] | None = None
    """Prompt of a new row."""
    refused: str = ""
    """Reason why neither is possible."""
    said: Message | None = None
    """The last action as a message for the template."""
    row: str = ""
    """The text of the row up to the next action."""

    def keep(self, context: Context) -> None:
        """Record the last action as a message, and the text of the row, in the row's context."""
        if self.said is not None:
            context.talk[-1] = (self.said,)
            context.text = self.row


class TurnText:
    """Converter of observations to tokens for one policy: as plain text, or with the chat template.

    If the policy's tokenizer has a chat template, the first observation becomes a user message after the system
    messages of the prompt. `calls` names the syntax of tool calls (`call_syntax`).

    Raises:
        InputError: an unknown `history` or syntax.
    """

    def __init__(self, policy: TextSide, history: History = "refuse", calls: str = AUTO) -> None:
        if history not in get_args(History):
            raise InputError(f"history is {history!r}", remedy=suggest(str(history), get_args(History)))
        self.policy, self.history = policy, history
        self.chat = bool(getattr(policy.tokenizer, "chat_template", None))
        self.form: Form = call_syntax(policy.tokenizer, calls) if self.chat else JSON

    @property
    def template(self) -> ChatTemplate:
        """The chat template; may be used only if there is one."""
        return template_of(self.policy.tokenizer)

    def first(self, example: Example, shown: Observation) -> str | tuple[Message, ...]:
        """Return the prompt that shows the first observation."""
        if not self.chat:
            return shown.text
        if shown.messages:
            return Chat(shown.messages, shown.tools, shown.variables)  # type: ignore[return-value]
        given = example.prompt if not isinstance(example.prompt, str) else ()
        system = tuple(message for message in given if message["role"] == "system")
        return (*system, Message(role="user", content=shown.text))

    def unable(self, shown: Observation) -> str:
        """Return why the variables of an observation cannot be set in the chat template; '' if they can."""
        if not shown.variables:
            return ""
        if not self.chat:
            return f"the policy has no chat template in which to set {', '.join(map(repr, shown.variables))}"
        try:
            self.template.check(shown.variables)
        except InputError as error:
            return str(error)
        return ""

    def spoken(self, context: Context, text: str, counted: tuple[int, int] | None = None) -> str:
        """Return an action as text with its parsed content (thinking, calls), if the environment needs more than the
        text.

        It does if tools are announced, if the policy's syntax has its own form of messages, or if it wants to know the
        numbers of tokens, `counted`.
        """
        if counted is not None:
            return Spoken(text, self.read(context, text), counted)
        if not self.chat or not (getattr(context.messages, "tools", ()) or self.form is not JSON):
            return text
        return Spoken(text, self.read(context, text))

    def read(self, context: Context, text: str) -> Said:
        """Return the parsed content of an action that follows `context`."""
        tools = [str(tool.get("function", tool).get("name")) for tool in getattr(context.messages, "tools", ())]
        return self.form.read_for(text, tools, opened=self.chat and opens_thinking(self._standing(context)))

    def think(self, context: Context, turn: Turn, ids: Sequence[int]) -> None:
        """Record in a turn the part that is thinking, and how many of its tokens `ids` belong to it."""
        if not self.chat:
            return
        opened = opens_thinking(self._standing(context))
        end = self.form.thinking_ends(turn.action, opened)
        if end:
            turn.thinking = self.form.read(turn.action, opened).thinking
            turn.thought = bisect_left(range(len(ids)), end, key=lambda n: len(self._text(ids[:n])))

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.policy.decode_all([ids])[0])

    def later(self, shown: Observation, ended_with: int | None, said: Mapping[str, object] | None = None) -> str:
        """Return the text between an action and the next, if the action is kept as it was written.

        `ended_with` is the end token that the action already has; None if it was truncated. `said` is the action as a
        message, if known.
        """
        if not self.chat:
            return shown.text
        messages = Chat(shown_messages(shown), (), shown.variables)
        return self._words(messages, ended_with, said)  # type: ignore[arg-type]

    def onward(self, context: Context, shown: Observation) -> Onward:
        """Return how an episode continues after the last action of `context` and the observation `shown`."""
        if not self.chat or isinstance(context.messages, str):
            return Onward(text=self.later(shown, self._ended(context)))
        action = context.turns[-1].action
        written = self._standing(context) + action + self._end_text(context)
        # A template may repeat an action as it was written only if it is given in a certain form (whole, or with
        # thinking and calls apart), so each is tried: history is rewritten only where no form leaves it alone.
        complaint: str | None = None
        different: tuple[Message, str] | None = None
        for said in self._forms(context, action, shown):
            try:
                whole = self._render(self._conversation(context, said, shown))
            except InputError as error:
                complaint = complaint or str(error)
                continue
            if whole.startswith(written):
                return Onward(text=whole[len(written) :], said=said, row=whole)
            if different is None or "tool_calls" in said:
                different = said, whole
        if different is None:
            return Onward(refused=complaint or "the chat template renders nothing")
        try:
            return self._rewritten(context, shown, written, *different)
        except InputError as error:
            return Onward(refused=str(error))

    def _rewritten(self, context: Context, shown: Observation, written: str, said: Message, whole: str) -> Onward:
        """Return how an episode continues if the template rewrites its history."""
        if self.history == "refuse":
            before, after = first_difference(written, whole)
            return Onward(
                refused=f"the chat template rewrites history: what was {before!r} becomes {after!r}. Set "
                "sampling.history to split (continue in a new row) or append (keep it as it was written)"
            )
        if self.history == "split":
            return Onward(prompt=self._conversation(context, said, shown))
        variables = getattr(context.messages, "variables", {})
        text = self._words(Chat(shown_messages(shown), (), variables), self._ended(context), said)  # type: ignore[arg-type]
        return Onward(text=text, said=said, row=written + text)

    def encode(self, contexts: Sequence[Context], texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of the text that follows each context and its end token."""
        ends = [self._ended(context) if self.chat else None for context in contexts]
        words = [self._end_text(context) if self.chat else "" for context in contexts]
        # The end token is read together with what follows, as tokenizers may treat text after a special token in
        # another way than at a beginning; where the end token does not come out alone, the text is read by itself.
        whole = self.policy.encode_all([word + text for word, text in zip(words, texts, strict=True)])
        return [
            list(ids) if end is None else list(ids[1:]) if ids[:1] == [end] else list(self.policy.encode_all([text])[0])
            for ids, end, text in zip(whole, ends, texts, strict=True)
        ]

    def _forms(self, context: Context, action: str, shown: Observation) -> Iterator[Message]:
        """Yield the last action as messages: its text as it is, and taken apart into thinking, calls and the rest.

        If the template shows results only after `tool_calls`, messages with parsed calls come first.
        """
        plain = Message(role="assistant", content=action)
        apart = self._apart(context, action)
        answered = any(message["role"] == "tool" for message in shown_messages(shown))
        first = apart is not None and answered and self.template.facts.results == "calls"
        forms = [apart, plain] if first else [plain, apart]
        yield from (form for form in forms if form is not None)

    def _apart(self, context: Context, action: str) -> Message | None:
        """Return an action as a message with thinking and calls separated; None if it has neither in readable form."""
        said = self.read(context, action)
        calls = protocol_calls(said, action, str(len(context.talk))) if said.calls else []
        if not calls and (said.calls or (not said.thinking and said.answer == action)):
            return None
        message: JsonObject = {"role": "assistant", "content": said.beside if calls else said.answer or ""}
        if said.thinking:
            message |= {"reasoning_content": said.thinking, "thinking": said.thinking}
        if calls:
            message["tool_calls"] = [_with_object(call, each) for call, each in zip(calls, said.calls, strict=True)]
        return message  # type: ignore[return-value]

    def _conversation(self, context: Context, said: Message, shown: Observation) -> tuple[Message, ...]:
        talk = [message for part in context.talk[:-1] for message in part]
        grown = (*context.messages, *talk, said, *shown_messages(shown))
        given = context.messages
        tools, variables = getattr(given, "tools", ()), getattr(given, "variables", {})
        return Chat(grown, tools, variables)  # type: ignore[return-value]

    def _standing(self, context: Context) -> str:
        """Return the text of a row before its last action."""
        if not context.text and not isinstance(context.messages, str):
            context.text = self._render(context.messages)
        return context.text

    def _end_text(self, context: Context) -> str:
        ended = self._ended(context)
        return "" if ended is None else str(self.policy.tokenizer.convert_ids_to_tokens(ended))

    def _ended(self, context: Context) -> int | None:
        return context.ids[-1] if context.ids and context.ids[-1] in self.policy.eos_ids else None

    def _words(
        self, messages: Sequence[Message], ended_with: int | None, said: Mapping[str, object] | None = None
    ) -> str:
        """Return the text that the template writes after an action if these messages follow it."""
        end = "" if ended_with is None else str(self.policy.tokenizer.convert_ids_to_tokens(ended_with))
        user = Message(role="user", content="Q")
        if said is not None and "tool_calls" in said and self.template.facts.results == "calls":
            ends = [str(each) for each in self.policy.tokenizer.convert_ids_to_tokens(sorted(self.policy.eos_ids))]
            behind = self._behind(MARK, [user, _marked(said)], messages)
            at = min((found for found in map(behind.find, ends) if found >= 0), default=0)
            return behind[at:].removeprefix(end)
        return self._behind(PLAIN, [user, Message(role="assistant", content=PLAIN)], messages).removeprefix(end)

    def _behind(self, mark: str, before: Sequence[Message], messages: Sequence[Message]) -> str:
        whole = self._render(Chat([*before, *messages], (), getattr(messages, "variables", {})))  # type: ignore[arg-type]
        if mark not in whole:
            raise InputError(
                "The chat template leaves out an assistant's message", "the action must stay as it was written"
            )
        return whole[whole.rindex(mark) + len(mark) :]

    def _render(self, messages: Sequence[Message] | str) -> str:
        return render_chat(self.policy.tokenizer, messages)  # type: ignore[arg-type]


def first_difference(written: str, rendered: str) -> tuple[str, str]:
    """Return a few characters of each of two texts from where they first differ."""
    at = next((i for i, (a, b) in enumerate(zip(written, rendered, strict=False)) if a != b), len(rendered))
    return written[at : at + SHOWN], rendered[at : at + SHOWN]


def _with_object(call: dict[str, object], said: object) -> dict[str, object]:
    """Return a tool call with its arguments as an object, as chat templates expect."""
    assert isinstance(said, Call)
    arguments = said.arguments if isinstance(said.arguments, str) else dict(said.arguments)
    return {**call, "id": said.id or call["id"], "function": {"name": said.name, "arguments": arguments}}


def _marked(said: JsonMapping) -> Message:
    """Return a message with the same calls, each with a marker as its only argument."""
    calls = [
        {**call, "function": {"name": call["function"]["name"], "arguments": {"q": MARK}}}
        for call in said["tool_calls"]
    ]
    made: Any = {"role": "assistant", "content": "", "tool_calls": calls}
    return made
