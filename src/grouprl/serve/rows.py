"""Conversations with clients, as rows of exact tokens."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from grouprl.chat.request import continues
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.envs.environment import Observation
from grouprl.policy.language.call_syntax import opens_thinking
from grouprl.policy.language.text import render_chat
from grouprl.records.episode_records import Turn
from grouprl.records.examples import Example
from grouprl.rollout.episode import Context, shown_messages
from grouprl.rollout.turn_text import History, TurnText
from grouprl.serve.joint_sampling import ServedTurn
from grouprl.serve.retention import Retained, Retention

if TYPE_CHECKING:
    from grouprl.records.token_policy import TokenPolicy

NOBODY = Example("served", "")
Messages = Sequence[JsonMapping]
Variables = JsonMapping
"""Variables that a request sets in the chat template."""


@dataclass(eq=False)
class Row:
    """One conversation as the policy sees it: `ids` are the tokens after the prompt, `mask` marks the sampled ones."""

    number: int
    tools: Messages
    said: tuple[JsonMapping, ...]
    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    turns: int = 0
    used: float = 0.0
    """Time of the last continuation of the row, in seconds of a monotonic clock."""
    cost: int = 0
    """Approximate size of the row in memory, in bytes."""
    variables: Variables = field(default_factory=dict)
    talk: Context | None = None
    """The conversation as the chat template sees it, to detect whether the template rewrites earlier turns."""

    def as_json(self) -> JsonObject:
        """Return the row as JSON data."""
        return {
            "row": self.number,
            "turns": self.turns,
            "prompt_ids": list(self.prompt_ids),
            "response_ids": list(self.ids),
            "mask": list(self.mask),
            "logp": list(self.logp),
            "messages": list(self.said),
        }


@dataclass(frozen=True)
class Requested:
    """The row that a request continues, with its turns so far (None if it begins one), all tokens and the new ones."""

    row: Row | None
    turns: int
    context: list[int]
    seen: list[int]
    opened: bool = False
    """Whether the completion begins inside thinking."""
    talk: Context | None = None
    """The conversation as the chat template sees it, up to the completion."""
    begun: tuple[int, ...] = ()
    """Tokens of the completion that the client has written, at the end of `context`."""

    def begun_with(self, ids: Sequence[int]) -> Requested:
        """Return the request with the beginning of its completion."""
        return replace(self, context=[*self.context, *ids], seen=[*self.seen, *ids], begun=tuple(ids))


def private(path: Path) -> TextIO:
    """Open a file for appending that only its owner may read: it holds what clients wrote, and their keys.

    Raises:
        InputError: if it belongs to someone else.
    """
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(number, 0o600)
    except PermissionError:
        os.close(number)
        rule = "it holds what clients write, so only its owner may read it"
        raise InputError(f"The record {path} belongs to another user", rule, "Choose another file") from None
    return open(number, "a", encoding="utf-8")


class ServedRows:
    """The rows of all clients, by API key. Rows of a client without a key are not retained.

    A request whose messages begin with all messages of a row, including the last completion, continues that row:
    earlier tokens stay as they were sampled, and only the new messages are encoded. Any other request begins a row. If
    the chat template rewrites earlier turns (it drops thinking, trims, moves tools), `history` decides as
    `sampling.history` does in training: append keeps the row as it was written, split begins a row with the rewritten
    messages, refuse refuses the request. If a request has several completions, each becomes a row. The number of
    retained rows is limited (`Retention`); a record on disk has all of them.
    """

    def __init__(
        self,
        policy: TokenPolicy,
        record: Path | None = None,
        keeping: Retention | None = None,
        secret: bool = False,
        history: History = "append",
    ) -> None:
        """Begin without rows; with `secret`, keys are written into the record as digests.

        Raises:
            InputError: if `history` is unknown.
        """
        self.policy, self.turn_text, self.secret = policy, TurnText(policy, history), secret
        self._shelves: Retained[Row] = Retained(keeping or Retention())
        self._lock, self._encoding = threading.Lock(), threading.Lock()
        self._file: TextIO | None = None if record is None else private(record)

    def __len__(self) -> int:
        """Return the number of retained rows."""
        with self._lock:
            return len(self._shelves)

    @property
    def cost(self) -> int:
        """Approximate size of the rows, in bytes."""
        return self._shelves.cost

    def of(self, key: str) -> list[JsonObject] | None:
        """Return the rows of a client as JSON data; None if none are retained."""
        with self._lock:
            found = self._shelves.of(key)
            return None if not found else [row.as_json() for row in found]

    def request(self, key: str, messages: Messages, tools: Messages, variables: Variables) -> Requested:
        """Return the row that these messages continue, and the tokens for the policy to complete.

        Raises:
            InputError: if the tokenizer cannot encode a text, or the template rewrites the past although `history` is
                refuse.
        """
        with self._lock:
            row = self._going_on(key, messages, tools, variables)
            going = None if row is None else Requested(row, row.turns, [*row.prompt_ids, *row.ids], [])
            new = messages if row is None else messages[len(row.said) :]
            talk = None if row is None or row.talk is None else _branch(row.talk)
        with self._encoding:
            if going is not None and talk is not None:
                going = self._continued(going, talk, shown(new, (), variables))
            return going or self._begun(shown(messages, tools, variables))

    def _begun(self, observation: Observation) -> Requested:
        """Return a request that begins a new row."""
        prompt = self.turn_text.first(NOBODY, observation)
        ids = self.policy.encode_prompt(prompt)
        opened = self.turn_text.chat and opens_thinking(render_chat(self.policy.tokenizer, prompt))  # type: ignore[arg-type]
        return Requested(None, 0, ids, [], opened, Context("", 0, -1, prompt, []))

    def _continued(self, going: Requested, talk: Context, new: Observation) -> Requested | None:
        """Return a request that continues a row; None if it must begin one, because the template rewrites the past.

        Raises:
            InputError: if the template rewrites the past although `history` is refuse.
        """
        onward = self.turn_text.onward(talk, new)
        if onward.refused:
            what = onward.refused.partition(". Set sampling.history")[0]
            raise InputError(
                what, "a row must keep the tokens that were sampled", "Serve with --history append (keep it) or split"
            )
        if onward.text is None:
            return None
        seen = self.turn_text.encode([talk], [onward.text])[0]
        onward.keep(talk)
        talk.talk.append(shown_messages(new))
        opened = self.turn_text.chat and opens_thinking(onward.row or onward.text)
        return replace(going, context=[*going.context, *seen], seen=seen, opened=opened, talk=talk)

    def add(
        self,
        key: str,
        requested: Requested,
        sampled: ServedTurn,
        said: Messages,
        tools: Messages,
        variables: Variables,
    ) -> Row:
        """Add a completion to the requested row, or to a new row if that one was continued or dropped in the
        meantime."""
        with self._lock:
            row, seen = requested.row, requested.seen
            if row is None or row.turns != requested.turns or not self._shelves.holds(key, row):
                row, seen = Row(self._shelves.next_number(key), tuple(tools), (), list(requested.context)), []
                row.variables = variables
            row.ids += [*seen, *sampled.ids]
            row.mask += [False] * len(seen) + [True] * len(sampled.ids)
            row.logp += [0.0] * len(seen) + list(sampled.logp)
            row.said, row.turns, row.used = tuple(said), row.turns + 1, time.monotonic()
            row.talk = self._spoken(requested.talk, (*requested.begun, *sampled.ids))
            row.cost = _cost(row)
            if key:
                self._shelves.put(key, _marks(row.said, tools, variables)[-1], row)
            self._write(key, row, seen, sampled)
            return row

    def close(self) -> None:
        """Close the record."""
        if self._file is not None:
            self._file.close()

    def _spoken(self, talk: Context | None, ids: tuple[int, ...]) -> Context | None:
        """Return a conversation with the completion appended; only the last of its tokens is stored."""
        if talk is None:
            return None
        branch = _branch(talk)
        turn = Turn(0, "", self.policy.decode(list(ids)))
        branch.append_action(turn, [], [], [], own=True, versions=[])
        branch.turns, branch.ids = [turn], list(ids[-1:])
        return branch

    def _going_on(self, key: str, messages: Messages, tools: Messages, variables: Variables) -> Row | None:
        """Return the longest row that these messages continue."""
        for mark in reversed(_marks(messages, tools, variables)[:-1]):
            rows = self._shelves.marked(key, mark)
            alike = [row for row in rows if list(row.tools) == list(tools) and row.variables == variables]
            going = [row for row in alike if continues(row.said, messages)]
            if going:
                return min(going, key=lambda row: row.number)
        return None

    def _write(self, key: str, row: Row, seen: list[int], sampled: ServedTurn) -> None:
        if self._file is None:
            return
        first = row.turns == 1
        line = {
            "key": hashlib.blake2b(key.encode(), digest_size=9).hexdigest() if self.secret else key,
            "row": row.number,
            "turn": row.turns - 1,
            "seen_ids": row.prompt_ids if first else seen,
            "ids": list(sampled.ids),
            "logp": list(sampled.logp),
            "text": sampled.text,
            "messages": list(row.said),
        }
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


def _marks(messages: Messages, tools: Messages, variables: Variables) -> list[bytes]:
    """Return a mark for each prefix of a conversation, from the empty one on; equal conversations have equal marks."""
    marks = [_digest(json.dumps([list(tools), dict(variables)], sort_keys=True))]
    for message in messages:
        calls = [call["function"]["name"] for call in message.get("tool_calls", ())]
        marks.append(_digest(json.dumps([message["role"], message["content"].strip(), calls]), marks[-1]))
    return marks


def _digest(text: str, before: bytes = b"") -> bytes:
    return hashlib.blake2b(before + text.encode(), digest_size=16).digest()


def _cost(row: Row) -> int:
    """Return the approximate size of a row in bytes: an id, a mask and a log-prob per token, and its texts."""
    text = sum(len(message["content"]) + len(str(message.get("tool_calls", ""))) for message in row.said)
    tools = sum(len(str(tool)) for tool in row.tools) + len(str(row.variables))
    text += 0 if row.talk is None else len(row.talk.text) + sum(len(turn.action) for turn in row.talk.turns)
    return 80 * (len(row.prompt_ids) + len(row.ids)) + 2 * (text + tools) + 500 * len(row.said) + 1000


def _branch(talk: Context) -> Context:
    return talk.branch({id(turn): turn for turn in talk.turns})


def shown(messages: Messages, tools: Messages, variables: Variables) -> Observation:
    """Return messages as an observation; a policy without a chat template sees their concatenated contents."""
    text = "".join(m["content"] for m in messages)
    return Observation(text, messages=tuple(messages), tools=tuple(tools), variables=variables)
