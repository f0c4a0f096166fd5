"""Tasks whose prompts are questions: plain text for a base model, a user's message for a model with a chat template."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from grouprl.core.json_types import JsonObject
from grouprl.records.examples import Message
from grouprl.tasks.options import OptionTask
from grouprl.tasks.task import with_system

AsChat = Literal["auto"] | bool
PLAIN = (
    "whether plain prompts become a user's messages (auto: if the run's model has a chat template); by default they "
    "stay plain, as in TRL"
)


class QuestionTask(OptionTask):
    """A task whose plain prompts are questions, which a run shows as messages if its model has a chat template."""

    system: str | None = Field(None, description="a system message put first; makes the prompts chat messages")
    chat: AsChat = Field(
        "auto",
        description="whether plain prompts become a user's messages; auto: if the run's model has a chat template",
    )

    @property
    def undecided(self) -> bool:
        """True if the model decides whether prompts are messages."""
        return self.chat == "auto" and self.system is None

    @property
    def plain_by_default(self) -> bool:
        """True if prompts stay plain because no option of the task says otherwise."""
        return self.chat is False and type(self).model_fields["chat"].default is False

    def as_messages(self) -> Self:
        """Return the task with the user's messages as prompts."""
        return self.model_copy(update={"chat": True})

    def asked(self, text: str) -> str | tuple[Message, ...]:
        """Return a question as it is shown: as text, or as messages."""
        return with_system(text, self.system) if self.chat is True or self.system is not None else text

    def options(self) -> JsonObject:
        """Return every option with its value; `chat` is true or false."""
        return {**super().options(), "chat": self.chat is True}
