"""The words between a policy's turn and the next: an environment's text, inside what a chat template writes around it.

Token-in token-out needs a template that leaves the past as it was: the rendering of a longer conversation begins with
the rendering of the shorter one. Some templates rewrite history (they drop earlier thoughts, say); what then happens
is a setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from grouprl.errors import InputError, suggest
from grouprl.rollout.episode import Context
from grouprl.tasks.task import Message, Question

History = Literal["refuse", "append", "split"]
"""Where a template rewrites history: refuse to play, keep what was written all the same, or go on in a new row."""
ANSWER = "§A§"
PROBE = f"<think>\nx\n</think>\n\n{ANSWER}"
"""An assistant's message that a template must leave as it is, thought and all."""


class Between:
    """How observations become tokens for one policy: plain text as it is, or through the chat template.

    A policy whose tokenizer has a chat template gets the first observation as a user's message, behind the system
    messages of the question.

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
                "Set sampling.history to append (keep it as it was written all the same) or to split (go on in a new "
                "row where it is rewritten), or set a chat template that renders earlier messages unchanged",
            )
        self.splits = difference is not None and history == "split"

    def first(self, question: Question, text: str) -> str | tuple[Message, ...]:
        """Return the prompt that shows the first observation."""
        if not self.chat:
            return text
        given = question.prompt if not isinstance(question.prompt, str) else ()
        system = tuple(message for message in given if message["role"] == "system")
        return (*system, Message(role="user", content=text))

    def later(self, text: str, ended_with: int | None) -> str:
        """Return what stands between an action and the next: `text` and the template's own words.

        `ended_with` is the end token that the action already has; None where it was cut off.
        """
        if not self.chat:
            return text
        user, said = Message(role="user", content="Q"), Message(role="assistant", content=PROBE)
        whole = self._render([user, said, Message(role="user", content=text)])
        words = whole[whole.index(ANSWER) + len(ANSWER) :]
        end = "" if ended_with is None else str(self.policy.tokenizer.convert_ids_to_tokens(ended_with))
        return words.removeprefix(end)

    def rewritten(self, context: Context, text: str) -> tuple[Message, ...] | None:
        """Return the prompt of the row that goes on from `context` with `text`; None where the row itself goes on.

        A row ends where the template renders what was said in it in other words.
        """
        if not self.splits or isinstance(context.messages, str):
            return None
        said = (*context.messages, *context.talk)
        grown = (*said, Message(role="user", content=text))
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
        for message in context.talk:
            text += message["content"] if message["role"] == "assistant" else self.later(message["content"], None)
        return text

    def _render(self, messages: Sequence[Message] | str) -> str:
        chat = [dict(message) for message in messages]  # type: ignore[arg-type]
        return str(self.policy.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
