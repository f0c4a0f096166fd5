"""Preferences: prompts with a chosen and a rejected completion, which form groups of two with a known winner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonObject
from grouprl.records.examples import Example
from grouprl.records.offline import StoredRow
from grouprl.tasks.adapters.jsonl import Jsonl
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import without_folder


def preferred(completion: str, *, chosen: object, **columns: object) -> float:
    """Return 1 for the chosen completion of a pair, 0 for any other."""
    return float(completion == completion_text(chosen))


@register_task("pairs", argument="path")
class Pairs(Jsonl):
    """Pairs with a known winner: a file with one JSON object per line, columns prompt, chosen and rejected.

    Nothing is sampled: both completions of a prompt are its group, the chosen one with reward 1, the rejected one with
    reward 0, and the policy scores them itself (`batch.group_size` is 2). An evaluation reports how often the policy
    finds the chosen one likelier.
    """

    chosen: str = Field("chosen", description="the column with the better completion: text, or one assistant message")
    rejected: str = Field("rejected", description="the column with the worse completion, in the same form")
    reward_spec: str | JsonObject | list[str | JsonObject] = Field(
        "grouprl.tasks.adapters.pairs:preferred", alias="reward", description="not used: a pair states its winner"
    )

    def model_post_init(self, context: object) -> None:
        """Read the file and check every pair.

        Raises:
            InputError: naming the line that lacks a completion, or whose two are the same.
        """
        super().model_post_init(context)
        for split in ("train", "eval"):
            table = self._tables[split]
            for position in self._positions[split]:
                self._pair(table.rows[position], table.label(position))

    @property
    def name(self) -> str:
        """The path after "pairs:"."""
        return f"pairs:{without_folder(self.path)}"

    @property
    def description(self) -> str:
        """A sentence that names the file."""
        return f"Pairs of the file {self.path}."

    def solution(self, example: Example) -> str | None:
        """Return the chosen completion."""
        return self._pair(example.columns, example.id)[0]

    def stored_rows(self, example: Example) -> Sequence[StoredRow]:
        """Return the winner and the loser."""
        winner, loser = self._pair(example.columns, example.id)
        return StoredRow(winner, 1.0, correct=True), StoredRow(loser, 0.0)

    def _pair(self, row: Mapping[str, object], label: str) -> tuple[str, str]:
        for column in (self.chosen, self.rejected):
            if column not in row:
                raise InputError(f"The column '{column}' is missing in {label}", remedy=suggest(column, row))
            if completion_text(row[column]) is None:
                raise InputError(
                    f"The completion '{column}' in {label} is {row[column]!r}"[:400],
                    "a completion is text, or a list with one message of the assistant",
                )
        winner, loser = (str(completion_text(row[column])) for column in (self.chosen, self.rejected))
        if winner == loser:
            raise InputError(f"Both completions in {label} are the same", "a pair has a winner and a loser")
        return winner, loser


def completion_text(given: object) -> str | None:
    """Return the text of a completion; None if it has none."""
    if isinstance(given, str):
        return given or None
    if isinstance(given, (list, tuple)) and len(given) == 1 and isinstance(given[0], Mapping):
        text = given[0].get("content")
        return text if given[0].get("role") == "assistant" and isinstance(text, str) and text else None
    return None
