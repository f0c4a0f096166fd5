"""Answers whose steps are labelled: TRL's stepwise supervision, a row for each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.records.examples import Example, Message
from grouprl.records.offline import GiveWay, RowLimit, StoredRow
from grouprl.tasks.adapters.any_table import read_tables
from grouprl.tasks.adapters.preferences.preference_rows import announced, refuse_pictures, without_nulls
from grouprl.tasks.questions import PLAIN, AsChat
from grouprl.tasks.registry import register_task
from grouprl.tasks.rows import RowTask
from grouprl.tasks.table import Table
from grouprl.tasks.task import without_folder

BETWEEN = "\n"
"""The separator after each step, as in TRL."""


@register_task("step_labels", argument="path")
class StepLabels(RowTask):
    """Answers in steps, each labelled right or wrong: what a process reward model learns from.

    The file is JSON lines or Parquet, or a folder with a Hugging Face data set, with the columns `prompt`,
    `completions` (the steps of an answer, texts or a message of the assistant each) and `labels` (true or false for
    each), TRL's stepwise supervision. Nothing is sampled: a step is a row, the answer up to its end, with reward 1 or
    0; the steps of an answer are a group.
    """

    path: str = Field(description="the file or folder")
    eval_path: str | None = Field(None, alias="eval", description="a file or folder of held-out answers")
    train_split: str = Field("train", description="the split of a data set to train on")
    eval_split: str | None = Field(None, description="the split of a data set to evaluate on")
    separator: str = Field(BETWEEN, description="what stands behind each step")
    last_only: bool = Field(False, description="whether only the last step of each answer is a row")
    max_length: int | None = Field(1024, ge=2, description="most tokens of prompt and steps together")
    truncation: GiveWay = Field("drop", description="what gives way in a longer answer: drop leaves it out")
    chat: AsChat = Field(False, description=PLAIN)
    reward_spec: str | JsonObject | list[str | JsonObject] = Field(
        "grouprl.tasks.adapters.rollouts:nothing_to_say",
        alias="reward",
        description="not used: the data states labels",
    )

    @property
    def name(self) -> str:
        """The path after "step_labels:"."""
        return f"step_labels:{without_folder(self.path)}"

    @property
    def description(self) -> str:
        """A sentence that names the file."""
        return f"Labelled steps of the answers in {self.path}."

    @property
    def limit(self) -> RowLimit:
        """The options `max_length` and `truncation`."""
        return RowLimit(self.max_length, self.truncation)

    def read(self) -> tuple[Table, Table | None]:
        """Return the files' rows, each checked; raises InputError for rows of another form."""
        train, held_out = read_tables(self.path, self.train_split, self.eval_path, self.eval_split)
        return _checked(train), None if held_out is None else _checked(held_out)

    def _prompt(self, row: Mapping[str, object], label: str) -> str | tuple[Message, ...]:
        return announced(super()._prompt(row, label), row, label)

    def solution(self, example: Example) -> str | None:
        """Return the whole answer if all of its steps are right, else None."""
        steps, labels = labelled_steps(example.columns, example.id)
        return prefixes(steps, self.separator)[-1] if all(labels) else None

    def stored_rows(self, example: Example) -> Sequence[StoredRow]:
        """Return the answer up to the end of each step, with the step's label as its reward."""
        steps, labels = labelled_steps(example.columns, example.id)
        rows = [
            StoredRow(text, float(label), correct=label)
            for text, label in zip(prefixes(steps, self.separator), labels, strict=True)
        ]
        return rows[-1:] if self.last_only else rows


def _checked(table: Table) -> Table:
    """Return a table whose rows are labelled steps, without keys that are null."""
    rows = [without_nulls(row) for row in table.rows]
    for position, row in enumerate(rows):
        refuse_pictures(row, table.label(position))
        labelled_steps(row, table.label(position))
    return Table(table.name, rows, table.numbers, table.unit)


def labelled_steps(row: Mapping[str, object], label: str) -> tuple[list[str], list[bool]]:
    """Return the steps of a row and their labels.

    Raises:
        InputError: a missing column, steps that are not texts or empty, or labels that are not true or false, one each.
    """
    for name in ("completions", "labels"):
        if not isinstance(row.get(name), (list, tuple)) or not row[name]:
            raise InputError(
                f"{label} has the {name} {row.get(name)!r:.60}",
                "completions are the steps of one answer, labels say true or false of each",
                "A CSV file holds no lists: use JSON lines or Parquet" if isinstance(row.get(name), str) else "",
            )
    steps, labels = [_text(step) for step in row["completions"]], list(row["labels"])  # type: ignore[attr-defined, call-overload]
    if not all(steps):
        raise InputError(
            f"A step of {label} is not a text, or empty", "each step is a text, or one message of the assistant with it"
        )
    if len(steps) != len(labels) or not all(each in (0, 1) for each in labels):
        raise InputError(
            f"{label} has {len(steps)} steps and the labels {labels!r:.60}", "each step has one label, true or false"
        )
    return steps, [bool(each) for each in labels]


def _text(step: object) -> str:
    """Return the text of a step, or of the assistant's message that it is, alone or in a list; "" if there is none."""
    message = step[0] if isinstance(step, (list, tuple)) and len(step) == 1 else step
    said = message.get("content") if isinstance(message, Mapping) and message.get("role") == "assistant" else message
    return said if isinstance(said, str) else ""


def prefixes(steps: Sequence[str], separator: str) -> list[str]:
    """Return the text up to the end of each step, the separator after it included."""
    return ["".join(step + separator for step in steps[: end + 1]) for end in range(len(steps))]
