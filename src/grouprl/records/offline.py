"""Stored rows of a prompt, from a task of pairs, demonstrations or rollouts of another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from grouprl.core.answering import Answering
from grouprl.core.errors import InputError
from grouprl.records.examples import Message

TO_GO, BEFORE = "to_go", "before"
"""Entries of observations for policies that are asked for a return: the return to go, and the action before."""
GiveWay = Literal["keep_start", "keep_end", "drop"]


@dataclass(frozen=True)
class RowLimit:
    """The most tokens of a stored row, prompt and completion together, and what gives way in a group with a longer one.

    `keep_start` cuts the ends of its completions; `keep_end` cuts the beginning of its prompt, by as much for every
    row; `drop` leaves the group out. The prompt stays the same for all rows of a group.
    """

    tokens: int | None = None
    """None: as many as the model has positions."""
    gives_way: GiveWay = "keep_start"


@dataclass(frozen=True)
class StoredRow:
    """A stored completion, with its reward and any known token ids and log-probs."""

    completion: str
    """Its text; after a prompt of chat messages it is one message of the assistant, unless `messages` are given."""
    reward: float
    correct: bool = False
    components: Mapping[str, float] = field(default_factory=dict)
    ids: tuple[int, ...] | None = None
    """Token ids as they were sampled; None: the text is encoded and an end token is appended."""
    prompt_ids: tuple[int, ...] | None = None
    """Token ids of the prompt that it was sampled for; None: the prompt is encoded."""
    behavior_logp: tuple[float, ...] | None = None
    """Log-prob of each of `ids` under the policy that sampled them; None if unknown: the policy in training scores
    them.
    """
    truncated: bool = False
    messages: tuple[Message, ...] | None = None
    """The messages of a completion that is more than one text of the assistant: tool calls, several turns."""

    @property
    def total(self) -> float:
        """The reward."""
        return self.reward

    @property
    def beginning(self) -> tuple[float, ...]:
        """No numbers: a prompt is a text."""
        return ()


@dataclass(frozen=True, eq=False)
class StoredEpisode:
    """A stored trajectory of T actions over arrays; two are equal if all their numbers are."""

    observations: np.ndarray | Mapping[str, np.ndarray]
    """[T+1,…] what was seen before each action and after the last one, by name for a `DictSpace`."""
    actions: np.ndarray
    """[T] numbers of actions, or [T,A] vectors."""
    rewards: np.ndarray
    """[T] reward of each action."""
    terminated: bool
    """Whether the episode ended by itself; if not, a limit cut it, and its return continues after it."""
    behavior_logp: np.ndarray | None = None
    """[T] log-prob of each action under the policy that took it; None if it is not known."""
    legal: np.ndarray | None = None
    """[T,A] bool: which actions were legal; None: all."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Components of the episode's reward besides those of its actions; `#cost` and other counts are not paid."""
    correct: bool | None = None
    """Whether it was right; None: nobody said, so that it is shown as neither, and counts as wrong for a method."""
    context: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Arrays that hold for the whole episode, by name: a map, a graph."""
    final_legal: np.ndarray | None = None
    """[A] bool: which actions would be legal after the last one; None: all, or it is not known."""

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def total(self) -> float:
        """The return: the sum of all rewards."""
        return float(self.rewards.sum())

    def as_row(self) -> dict[str, object]:
        """Return it as plain data by the names of a file's columns, without those that it does not have."""
        seen = self.observations
        shown = seen.tolist() if isinstance(seen, np.ndarray) else {name: each.tolist() for name, each in seen.items()}
        row: dict[str, object] = {"observations": shown, "actions": self.actions.tolist()}
        row |= {"rewards": self.rewards.tolist(), "terminated": self.terminated}
        row |= {} if self.correct is None else {"correct": self.correct}
        known = {"logps": self.behavior_logp, "legal": self.masks()}
        row |= {name: array.tolist() for name, array in known.items() if array is not None}
        row |= {"components": dict(self.components)} if self.components else {}
        return row | ({"context": {name: x.tolist() for name, x in self.context.items()}} if self.context else {})

    @property
    def beginning(self) -> tuple[float, ...]:
        """The numbers of the first observation."""
        seen = self.observations
        shown = [seen] if isinstance(seen, np.ndarray) else [seen[name] for name in sorted(seen)]
        return tuple(float(x) for each in shown for x in np.ravel(each[0]))

    def masks(self) -> np.ndarray | None:
        """Return which actions were legal, [T,A], or [T+1,A] if that is also known after the last action; None: all."""
        if self.final_legal is None:
            return self.legal
        legal = np.ones((len(self), len(self.final_legal)), dtype=bool) if self.legal is None else self.legal
        return np.concatenate([legal, self.final_legal[None]])

    def arrays(self) -> list[np.ndarray]:
        """Return its arrays, in a fixed order."""
        seen = self.observations
        shown = [seen] if isinstance(seen, np.ndarray) else [seen[name] for name in sorted(seen)]
        known = [each for each in (self.behavior_logp, self.legal, self.final_legal) if each is not None]
        return [*shown, self.actions, self.rewards, *known, *(self.context[name] for name in sorted(self.context))]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredEpisode):
            return NotImplemented
        mine, yours = self.arrays(), other.arrays()
        same = len(mine) == len(yours) and all(np.array_equal(a, b) for a, b in zip(mine, yours, strict=True))
        return same and self._plain() == other._plain()

    def _plain(self) -> tuple[object, ...]:
        return self.terminated, dict(self.components), self.correct


def samples_evaluations(task: object) -> bool:
    """Return whether a task with stored rows has a reward for sampled completions, by which it is evaluated."""
    return bool(getattr(task, "samples_evaluations", False))


@runtime_checkable
class StoredRows(Protocol, metaclass=Answering):
    """A task whose rows are stored: pairs with a known winner, demonstrations, rollouts of another run, trajectories.

    Rows are `StoredRow`; those of a task with `spaces` are `StoredEpisode`. Nothing is sampled for such a task: the
    rows of a prompt are its group. A task may have an attribute `limit`, a `RowLimit` of its rows, and `notes`,
    sentences on its data that a plan prints; with `samples_evaluations` an evaluation samples completions and scores
    them by the task's reward. Evaluations of trajectories are played in the task's environment.
    """

    def stored_rows(self, example: object, /) -> Sequence[Any]:
        """Return the rows of a prompt, at least one; a pair has its winner (reward 1) first, its loser (0) second."""
        ...


class AskedTask(Protocol):
    """The part of a task that says whether its prompts are completed."""

    def environment(self) -> object:
        """Return an environment; None where there are no turns."""
        ...


def completes_prompts(task: AskedTask) -> bool:
    """Return whether the rows of a task are completions of its prompts: neither stored nor of turns."""
    return not isinstance(task, StoredRows) and task.environment() is None


def stored_of(task: object, example: object) -> Sequence[StoredRow | StoredEpisode]:
    """Return the stored rows of a prompt.

    Raises:
        InputError: the task has none.
    """
    if not isinstance(task, StoredRows):
        name = getattr(task, "name", task)
        raise InputError(
            f"the task '{name}' has no stored rows",
            "a part of the method weighs stored rows before any is sampled",
            "Take a task with stored rows, such as pairs:FILE, or leave the part out",
        )
    return task.stored_rows(example)
