"""A planner orders sub-tasks before a frozen solver, which reads what the earlier ones have found (RLAP)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Box, DictSpace, Discrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example

NAMES = ("ann", "bob", "cid", "dan", "eve", "fay")
CITIES = ("cairo", "lima", "oslo", "rome")
UNKNOWN = "unknown"
MOST = 8.0
"""Largest count of a word."""


class SubTask(NamedTuple):
    """One question about the input: whom it is about, the text that the solver is asked with, and the right answer."""

    name: str
    text: str
    answer: str


def word_counts(text: str, words: Sequence[str]) -> np.ndarray:
    """Return the number of times, at most 8, that each of the words is in a text, [W]."""
    said = text.split()
    return np.array([min(said.count(word), MOST) for word in words], dtype=np.float32)


class PlannedSubTasks(ABC):
    """Base of worlds in which an action is the next sub-task, and a frozen solver answers it.

    The solver is told the sub-task and the results so far, right or wrong. The state is the input's text and the text
    of the results, a choice is the text of its sub-task, all of them as counts of `words`; an own world may override
    `encode` and `length` by an embedding. A sub-task is given once, and the episode ends when all are done. A right
    result pays `match / count`, the end (1 - match) times the share of right results: 1 is the most there is.

    Args:
        count: number of sub-tasks.
        words: words that texts are counted by.
        match: share of the reward that is paid as results come in; the rest is paid at the end.

    Raises:
        InputError: fewer than two sub-tasks, or a share that is not between 0 and 1.
    """

    def __init__(self, count: int, words: Sequence[str], match: float) -> None:
        if count < 2 or not 0 <= match <= 1:
            raise InputError(
                f"count={count}, match={match}",
                "an order needs two sub-tasks, and match is a share of the reward",
                "Set count to 2 or more and match between 0 and 1",
            )
        self.count, self.match, self.words = count, match, tuple(words)
        texts = {"state": Box((2 * self.length,), 0.0, MOST), "choices": Box((count, self.length), 0.0, MOST)}
        self.spaces = Spaces(DictSpace(texts), Discrete(count))
        self._phase, self._tasks = "new", list[SubTask]()
        self.results: dict[str, str] = {}

    @abstractmethod
    def draw(self, example: Example, seed: int) -> list[SubTask]:
        """Return the sub-tasks of an episode."""

    @abstractmethod
    def solve(self, task: SubTask, results: Mapping[str, str]) -> str:
        """Return the frozen solver's answer to a sub-task, given the results so far by name."""

    @property
    def length(self) -> int:
        """The number of words, each a number of a text."""
        return len(self.words)

    def encode(self, text: str) -> np.ndarray:
        """Return a text as numbers, [W]."""
        return word_counts(text, self.words)

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Show the input and its sub-tasks. Raises InputError if the object was used before."""
        if self._phase != "new":
            raise InputError("reset() was called twice", "an environment plays one episode", "Make a new one")
        self._phase, self._tasks = "playing", self.draw(example, seed)
        return self._shown()

    def step(self, action: int) -> Step:
        """Let the solver do a sub-task. Raises InputError if it was done before, or none is open."""
        if self._phase != "playing":
            raise InputError(f"step({action}) was called when no episode was under way", "reset() begins one")
        task = self._tasks[int(action)]
        if task.name in self.results:
            raise InputError(f"the sub-task {task.name!r} was done before", "each is given once", "Take a legal one")
        self.results[task.name] = self.solve(task, dict(self.results))
        over = len(self.results) == self.count
        paid = self.match / self.count * self._right(task) + over * (1 - self.match) * self.share()
        return Step(self._shown(), paid, terminated=over)  # type: ignore[arg-type]

    def share(self) -> float:
        """Return the share of right results among all sub-tasks."""
        return sum(map(self._right, self._tasks)) / self.count

    def score(self) -> dict[str, float]:
        """Return `correct`, 1 if all results are right."""
        return {"correct": float(self.share() == 1)}

    def close(self) -> None:
        """End the episode."""
        self._phase = "closed"

    def _right(self, task: SubTask) -> bool:
        return self.results.get(task.name) == task.answer

    def _shown(self) -> ArrayObservation:
        told = " ".join(task.text for task in self._tasks)
        found = " ".join(f"{name} {answer}" for name, answer in self.results.items())
        values = {
            "state": np.concatenate([self.encode(told), self.encode(found)]),
            "choices": np.stack([self.encode(task.text) for task in self._tasks]),
        }
        legal = np.array([task.name not in self.results for task in self._tasks])
        text = f"{told}\nfound: {found or 'nothing'}"
        return ArrayObservation(values, legal if legal.any() else None, text=text)


def told(hosts: Sequence[int], cities: Sequence[str]) -> list[SubTask]:
    """Return the sub-tasks "where is bob: bob lives with ann" of people with hosts, or -1 for who has a city.

    Raises:
        InputError: people who live with each other in a circle.
    """
    homes: dict[int, str] = {}
    for person in range(len(hosts)):
        chain = [person]
        while hosts[chain[-1]] >= 0:
            chain.append(hosts[chain[-1]])
            if len(chain) > len(hosts):
                raise InputError(
                    f"hosts {list(hosts)} form a circle", "at least one of them has a city", "Set a host to -1"
                )
        homes[person] = cities[chain[-1]]
    where = [f"with {NAMES[host]}" if host >= 0 else f"in {cities[person]}" for person, host in enumerate(hosts)]
    return [SubTask(NAMES[k], f"{NAMES[k]} lives {where[k]}", homes[k]) for k in range(len(hosts))]


class Homes(PlannedSubTasks):
    """Find where each of `count` people lives, of whom some live with others, asking about one after the other.

    "ann lives in rome", "bob lives with ann". The solver stands for a frozen model and is a rule: it reads a city, or
    copies the result of the one who is lived with; if there is none yet it says "unknown", and so does everyone who is
    asked through this one afterwards. All results are right if and only if nobody is asked before the host. In a share
    `in_order` of the episodes people are told after their hosts; in the others they are shuffled.

    Args:
        count: number of people, 2 to 6.
        in_order: share of episodes in which the order of the text is a best one.
        match: share of the reward that is paid as results come in.

    Raises:
        InputError: more people than names, or shares that are not between 0 and 1.
    """

    def __init__(self, count: int = 5, in_order: float = 0.5, match: float = 0.5) -> None:
        if count > len(NAMES) or not 0 <= in_order <= 1:
            raise InputError(
                f"count={count}, in_order={in_order}",
                f"there are {len(NAMES)} names, and in_order is a share of episodes",
                f"Set count to {len(NAMES)} or less and in_order between 0 and 1",
            )
        super().__init__(count, (*NAMES[:count], *CITIES, "with", "in", UNKNOWN), match)
        self.in_order = in_order

    def draw(self, example: Example, seed: int) -> list[SubTask]:
        """Draw who lives with whom: with one of those before, or alone, each as likely."""
        luck = np.random.default_rng(seed)
        hosts = np.array([luck.integers(-1, person) for person in range(self.count)])
        if luck.random() >= self.in_order:
            new = luck.permutation(self.count)
            hosts[new] = np.where(hosts < 0, -1, new[hosts])
        return told(hosts.tolist(), luck.choice(CITIES, self.count).tolist())

    def solve(self, task: SubTask, results: Mapping[str, str]) -> str:
        """Read the city, or copy what was found of the host."""
        how, where = task.text.split()[-2:]
        return where if how == "in" else results.get(where, UNKNOWN)
