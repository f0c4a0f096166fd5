"""The words between a policy's turn and the next: an environment's text, inside what a chat template writes around it.

Token-in token-out needs a template that leaves the past as it was: the rendering of a longer conversation begins with
the rendering of the shorter one. Templates that rewrite history (dropping earlier thoughts, say) are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grouprl.errors import InputError
from grouprl.tasks.task import Message, Question

PROBE = "<think>\nx\n</think>\n\nA"
"""An assistant's message that a template must leave as it is, thought and all."""


class Between:
    """How observations become tokens for one policy: plain text as it is, or through the chat template.

    A policy whose tokenizer has a chat template gets the first observation as a user's message, behind the system
    messages of the question.

    Raises:
        InputError: a chat template that rewrites history.
    """

    def __init__(self, policy: Any) -> None:
        self.policy, self.chat = policy, bool(getattr(policy.tokenizer, "chat_template", None))
        if self.chat:
            self._check_history()

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
        words = whole[len(self._render([user]) + PROBE) :]
        end = "" if ended_with is None else str(self.policy.tokenizer.convert_ids_to_tokens(ended_with))
        return words.removeprefix(end)

    def _check_history(self) -> None:
        user, said = Message(role="user", content="Q"), Message(role="assistant", content=PROBE)
        before, after = self._render([user]) + PROBE, self._render([user, said, user])
        if after.startswith(before):
            return
        at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
        raise InputError(
            f"the chat template rewrites history: what was {before[at : at + 40]!r} becomes {after[at : at + 40]!r}",
            "over several turns, what the policy has written stays as it was written, token for token",
            "Set a chat template that renders earlier messages unchanged (tokenizer.chat_template)",
        )

    def _render(self, messages: Sequence[Message]) -> str:
        chat = [dict(message) for message in messages]
        return str(self.policy.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
