"""Tasks whose prompts are rows of a table: prompts, columns for the reward, and a held-out part."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError, suggest
from grouprl.core.hashing import content_number
from grouprl.core.json_types import JsonObject
from grouprl.records.characters import PRINTABLE, characters_in
from grouprl.records.examples import Example, Message, Split
from grouprl.rewards import Reward, load_reward
from grouprl.rewards.contract import inspect_reward, missing_column
from grouprl.rewards.validation import plain_rewards
from grouprl.tasks.questions import QuestionTask
from grouprl.tasks.table import Table
from grouprl.tasks.task import check_request, without_folder

ROLES = ("system", "user", "assistant", "tool")
LONGEST = 1_000_000
"""Characters of the longest prompt, as many as an environment's observation may have."""


class RowTask(QuestionTask):
    """Prompts from a table, which a subclass reads.

    The reward receives every column of a row that it names. The held-out prompts are a separate table, or the share
    `eval_fraction` of the different prompts with the lowest hashes; equal prompts are always in the same split.
    """

    prompt: str = Field("prompt", description="the column with the prompt: text, or a list of chat messages")
    reward_spec: str | JsonObject | list[str | JsonObject] = Field(
        "exact_match", alias="reward", description="a built-in name, pkg.module:function, or a list with weights"
    )
    demonstration_column: str | None = Field(
        None, alias="demonstration", description="the column with an example completion for the warm-up"
    )
    solution_column: str | None = Field(
        None,
        alias="solution",
        description="the column with a correct completion, for methods that show it or hint at it",
    )
    hints_column: str | None = Field(
        None, alias="hints", description="the column with a list of hints, each saying more than the one before"
    )
    variants_column: str | None = Field(
        None, alias="variants", description="the column with a list of the same prompt in other words"
    )
    eval_fraction: float = Field(0.1, ge=0, lt=1, description="share of the prompts held out; 0 for none")
    drop_overlap: bool = Field(False, description="whether to leave out training rows that are held out, too")

    _reward: Reward = PrivateAttr()
    _tables: dict[str, Table] = PrivateAttr()
    _positions: dict[str, list[int]] = PrivateAttr()
    _content: str = PrivateAttr()

    @abstractmethod
    def read(self) -> tuple[Table, Table | None]:
        """Return the table to train on and, if there is one, the table to evaluate on."""

    def model_post_init(self, context: object) -> None:
        """Read the rows, check every one, and hold some out."""
        self._reward = load_reward(self.reward_spec)
        train, held_out = self.read()
        content = hashlib.sha256()
        prompts = self._check(train, content)
        held_out_prompts = self._check(held_out, content) if held_out else lowest(prompts, self.eval_fraction)
        self._content = content.hexdigest()[:16]
        self._tables = {"train": train, "eval": held_out or train}
        training = _positions(prompts, set(held_out_prompts), inside=False)
        if held_out and len(training) < len(prompts) and not self.drop_overlap:
            raise _overlap(train, held_out, prompts, held_out_prompts)
        chosen = (
            list(range(len(held_out.rows))) if held_out else _positions(prompts, set(held_out_prompts), inside=True)
        )
        self._positions = {"train": training, "eval": chosen}
        if not training:
            raise InputError(
                f"No prompt of {train.name} is left to train on",
                "prompts that are held out are not trained on",
                "Lower eval_fraction, or give a file with other prompts.",
            )

    @property
    def alphabet(self) -> str:
        """Printable ASCII, and the other characters of the rows and of the texts among the options."""
        cells = [row for table in self.tables() for row in table.rows]
        return PRINTABLE + "".join(sorted(characters_in([cells, self.model_dump()]) - set(PRINTABLE)))

    @property
    def reward(self) -> Reward:
        """The reward named by the options."""
        return self._reward

    def check_columns(self, reward: Reward) -> None:
        """Check that every row has the columns that a reward needs.

        Raises:
            InputError: a row lacks one; the message names the first.
        """
        needed = _needed_columns(reward)
        for table in self.tables():
            for position, row in enumerate(table.rows):
                _check_columns(needed, row, table, position)

    def example(self, split: Split, index: int) -> Example:
        """Return prompt `index` of a split, in the order of the rows.

        Raises:
            InputError: on an unknown split or an index beyond the size.
        """
        positions = self._positions.get(split)
        if positions is None or not 0 <= index < len(positions):
            check_request(self.name, split, index, self.size(split))
        table, position = self._tables[split], self._positions[split][index]
        row = dict(table.rows[position])
        prompt = self._prompt(row, table.label(position))
        return Example(f"{without_folder(table.name)}:{table.numbers[position]}", prompt, row)

    def label(self, split: Split, index: int) -> str:
        """Return the name of prompt `index` of a split in messages: "line 3 of data.jsonl"."""
        return self._tables[split].label(self._positions[split][index])

    def size(self, split: Split) -> int:
        """Return how many prompts a split has.

        Raises:
            InputError: on an unknown split.
        """
        check_request(self.name, split, 0, None)
        return len(self._positions[split])

    def demonstration(self, example: Example, seed: int) -> str | None:
        """Return the row's demonstration: the same for every seed; None without such a column."""
        return example.columns[self.demonstration_column] if self.demonstration_column else None

    def solution(self, example: Example) -> str | None:
        """Return the row's correct completion in full; None without such a column."""
        return example.columns[self.solution_column] if self.solution_column else None

    def hints(self, example: Example) -> tuple[str, ...]:
        """Return the row's hints; without such a column, beginnings of its correct completion."""
        return tuple(example.columns[self.hints_column] or ()) if self.hints_column else super().hints(example)

    def variants(self, example: Example) -> tuple[Example, ...]:
        """Return the prompt, and one for each of the row's other prompts."""
        others = (example.columns[self.variants_column] or ()) if self.variants_column else ()
        return example, *(
            replace(example, id=f"{example.id}/{i}", prompt=self._shown(prompt, example.id))
            for i, prompt in enumerate(others, start=1)
        )

    def options(self) -> JsonObject:
        """Return every option with its value, and a hash of the rows."""
        return {**super().options(), "content": self._content}

    def tables(self) -> Sequence[Table]:
        """Return the table to train on and, if there is one, the table to evaluate on."""
        return list({id(table): table for table in self._tables.values()}.values())

    def _check(self, table: Table, content: hashlib._Hash) -> list[str]:
        """Check every row, add it to the hash, and return the prompts' contents, which decide the split."""
        prompts, needed = [], _needed_columns(self._reward) if "reward_spec" in self.model_fields_set else []
        for position, row in enumerate(table.rows):
            label = table.label(position)
            self._prompt(row, label)
            prompts.append(json.dumps(row[self.prompt], sort_keys=True, default=str))
            _check_columns(needed, row, table, position)
            self._check_text("demonstration", self.demonstration_column, row, label)
            self._check_text("solution", self.solution_column, row, label)
            self._check_list("hints", self.hints_column, row, label, str)
            self._check_list("variants", self.variants_column, row, label, (str, list, tuple))
            content.update(json.dumps(row, sort_keys=True, default=str).encode())
        if not prompts:
            raise InputError(f"{table.name} holds no prompts", "a task has at least one prompt")
        return prompts

    def _prompt(self, row: Mapping[str, object], label: str) -> str | tuple[Message, ...]:
        if self.prompt not in row:
            remedy = f"{suggest(self.prompt, row)} Set the option 'prompt'." if row else "It is empty."
            raise InputError(f"The prompt column '{self.prompt}' is missing in {label}", remedy=remedy)
        return self._shown(row[self.prompt], label)

    def _shown(self, prompt: object, label: str) -> str | tuple[Message, ...]:
        """Return a prompt of the table in the form in which it is shown, with the system message."""
        if isinstance(prompt, str) and len(prompt) > LONGEST:
            raise InputError(
                f"The prompt in {label} has {len(prompt):,} characters",
                f"a prompt has at most {LONGEST:,}: no model reads more, and every step would encode it",
                "Cut it, or leave the row out",
            )
        if isinstance(prompt, str) and prompt:
            return self.asked(prompt)
        if isinstance(prompt, (list, tuple)) and prompt:
            return read_messages(prompt, self.system, label)
        raise InputError(
            f"The prompt in {label} is {prompt!r}", "a prompt is text or a list of chat messages, not empty"
        )

    def _check_text(self, what: str, column: str | None, row: Mapping[str, object], label: str) -> None:
        if column is not None and not isinstance(_cell(what, column, row, label), str | None):
            raise InputError(f"The {what} in {label} is {row[column]!r}", f"a {what} is text or null")

    def _check_list(
        self, what: str, column: str | None, row: Mapping[str, object], label: str, kind: type | tuple[type, ...]
    ) -> None:
        value = None if column is None else _cell(what, column, row, label)
        if value is None or (isinstance(value, list | tuple) and all(isinstance(x, kind) and x for x in value)):
            return
        each = "texts" if kind is str else "prompts"
        raise InputError(f"The {what} in {label} are {value!r}", f"{what} are a list of {each}, or null")


def _cell(what: str, column: str, row: Mapping[str, object], label: str) -> object:
    if column not in row:
        raise InputError(f"The {what} column '{column}' is missing in {label}", remedy=suggest(column, row))
    return row[column]


def read_messages(prompt: Sequence[object], system: str | None, label: str) -> tuple[Message, ...]:
    """Return the chat messages of a cell, after a system message if there is one.

    Raises:
        InputError: a cell holds something that is not a chat message, or there are two system messages.
    """
    messages = [_message(each, label) for each in prompt]
    if system is None:
        return tuple(messages)
    if messages[0]["role"] == "system":
        raise InputError(
            f"The prompt in {label} brings a system message, and the option 'system' is set", "only one is possible"
        )
    return (Message(role="system", content=system), *messages)


def _message(given: object, label: str) -> Message:
    """Return a row's chat message, without dropping any part of it."""
    said = {key: value for key, value in given.items() if value is not None} if isinstance(given, Mapping) else {}
    calls = said.get("tool_calls", ())
    text = _one_text(said.get("content", "" if said.get("tool_calls") else None), label)
    if said.get("role") not in ROLES or not isinstance(text, str) or not _are_calls(calls):
        raise InputError(
            f"A chat message in {label} is {given!r}"[:400],
            f"a message has a text 'content' and a 'role' among {', '.join(ROLES)}; calls of tools, 'tool_calls', are "
            'a list of {"type": "function", "function": {"name": …, "arguments": {…}}}',
        )
    for key in said.keys() - Message.__annotations__.keys():
        raise InputError(
            f"A chat message in {label} has '{key}'",
            f"known are {', '.join(Message.__annotations__)}",
            suggest(key, Message.__annotations__),
        )
    return cast(Message, said | {"content": text})


def _one_text(content: object, label: str) -> object:
    """Return the parts of a list of texts, joined into one text; anything else as it is.

    Raises:
        InputError: a part that is not a text, such as a picture.
    """
    if not isinstance(content, list | tuple) or not content:
        return content
    texts = []
    for given in content:
        part = {k: v for k, v in given.items() if v is not None} if isinstance(given, Mapping) else {}
        if part.keys() != {"type", "text"} or part["type"] != "text" or not isinstance(part["text"], str):
            raise InputError(
                f"A part of a message in {label} is {given!r}"[:400],
                "prompts are read by models of text: a part is {'type': 'text', 'text': …}",
                "Leave out pictures, sounds and files, or describe them in words",
            )
        texts.append(part["text"])
    return "".join(texts)


def _are_calls(calls: object) -> bool:
    if not isinstance(calls, list | tuple):
        return False
    functions = [call.get("function") if isinstance(call, Mapping) else None for call in calls]
    return all(isinstance(each, Mapping) and isinstance(each.get("name"), str) for each in functions)


def _needed_columns(reward: Reward) -> list[tuple[str, Reward]]:
    """Return the columns that a reward needs, each with the function that needs it."""
    return [(name, function) for function in plain_rewards(reward) for name in inspect_reward(function).required]


def _check_columns(
    needed: Sequence[tuple[str, Reward]], row: Mapping[str, object], table: Table, position: int
) -> None:
    """Check that a row has every column that is needed."""
    for name, function in needed:
        if name not in row:
            raise missing_column(name, row, function, table.label(position))


def lowest(prompts: Sequence[str], fraction: float) -> list[str]:
    """Return the prompts with the lowest content hashes: a share of the different ones, at least one unless the share
    is 0.
    """
    different = sorted(set(prompts), key=content_number)
    return different[: max(round(fraction * len(different)), 1 if fraction > 0 else 0)]


def _positions(prompts: Sequence[str], held_out: set[str], *, inside: bool) -> list[int]:
    return [position for position, prompt in enumerate(prompts) if (prompt in held_out) == inside]


def _overlap(train: Table, held_out: Table, prompts: list[str], held_out_prompts: list[str]) -> InputError:
    """Return the error for a prompt that is in both tables."""
    first = _positions(prompts, set(held_out_prompts), inside=True)[0]
    other = held_out_prompts.index(prompts[first])
    return InputError(
        f"The prompt in {train.label(first)} is also in {held_out.label(other)}",
        "held-out prompts are not trained on",
        "Remove it, or set drop_overlap to leave such training rows out.",
    )
