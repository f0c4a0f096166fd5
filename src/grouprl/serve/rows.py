"""What clients said and were answered, as rows of exact tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from grouprl.chat.request import continues
from grouprl.envs.environment import Observation
from grouprl.rollout.between import Between
from grouprl.serve.drawing import Drawn
from grouprl.tasks.task import Question

NOBODY = Question("served", "")
Messages = Sequence[Mapping[str, Any]]


@dataclass
class Row:
    """One conversation as the policy sees it: `ids` are the tokens behind the prompt, `mask` says which it drew."""

    number: int
    tools: Messages
    said: tuple[Mapping[str, Any], ...]
    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    turns: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "row": self.number,
            "turns": self.turns,
            "prompt_ids": self.prompt_ids,
            "response_ids": self.ids,
            "mask": self.mask,
            "logp": self.logp,
            "messages": list(self.said),
        }


@dataclass(frozen=True)
class Asked:
    """Where a request goes on: its row with its turns then (None: it begins one), all tokens, those new to the row."""

    row: Row | None
    turns: int
    context: list[int]
    seen: list[int]


class Rows:
    """The rows of every client, by API key.

    A request whose messages begin with all that a row holds, the last answer included, goes on in that row: the tokens
    drawn before stay as they were drawn, and only what is new is encoded. Any other request begins a row. With several
    answers to one request, each is a row.
    """

    def __init__(self, policy: Any, record: Path | None = None) -> None:
        self.policy, self.between = policy, Between(policy, "append")
        self._rows: dict[str, list[Row]] = {}
        self._lock = threading.Lock()
        self._file: TextIO | None = None if record is None else record.open("a", encoding="utf-8")

    def of(self, key: str) -> list[Row] | None:
        """Return the rows of a client; None if it never asked."""
        return self._rows.get(key)

    def ask(self, key: str, messages: Messages, tools: Messages) -> Asked:
        """Return which row goes on with these messages, and the tokens that the policy is to go on from.

        Raises:
            InputError: for texts that the tokenizer cannot encode.
        """
        with self._lock:
            rows = [row for row in self._rows.get(key, []) if list(row.tools) == list(tools)]
            going = [row for row in rows if continues(row.said, messages)]
            row = max(going, key=lambda row: len(row.said), default=None)
            if row is None:
                prompt = self.between.first(NOBODY, shown(messages, tools))
                return Asked(None, 0, self.policy.encode_prompt(prompt), [])
            ended = row.ids[-1] if row.ids[-1] in self.policy.eos_ids else None
            seen = self.policy.encode(self.between.later(shown(messages[len(row.said) :], ()), ended))
            return Asked(row, row.turns, [*row.prompt_ids, *row.ids, *seen], seen)

    def add(self, key: str, asked: Asked, drawn: Drawn, said: Messages, tools: Messages) -> Row:
        """Write an answer down: in the row that was asked, or in a new one where that has gone on since."""
        with self._lock:
            row, seen = asked.row, asked.seen
            rows = self._rows.setdefault(key, [])
            if row is None or row.turns != asked.turns:
                row, seen = Row(len(rows), tuple(tools), (), asked.context), []
                rows.append(row)
            row.ids += [*seen, *drawn.ids]
            row.mask += [False] * len(seen) + [True] * len(drawn.ids)
            row.logp += [0.0] * len(seen) + list(drawn.logp)
            row.said, row.turns = tuple(said), row.turns + 1
            self._write(key, row, seen, drawn)
            return row

    def close(self) -> None:
        """Close the record."""
        if self._file is not None:
            self._file.close()

    def _write(self, key: str, row: Row, seen: list[int], drawn: Drawn) -> None:
        if self._file is None:
            return
        first = row.turns == 1
        line = {
            "key": key,
            "row": row.number,
            "turn": row.turns - 1,
            "seen_ids": row.prompt_ids if first else seen,
            "ids": list(drawn.ids),
            "logp": list(drawn.logp),
            "text": drawn.text,
            "messages": list(row.said),
        }
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


def shown(messages: Messages, tools: Messages) -> Observation:
    """Return messages as an observation; a policy without a chat template is shown their contents one after another."""
    return Observation("".join(m["content"] for m in messages), messages=tuple(messages), tools=tuple(tools))
