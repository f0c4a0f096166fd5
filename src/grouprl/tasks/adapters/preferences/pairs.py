"""Preferences: prompts with completions that were compared, ranked, scored or labelled, in TRL's formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Self, cast

from pydantic import Field, PrivateAttr, model_validator

from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.records.examples import Example, Message, Split, prompt_text
from grouprl.records.offline import GiveWay, RowLimit, StoredRow, completes_prompts
from grouprl.rewards import Reward
from grouprl.tasks.adapters.any_table import read_tables
from grouprl.tasks.adapters.preferences.preference_rows import (
    Format,
    Judged,
    Names,
    announced,
    explicit_pair,
    finite_number,
    format_of,
    pair_inside,
    refuse_pictures,
    refuse_written,
    without_nulls,
)
from grouprl.tasks.adapters.preferences.reversed_rows import Turned, turned_table
from grouprl.tasks.questions import PLAIN, AsChat, QuestionTask
from grouprl.tasks.registry import load_task, register_task
from grouprl.tasks.rows import RowTask, read_messages
from grouprl.tasks.table import Table
from grouprl.tasks.task import Task, without_folder

TIED = 0.5
"""Reward of the completions of a tie that is kept."""


@register_task("pairs", argument="path")
class Pairs(RowTask):
    """Preference data in TRL's formats: pairs, with or without a prompt column, labels, scored lists, demonstrations.

    The file is JSON lines, Parquet or CSV, or a folder with a Hugging Face data set; the columns decide the format.
    Nothing is sampled: the completions of a prompt are its group, with the rewards that the data states, and the policy
    scores them itself. An evaluation reports the reward of the completion that the policy finds likeliest: of pairs,
    how often that is the chosen one. With `of` it completes the held-out prompts of another task instead, and scores
    them by that task's reward.
    """

    path: str = Field(description="the file or folder")
    eval_path: str | None = Field(None, alias="eval", description="a file or folder of held-out prompts")
    train_split: str = Field("train", description="the split of a data set to train on")
    eval_split: str | None = Field(None, description="the split of a data set to evaluate on")
    chosen: str = Field("chosen", description="the column with the better completion: text, or messages")
    rejected: str = Field("rejected", description="the column with the worse completion, in the same form")
    completion: str = Field("completion", description="the column with a completion that stands alone")
    ratings: tuple[str, ...] = Field(
        (), description="the columns with ratings of a completion that stands alone; the reward is their mean"
    )
    reference: str | None = Field(
        "reference",
        description="the column with a completion better than both of a pair (TPO's); none: such a column is not read",
    )
    tie: str | None = Field(None, description="the column that is true where neither completion of a pair is better")
    ties: Literal["refuse", "drop", "half", "keep"] = Field(
        "refuse",
        description="groups in which no completion is better (marked as ties, the same completion twice, or equal "
        "scores throughout): refuse them, leave them out, count a tied pair once each way and all others twice, or "
        "keep them with equal rewards, for a method that learns from ties",
    )
    reverse: Turned = Field(
        "no",
        description="for pairs with the columns constraints, chosen_met and rejected_met: the prompt asks for what the "
        "winner keeps, and for the negation of what it violates (chosen), or once so for each completion (both)",
    )
    objective: str | None = Field(
        None,
        description="the column with the objective by which a row was compared: each is an agent, with a head or model "
        "of its own (model.agents)",
    )
    of: str | JsonObject | None = Field(
        None,
        description="a task whose held-out prompts evaluations complete, to be scored by its reward; none: they rank "
        "held-out rows of the file",
    )
    max_length: int | None = Field(
        1024, ge=2, description="most tokens of prompt and completion together; none: the model's positions"
    )
    truncation: GiveWay = Field(
        "keep_start",
        description="what gives way in a group with a longer row: the ends of its completions (keep_start), the "
        "beginning of its prompt (keep_end), or the group (drop)",
    )
    chat: AsChat = Field(False, description=PLAIN)
    reward_spec: str | JsonObject | list[str | JsonObject] = Field(
        "grouprl.tasks.adapters.rollouts:nothing_to_say",
        alias="reward",
        description="not used: the data states rewards",
    )

    _format: Format = PrivateAttr()
    _tied: int = PrivateAttr(default=0)
    _objectives: tuple[str, ...] = PrivateAttr(default=("",))
    _inner: Task | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _all_rows_are_trained_on(cls, options: object) -> object:
        if not isinstance(options, dict) or options.get("of") is None:
            return options
        others = ("eval", "eval_path", "eval_split", "eval_fraction", "objective")
        if clash := [name for name in others if options.get(name)]:
            raise ValueError(f"with 'of' evaluations complete prompts of that task: leave {' and '.join(clash)} out")
        return {**options, "eval_fraction": 0}

    def model_post_init(self, context: object) -> None:
        """Read the rows; kept ties and second copies (ties: half) are trained on, and not evaluated on.

        Raises:
            InputError: rows that cannot be read, or the task `of` is not one of prompts that are completed.
        """
        super().model_post_init(context)
        self._inner = None if self.of is None else _completed(load_task(self.of))
        if self.chat is True:
            self._ask_as_messages()
        if self.objective is not None:
            table = self._tables["train"]
            found = {_objective(row, self.objective, table.label(at)) for at, row in enumerate(table.rows)}
            self._objectives = tuple(sorted(found))
        if self._tables["eval"] is self._tables["train"] and self.ties in ("half", "keep"):
            decided = self._compared_once if self.ties == "half" else self._decided
            self._positions["eval"] = [at for at in self._positions["eval"] if decided(at)]

    @property
    def name(self) -> str:
        """The path after "pairs:"."""
        return f"pairs:{without_folder(self.path)}"

    @property
    def description(self) -> str:
        """A sentence that names the file and its format."""
        return f"Preferences of {self.path}: {self._format.name}."

    @property
    def agents(self) -> tuple[str, ...]:
        """The objectives of the training rows in the order of their names, if `objective` names their column."""
        return self._objectives

    def agent_of(self, example: Example) -> int:
        """Return the number of a prompt's objective.

        Raises:
            InputError: a prompt without one, or with one that no training row has.
        """
        if self.objective is None:
            return 0
        name = _objective(example.columns, self.objective, example.id)
        if name not in self._objectives:
            raise InputError(
                f"The objective of {example.id} is '{name}'",
                "an objective is learned from training rows, and none has this one",
                suggest(name, self._objectives),
            )
        return self._objectives.index(name)

    @property
    def limit(self) -> RowLimit:
        """The options `max_length` and `truncation`."""
        return RowLimit(self.max_length, self.truncation)

    @property
    def notes(self) -> tuple[str, ...]:
        """The format and the columns that decided it, and what became of ties."""
        names = ", ".join(self._format.columns)
        ties = {
            "drop": f"{self._tied} groups without a better completion are left out (ties: drop)",
            "half": f"{self._tied} ties count once each way, and every other pair twice (ties: half)",
            "keep": f"{self._tied} groups are ties, with equal rewards (ties: keep)",
        }
        read = f"the columns {names} make it {self._format.name}: {self._format.says}"
        sampled = () if self._inner is None else (f"evaluations complete held-out prompts of {self._inner.name}",)
        return (read, *sampled, ties[self.ties]) if self._tied else (read, *sampled)

    @property
    def samples_evaluations(self) -> bool:
        """True if the option `of` names a task that evaluations complete prompts of."""
        return self._inner is not None

    @property
    def reward(self) -> Reward:
        """The reward of the task `of`; without it a function that refuses to be called."""
        return super().reward if self._inner is None else self._inner.reward

    @property
    def max_new_tokens(self) -> int:
        """The budget of a completion in an evaluation."""
        return super().max_new_tokens if self._inner is None else self._inner.max_new_tokens

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end a completion in an evaluation."""
        return () if self._inner is None else self._inner.stop

    @property
    def undecided(self) -> bool:
        """True if the model decides whether prompts are messages: those of the rows, or only those of evaluations."""
        asked = isinstance(self._inner, QuestionTask) and self._inner.undecided
        return super().undecided or (asked and not isinstance(self.example("train", 0).prompt, str))

    def as_messages(self) -> Self:
        """Return the task with the user's messages as prompts, also those of evaluations."""
        found = super().as_messages()
        found._ask_as_messages()
        return found

    def _ask_as_messages(self) -> None:
        if isinstance(self._inner, QuestionTask) and self._inner.undecided:
            self._inner = self._inner.as_messages()

    def label(self, split: Split, index: int) -> str:
        """Return the name of prompt `index` of a split in messages."""
        other = self._inner is not None and split == "eval"
        return f"prompt {self.example(split, index).id}" if other else super().label(split, index)

    def size(self, split: Split) -> int | None:  # type: ignore[override]
        """Return how many prompts a split has; None if those of the task `of` are endless."""
        return self._inner.size(split) if self._inner is not None and split == "eval" else super().size(split)

    def read(self) -> tuple[Table, Table | None]:
        """Return the rows, each with its prompt in a column of its own.

        Raises:
            InputError: columns of no format, or a row that does not fit it, by its name.
        """
        train, held_out = read_tables(self.path, self.train_split, self.eval_path, self.eval_split)
        if not len(train.rows):
            raise InputError(f"{train.name} holds no prompts", "a task has at least one prompt")
        train, held_out = self._turned(train), None if held_out is None else self._turned(held_out)
        self._format = format_of(train.rows[0], self._names, train.label(0))
        return self._normal(train, "train"), None if held_out is None else self._normal(held_out, "eval")

    def _turned(self, table: Table) -> Table:
        """Return the table with prompts that ask for what winners keep, as `reverse` says."""
        if self.reverse == "both" and self.ties == "half":
            raise InputError(
                "reverse is both and ties is half", "each says how often a pair is used", "Leave one of the two out"
            )
        return turned_table(table, self.reverse, self.prompt, self.chosen, self.rejected)

    def example(self, split: Split, index: int) -> Example:
        """Return prompt `index` of a split; the second copy of a tied row, with `ties: half`, has an id of its own."""
        if self._inner is not None and split == "eval":
            return self._inner.example(split, index)
        found = super().example(split, index)
        place = self._positions[split][index]
        numbers = self._tables[split].numbers
        again = place > 0 and numbers[place] == numbers[place - 1]
        return replace(found, id=f"{found.id}/again") if again else found

    def solution(self, example: Example) -> str | None:
        """Return the best completion; None if none has a reward above 0."""
        best = max(self.stored_rows(example), key=lambda row: row.reward)
        return best.completion if best.reward > 0 else None

    def stored_rows(self, example: Example) -> Sequence[StoredRow]:
        """Return the completions of a prompt, of a pair the winner first."""
        judged = self._judged(example.columns, example.id)
        parts = {**_margin(example.columns, example.id), **judged.components}
        if judged.tied and self.ties == "keep":
            judged = replace(judged, rewards=(TIED,) * len(judged.rewards))
        best = max(judged.rewards)
        return [
            replace(
                self._stored(completion, reward, example.id, correct=reward == best and reward > 0), components=parts
            )
            for completion, reward in zip(judged.completions, judged.rewards, strict=True)
        ]

    def _compared_once(self, position: int) -> bool:
        """Return whether a training row is the first of two equal copies, not one of the two orders of a tie."""
        table = self._tables["train"]
        first = position + 1 < len(table.rows) and table.numbers[position + 1] == table.numbers[position]
        return first and table.rows[position + 1] == table.rows[position]

    def _decided(self, position: int) -> bool:
        """Return whether a training row has a better completion."""
        table = self._tables["train"]
        return not self._judged(table.rows[position], table.label(position)).tied

    @property
    def _names(self) -> Names:
        return Names(self.prompt, self.chosen, self.rejected, self.tie, self.completion, self.ratings, self.reference)

    def _normal(self, table: Table, split: Split) -> Table:
        """Return the table with checked rows, prompts in their column, and ties treated as `ties` says."""
        found = list(self._rows(table, split))
        return Table(table.name, [row for row, _ in found], [number for _, number in found], table.unit)

    def _rows(self, table: Table, split: Split) -> Iterator[tuple[JsonMapping, int]]:
        for position, (row, number) in enumerate(zip(table.rows, table.numbers, strict=True)):
            label, row = table.label(position), without_nulls(row)
            refuse_pictures(row, label)
            refuse_written(row, (self.prompt, *self._format.columns), label)
            _margin(row, label)
            judged = self._judged(row, label)
            for completion in judged.completions:
                self._stored(completion, 0.0, label)
            if judged.tied:
                self._refuse_tie(judged, label)
                self._tied += 1
            whole = self._with_prompt(row, judged)
            twice = self.ties == "half" and split == "train"
            if not judged.tied or (self.ties == "keep" and split == "train"):
                yield from ((whole, number) for _ in range(1 + twice))
            elif twice:
                yield whole, number
                yield {**whole, self.chosen: whole[self.rejected], self.rejected: whole[self.chosen]}, number

    def _with_prompt(self, row: JsonMapping, judged: Judged) -> JsonMapping:
        """Return a row of a pair with its prompt, winner and loser in columns of their own; any other row as it is."""
        if self.chosen not in self._format.columns:
            return row
        winner, loser = judged.completions[:2]
        return {**row, self.prompt: judged.prompt, self.chosen: winner, self.rejected: loser}

    def _judged(self, row: JsonMapping, label: str) -> Judged:
        implicit = self._format.read is pair_inside and self.prompt in row
        read = explicit_pair if implicit else self._format.read
        for column in self._format.columns:
            if column not in row:
                raise InputError(f"The column '{column}' is missing in {label}", remedy=suggest(column, row))
        judged = read(row, self._names, label)
        lists = self.chosen not in self._format.columns
        return judged if lists or judged.tied else replace(judged, tied=self._same(judged, label))

    def _same(self, judged: Judged, label: str) -> bool:
        """Return whether the first two completions say the same, in whatever form each is given."""
        one, other = judged.completions[:2]
        forms = isinstance(one, str), isinstance(other, str)
        return one == other if all(forms) else self._stored(one, 0.0, label) == self._stored(other, 0.0, label)

    def _refuse_tie(self, judged: Judged, label: str) -> None:
        lists = self.chosen not in self._format.columns
        if self.ties == "refuse" or (self.ties == "half" and lists):
            same = len(judged.completions) == 2 and self._same(judged, label)
            raise InputError(
                f"Both completions in {label} are the same" if same else f"No completion in {label} is better",
                "'ties: half' counts a tied pair once each way, and this is a list"
                if self.ties == "half"
                else "a group has a better and a worse completion",
                "'ties: drop' leaves such groups out, 'ties: keep' keeps them for a method that learns from ties"
                + ("" if lists else "; 'ties: half' counts them once each way"),
            )

    def _prompt(self, row: Mapping[str, object], label: str) -> str | tuple[Message, ...]:
        return announced(super()._prompt(row, label), row, label)

    def _stored(self, completion: object, reward: float, label: str, *, correct: bool = False) -> StoredRow:
        if isinstance(completion, str):
            return StoredRow(completion, reward, correct)
        messages = read_messages(cast(Sequence[object], completion), None, label)
        plain = len(messages) == 1 and not messages[0].get("tool_calls")
        text = messages[0]["content"] if plain else prompt_text(messages)
        if not text:
            raise InputError(
                f"A completion in {label} is empty", "a completion is text, or messages that say something"
            )
        return StoredRow(text, reward, correct, messages=None if plain else messages)


def _completed(task: Task) -> Task:
    """Return a task whose prompts are completed. Raises InputError on one of turns, arrays or stored rows."""
    if not completes_prompts(task):
        raise InputError(
            f"task.of is '{task.name}', which has no prompts to be completed",
            "an evaluation samples one completion of a prompt and scores it by the task's reward",
            "Name a task of prompts, such as addition, jsonl:FILE or file.py:Class",
        )
    return task


def _margin(row: Mapping[str, object], label: str) -> dict[str, float]:
    """Return the number in the column `margin`, as a component of the rewards of its pair; none without the column."""
    given = row.get("margin")
    return {} if given is None else {"margin": finite_number(given, "margin", label)}


def _objective(row: Mapping[str, object], column: str, label: str) -> str:
    """Return the objective by which a row was compared. Raises InputError if it names none."""
    if row.get(column) in (None, ""):
        raise InputError(
            f"{label} has no objective in the column '{column}'", "every row names one", suggest(column, row)
        )
    return str(row[column])
