"""Tasks whose options are typed fields, with readable errors."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonObject
from grouprl.tasks.task import Task

POOR = "chance that a demonstrated action is a poor one"
"""The description of the option `noise`."""


class OptionTask(Task, BaseModel):
    """A task whose constructor takes its fields as options.

    Raises:
        InputError: on construction, for an unknown option or a value that breaks a rule.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, **options: object) -> None:
        name = self.registered_as or type(self).__name__
        fields = type(self).model_fields.items()
        check_option_names(name, options, [field.alias or key for key, field in fields])
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise _in_words(error, name) from error

    def options(self) -> JsonObject:
        """Return every option with its value."""
        return self.model_dump(mode="json", by_alias=True)


class BoundedTurns:
    """The base of tasks whose options `turns` and `tokens` limit an episode and each of its turns."""

    if TYPE_CHECKING:
        turns: int
        tokens: int

    @property
    def max_turns(self) -> int:
        """The option `turns`."""
        return self.turns

    @property
    def max_new_tokens(self) -> int:
        """The option `tokens`."""
        return self.tokens


class KnownCharacters:
    """The base of tasks whose option `characters` lists the characters of texts and actions."""

    if TYPE_CHECKING:
        characters: str

    @property
    def alphabet(self) -> str:
        """The option `characters`."""
        return self.characters


def typed_signs(without: str) -> str:
    """Return the characters that can be typed and the newline, except those in `without`."""
    return "".join(char for char in string.printable if char not in without)


def check_option_names(task: str, options: dict[str, object], known: list[str]) -> None:
    """Check that a task has all these options.

    Raises:
        InputError: an option is unknown; the message names it and the nearest known one.
    """
    for option in options:
        if option not in known:
            remedy = suggest(option, known) if known else "It has no options."
            raise InputError(f"Task '{task}' has no option '{option}'", remedy=remedy)


def _in_words(error: ValidationError, task: str) -> InputError:
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause
    where = ".".join(str(part) for part in first["loc"])
    rule = first["msg"].removeprefix("Value error, ")
    if not where:
        return InputError(f"The options of task '{task}' do not fit together", rule)
    if first["type"] == "missing":
        return InputError(f"Task '{task}' lacks its option '{where}'")
    return InputError(f"Option '{where}' of task '{task}' is {first['input']!r}", rule[0].lower() + rule[1:])
