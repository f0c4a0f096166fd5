"""The library of lessons: short texts by name, the changes of it, and prompts that show it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grouprl.core.errors import InputError
from grouprl.records.examples import Message, Prompt
from grouprl.storage.run_folder import write_json

HEADING = "When you solve the problem, keep these lessons of earlier attempts in mind:"
LONGEST_LESSON = 600
"""Largest number of characters of a lesson; a longer one is cut off."""


@dataclass(frozen=True)
class Change:
    """A change of the library: a lesson is added, another text put in place of one, or one deleted."""

    kind: Literal["add", "update", "delete"]
    text: str = ""
    name: str = ""
    """The lesson that is updated or deleted: G0, G1 …"""


@dataclass(frozen=True)
class LessonLibrary:
    """Lessons in the order of their names, G0, G1 …"""

    lessons: tuple[str, ...] = ()

    def named(self) -> dict[str, str]:
        """Return the lessons by name."""
        return {f"G{number}": text for number, text in enumerate(self.lessons)}

    def changed(self, changes: Iterable[Change]) -> LessonLibrary:
        """Return the library after the changes, in order; lessons are then numbered anew.

        An update of an unknown lesson adds its text, the deletion of an unknown one does nothing, and an empty text
        is not a lesson.
        """
        # Names stay those of the library that the changes were proposed for, so that a deletion moves no other lesson.
        found = self.named()
        for number, change in enumerate(changes):
            text = " ".join(change.text.split())[:LONGEST_LESSON]
            if change.kind == "delete":
                found.pop(change.name, None)
            elif text:
                known = change.kind == "update" and change.name in found
                found[change.name if known else f"new {number}"] = text
        return LessonLibrary(tuple(found.values()))

    def shown(self, prompt: Prompt) -> tuple[Message, ...]:
        """Return the prompt as messages, the lessons in front of its last one; without lessons as it is."""
        messages: tuple[Message, ...] = (
            ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)
        )
        if not self.lessons:
            return messages
        told = "\n".join([HEADING, *(f"[{name}] {text}" for name, text in self.named().items())])
        last: Message = {**messages[-1], "content": f"{told}\n\n{messages[-1]['content']}"}
        return (*messages[:-1], last)

    def save(self, path: Path) -> None:
        """Write the lessons to a JSON file, which is whole at any time."""
        write_json(path, {"lessons": list(self.lessons)})

    @classmethod
    def load(cls, path: Path) -> LessonLibrary:
        """Return the lessons of a file that `save` wrote. Raises InputError if it holds something else."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["lessons"]
            if not (isinstance(found, list) and all(isinstance(each, str) for each in found)):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{path} holds no lessons", 'it must be JSON such as {"lessons": ["Check the sign."]}'
            ) from None
        return cls(tuple(found))
