"""The text between a policy's turn and the next: an environment's text, inside what a chat template writes around it.

Token-in token-out needs a template that leaves the past as it was: the rendering of a longer conversation begins with
the rendering of the shorter one. Some templates rewrite history (they drop earlier thoughts, say); what then happens
is a setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from grouprl.core.errors import InputError, suggest
from grouprl.envs.environment import Observation
from grouprl.policy.text import render_chat
from grouprl.records.examples import Chat, Example, Message
from grouprl.rollout.episode import Context, shown_messages

History = Literal["refuse", "append", "split"]
"""Where a template rewrites history: refuse to play, keep what was written all the same, or continue in a new row."""
ANSWER = "§A§"
PROBE = f"<think>\nx\n</think>\n\n{ANSWER}"
"""An assistant's message that a template must leave as it is, thought and all."""


class TurnText:
    """How observations become tokens for one policy: plain text as it is, or through the chat template.

    A policy whose tokenizer has a chat template gets the first observation as a user's message, behind the system
    messages of the prompt.

    Raises:
        InputError: a chat template that rewrites history, where `history` is 'refuse'.
    """

    def __init__(self, policy: Any, history: History = "refuse") -> None:
        if history not in get_args(History):
            raise InputError(f"history is {history!r}", remedy=suggest(str(history), get_args(History)))
        self.policy, self.chat = policy, bool(getattr(policy.tokenizer, "chat_template", None))
        difference = self.rewriting()
        if difference is not None and history == "refuse":
            raise InputError(
                f"the chat template rewrites history: what was {difference[0]!r} becomes {difference[1]!r}",
                "over several turns, what the policy has written stays as it was written, token for token",
                "Set sampling.history to append (keep it as it was written) or to split (continue in a new "
                "row where it is rewritten), or set a chat template that renders earlier messages unchanged",
            )
        self.splits = difference is not None and history == "split"

    def first(self, example: Example, shown: Observation) -> str | tuple[Message, ...]:
        """Return the prompt that shows the first observation."""
        if not self.chat:
            return shown.text
        if shown.messages:
            return Chat(shown.messages, shown.tools)  # type: ignore[return-value]
        given = example.prompt if not isinstance(example.prompt, str) else ()
        system = tuple(message for message in given if message["role"] == "system")
        return (*system, Message(role="user", content=shown.text))

    def later(self, shown: Observation, ended_with: int | None) -> str:
        """Return what stands between an action and the next: the observation and the template's own words.

        `ended_with` is the end token that the action already has; None where it was cut off.
        """
        if not self.chat:
            return shown.text
        return self._words(shown_messages(shown), ended_with)

    def _words(self, messages: Sequence[Message], ended_with: int | None) -> str:
        """Return what the template writes behind an action where these messages follow it."""
        user, said = Message(role="user", content="Q"), Message(role="assistant", content=PROBE)
        whole = self._render([user, said, *messages])
        words = whole[whole.index(ANSWER) + len(ANSWER) :]
        end = "" if ended_with is None else str(self.policy.tokenizer.convert_ids_to_tokens(ended_with))
        return words.removeprefix(end)

    def rewritten(self, context: Context, shown: Observation) -> tuple[Message, ...] | None:
        """Return the prompt of the row that continues `context` with `shown`; None where the row itself continues.

        A row ends where the template renders its messages differently.
        """
        if not self.splits or isinstance(context.messages, str):
            return None
        said = (*context.messages, *(message for part in context.talk for message in part), *shown_messages(shown))
        grown: tuple[Message, ...] = Chat(said, getattr(context.messages, "tools", ()))  # type: ignore[assignment]
        return None if self._render(grown).startswith(self._as_written(context)) else grown

    def rewriting(self) -> tuple[str, str] | None:
        """Return what the template writes of an assistant's message, and what becomes of it later; None if the same."""
        if not self.chat:
            return None
        user, said = Message(role="user", content="Q"), Message(role="assistant", content=PROBE)
        before, after = self._render([user]) + PROBE, self._render([user, said, user])
        if after.startswith(before):
            return None
        at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
        return before[at : at + 40], after[at : at + 40]

    def _as_written(self, context: Context) -> str:
        """Return the text of a row as it stands: its prompt, and what was said behind it, turn by turn."""
        text = self._render(context.messages)
        for part in context.talk:
            text += part[0]["content"] if part[0]["role"] == "assistant" else self._words(part, None)
        return text

    def _render(self, messages: Sequence[Message] | str) -> str:
        return render_chat(self.policy.tokenizer, messages)  # type: ignore[arg-type]
