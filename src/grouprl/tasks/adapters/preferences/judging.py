"""Pairs as questions to a judge: the policy says which completion is better, as `reward.judge` asks it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from pydantic import Field, model_validator

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.records.examples import Example, Message, prompt_text
from grouprl.rewards.judging.judge_text import as_messages
from grouprl.rewards.judging.pair_text import PAIR_RUBRIC, shown_pair
from grouprl.rewards.judging.right_verdict import right_verdict
from grouprl.tasks.adapters.any_table import read_tables
from grouprl.tasks.adapters.preferences.preference_rows import (
    Judged,
    Names,
    explicit_pair,
    pair_inside,
    refuse_pictures,
    without_nulls,
)
from grouprl.tasks.registry import register_task
from grouprl.tasks.rows import RowTask, read_messages
from grouprl.tasks.table import Table
from grouprl.tasks.task import without_folder

OWN = f"{right_verdict.__module__}:{right_verdict.__name__}"


@register_task("judge", argument="path")
class JudgePairs(RowTask):
    """Say which of two completions is better: a generative judge learns from pairs.

    The file holds pairs in TRL's formats, with or without a prompt column. A prompt shows both completions in a drawn
    order and under drawn names, word for word as a run with `reward.judge` and `compare` asks a judge; the reward is 1
    for a reply in the form asked for, and 1 more if it names the chosen completion. Served by `grouprl serve`, the
    trained judge pays other runs.
    """

    path: str = Field(description="the file or folder with pairs")
    eval_path: str | None = Field(None, alias="eval", description="a file or folder of held-out pairs")
    train_split: str = Field("train", description="the split of a data set to train on")
    eval_split: str | None = Field(None, description="the split of a data set to evaluate on")
    chosen: str = Field("chosen", description="the column with the better completion: text, or a message")
    rejected: str = Field("rejected", description="the column with the worse completion, in the same form")
    tie: str | None = Field(None, description="the column that is true where neither completion is better")
    drop_ties: bool = Field(False, description="whether ties are left out; otherwise the first one is refused")
    rubric: str = Field(PAIR_RUBRIC, description="what makes a completion better; the same as reward.judge.rubric")
    characters: int = Field(20_000, ge=2, description="characters shown of a completion; the middle is left out")
    seed: int = Field(0, ge=0, description="of the order and the names; the names are those of reward.judge.seed")
    reward_spec: str | JsonObject | list[str | JsonObject] = Field(
        OWN, alias="reward", description="what pays a reply; it may name the columns `better` and `worse`, the names"
    )

    @model_validator(mode="before")
    @classmethod
    def _has_a_system_message(cls, options: object) -> object:
        if isinstance(options, dict) and options.get("system") is not None:
            raise ValueError("a judge's system message holds the rubric: leave 'system' out, and set 'rubric'")
        return options

    @property
    def name(self) -> str:
        """The path after "judge:"."""
        return f"judge:{without_folder(self.path)}"

    @property
    def description(self) -> str:
        """A sentence that names the file."""
        return f"Say which completion of a pair in {self.path} is better."

    def read(self) -> tuple[Table, Table | None]:
        """Return a question for each pair. Raises InputError for rows that are not pairs, by name, and for ties."""
        train, held_out = read_tables(self.path, self.train_split, self.eval_path, self.eval_split)
        return self._asked(train), None if held_out is None else self._asked(held_out)

    def demonstration(self, example: Example, seed: int) -> str:
        """Return the right reply, without a reason."""
        return json.dumps({"better": example.columns["better"]})

    def solution(self, example: Example) -> str:
        """Return the right reply."""
        return self.demonstration(example, 0)

    def _prompt(self, row: Mapping[str, object], label: str) -> str | tuple[Message, ...]:
        """Return the judge's messages, or one text of both for a model without a chat template."""
        messages = read_messages(cast("Sequence[object]", row["messages"]), None, label)
        return messages if self.chat is True else "\n\n".join(each["content"] for each in messages) + "\n"

    def _asked(self, table: Table) -> Table:
        found = list(self._questions(table))
        return Table(table.name, [row for row, _ in found], [number for _, number in found], table.unit)

    def _questions(self, table: Table) -> Iterator[tuple[JsonMapping, int]]:
        for position, (row, number) in enumerate(zip(table.rows, table.numbers, strict=True)):
            label, row = table.label(position), without_nulls(row)
            refuse_pictures(row, label)
            pair = self._pair(row, label)
            texts = [_text(each, label) for each in pair.completions]
            if not pair.tied and texts[0] != texts[1]:
                yield self._question(_messages(pair.prompt, label), texts), number
            elif not self.drop_ties:
                raise InputError(
                    f"Neither completion in {label} is better",
                    "a judge learns from pairs of which one is",
                    "Set drop_ties: true to leave such pairs out",
                )

    def _pair(self, row: JsonMapping, label: str) -> Judged:
        names = Names(self.prompt, self.chosen, self.rejected, self.tie)
        missing = [each for each in (self.chosen, self.rejected) if each not in row]
        if missing:
            raise InputError(
                f"{label} has the columns {', '.join(row) or 'none'}, and not '{missing[0]}'",
                "each row is a pair: a better and a worse completion",
                "Name the columns by the options 'prompt', 'chosen' and 'rejected'",
            )
        return (explicit_pair if self.prompt in row else pair_inside)(row, names, label)

    def _question(self, prompt: tuple[Mapping[str, str], ...], texts: Sequence[str]) -> JsonMapping:
        """Return the row that asks about a pair, the better text first in `texts`."""
        first = _number([str(self.seed), json.dumps(prompt), *sorted(texts)]) % 2
        asked = shown_pair(prompt, texts[::-1] if first else texts, self.rubric, self.seed, self.characters)
        better, worse = asked.names[::-1] if first else asked.names
        told = [dict(each) for each in asked.messages]
        return {self.prompt: told[-1]["content"], "messages": told, "better": better, "worse": worse}


def _number(texts: Sequence[str]) -> int:
    """Return a number that depends on texts alone."""
    whole = "\0".join(texts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(whole, digest_size=8).digest(), "big")


def _messages(prompt: object, label: str) -> tuple[Mapping[str, str], ...]:
    given = prompt if isinstance(prompt, str) else read_messages(cast("Sequence[object]", prompt), None, label)
    return cast("tuple[Mapping[str, str], ...]", as_messages(given))


def _text(completion: object, label: str) -> str:
    """Return what a judge is shown of a completion; messages of several turns are written one below the other."""
    if isinstance(completion, str):
        return completion
    messages = read_messages(cast("Sequence[object]", completion), None, label)
    return messages[0]["content"] if len(messages) == 1 else prompt_text(messages)
