"""Stored trajectories of arrays as data: a policy learns from what others did, and is evaluated in the environment."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.protocols import Spaces
from grouprl.records.examples import Example, Split
from grouprl.records.offline import StoredEpisode
from grouprl.rewards import Reward
from grouprl.tasks.adapters.trajectories.checking import checked
from grouprl.tasks.adapters.trajectories.files import MINARI, read
from grouprl.tasks.adapters.trajectories.return_to_go import AskedEpisode, asking_episode, asking_spaces, return_scale
from grouprl.tasks.options import OptionTask
from grouprl.tasks.registry import load_task, register_task
from grouprl.tasks.task import Task, check_request, without_folder


@register_task("trajectories", argument="path")
class Trajectories(OptionTask):
    """Learn from stored trajectories of arrays: trajectories:FILE.jsonl, .parquet or .npz, or trajectories:minari:ID.

    `trajectories:pkg.module:function` has a function return them. Nothing is acted in training: a prompt is a stored
    trajectory, or several that have the same value in the column `group`. The environment that they come from gives the
    spaces, and evaluations are played there.
    """

    path: str = Field(
        description="a file of trajectories, a function that returns them, or minari: and the name of a dataset here"
    )
    of: str | JsonObject = Field(
        description="the task that they come from: control:CartPole-v1, or a mapping with its options"
    )
    best: float = Field(1.0, gt=0, le=1, description="the share of trajectories that is kept, those of highest return")
    target: float | None = Field(
        None,
        allow_inf_nan=False,
        description="the return that evaluations ask for; observations show what is to go, and the action before",
    )

    _inner: Task = PrivateAttr()
    _groups: list[list[StoredEpisode]] = PrivateAttr()
    _count: int = PrivateAttr()
    _longest: int = PrivateAttr()
    _content: str = PrivateAttr()
    _spaces: Spaces = PrivateAttr()
    _scale: float = PrivateAttr(1.0)

    max_new_tokens: ClassVar[int] = 1
    """1, because a turn is one action."""

    def model_post_init(self, context: object) -> None:
        """Read the trajectories and check them against the spaces of the environment.

        Raises:
            InputError: the task `of` has no arrays, there are no trajectories, one does not fit the spaces, or returns
                to go cannot be shown in them.
        """
        self._inner = load_task(self.of)
        spaces = self._inner.spaces
        if spaces is None:
            raise InputError(
                f"the task '{self._inner.name}' is made of text",
                "trajectories are of arrays",
                "Set task.of to control:ID",
            )
        found = [(raw.get("group"), checked(raw, spaces, where)) for where, raw in read(self.path)]
        if not found:
            raise InputError(f"'{self.path}' holds no trajectories", "there must be something to learn from")
        kept = best_of(found, self.best)
        self._groups = grouped(kept)
        self._count, self._longest = len(self._groups), max(len(episode) for _, episode in kept)
        self._content = content_of([each for group in self._groups for each in group])
        self._spaces = spaces
        if self.target is not None:
            self._spaces = asking_spaces(spaces)
            self._scale = return_scale([each for group in self._groups for each in group])
            self._groups = [[asking_episode(each, spaces, self._scale) for each in group] for group in self._groups]

    def __getstate__(self) -> dict[object, object]:
        """Return the state without the trajectories: workers that play evaluations need the environment alone."""
        state = super().__getstate__()
        private = {**(state["__pydantic_private__"] or {}), "_groups": []}
        return {**state, "__pydantic_private__": private}

    @property
    def name(self) -> str:
        """The path after "trajectories:"."""
        path = self.path if self.path.startswith(MINARI) else without_folder(self.path)
        return f"trajectories:{path}"

    @property
    def reward(self) -> Reward:
        """The reward function of the task whose trajectories are stored."""
        return self._inner.reward

    @property
    def spaces(self) -> Spaces | None:
        """The spaces of the environment; with `target`, those that show the return to go."""
        return self._spaces

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents of the environment."""
        return self._inner.agents

    @property
    def max_turns(self) -> int:
        """The limit of the environment, or the length of the longest trajectory."""
        return max(self._inner.max_turns, self._longest, 1)

    @property
    def needs_clock(self) -> bool:
        """True if the environment may never return."""
        return self._inner.needs_clock

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence on the returns of the data."""
        returns = [float(each.rewards.sum()) for group in self._groups for each in group]
        mean = sum(returns) / len(returns)
        gain = sum(max(x - mean, 0.0) ** 2 for x in returns) / len(returns)
        known = sum(each.behavior_logp is not None for group in self._groups for each in group)
        return (
            f"{len(returns)} trajectories of {sum(len(e) for g in self._groups for e in g)} actions, return "
            f"{min(returns):.4g} to {max(returns):.4g}, mean {mean:.4g}; log-probs of the behaviour are known for "
            f"{known}. Positive-sided variance of the returns {gain:.4g}: what a choice of trajectories can gain",
        )

    def example(self, split: Split, index: int) -> Example:
        """Return a stored group for training, and a beginning in the environment for evaluations.

        Raises:
            InputError: an unknown split, or an index beyond the size.
        """
        if split == "eval":
            return self._inner.example("eval", index)
        check_request(self.name, split, index, self.size(split))
        return Example(f"{self.name}/{index}", f"trajectory {index}", {"group": index})

    def size(self, split: Split) -> int | None:
        """Return how many groups are stored, and how many beginnings an evaluation has. Raises InputError."""
        return self._inner.size("eval") if split == "eval" else self._count

    def stored_rows(self, example: Example) -> Sequence[StoredEpisode]:
        """Return the trajectories of a group."""
        return self._groups[example.columns["group"]]

    def environment(self) -> Any:
        """Return a fresh episode of the environment; with `target`, one that is asked for this return."""
        inner, spaces = self._inner.environment(), self._inner.spaces
        return inner if self.target is None or spaces is None else AskedEpisode(inner, spaces, self.target, self._scale)

    def options(self) -> JsonObject:
        """Return every option with its value, and hashes of the trajectories and the environment."""
        return {**super().options(), "content": self._content, "of_fingerprint": self._inner.fingerprint()}


Found = tuple[object, StoredEpisode]
"""The group of a trajectory (None: its own) and the trajectory."""


def best_of(found: Sequence[Found], share: float) -> list[Found]:
    """Return the share of trajectories with the highest returns, at least one, in their order."""
    count = max(1, round(share * len(found)))
    order = sorted(range(len(found)), key=lambda i: -float(found[i][1].rewards.sum()))
    return [found[i] for i in sorted(order[:count])]


def grouped(found: Sequence[Found]) -> list[list[StoredEpisode]]:
    """Return trajectories by group, in the order in which groups begin."""
    groups: dict[object, list[StoredEpisode]] = {}
    for number, (group, episode) in enumerate(found):
        groups.setdefault(("own", number) if group is None else ("group", str(group)), []).append(episode)
    return list(groups.values())


def content_of(episodes: Sequence[StoredEpisode]) -> str:
    """Return a hash of all numbers of some trajectories."""
    found = hashlib.sha256()
    for each in episodes:
        for array in each.arrays():
            found.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
        # A verdict that is not known is trained on as a wrong one is.
        found.update(repr((each.terminated, sorted(each.components.items()), bool(each.correct))).encode())
    return found.hexdigest()[:16]
