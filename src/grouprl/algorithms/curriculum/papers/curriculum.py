"""Curricula that need only the prompt history, by ordering prompts or leaving some out; and the base
of all curricula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.data_part import Curriculum, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import State
from grouprl.core.numbers import Share
from grouprl.records.requests import RolloutRequest


class Chooser(Curriculum):
    """Base of curricula that choose among N prompts by number. `pick` is called once per round of a step."""

    def choose(self, count: int, context: RunContext) -> list[RolloutRequest]:
        """Return `count` prompts, or fewer if the part has no more."""
        now = context.state_of(self).get("now", {})
        if now.get("step") != context.step:
            now = {"step": context.step, "rounds": 0, "chosen": []}
        rng = context.rng(self).spawn(now["rounds"] + 1)[-1]
        picked = self.pick(count, rng, now["chosen"], context)
        context.state_of(self)["now"] = {**now, "rounds": now["rounds"] + 1, "chosen": [*now["chosen"], *picked]}
        return [context.request(index) for index in picked]

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Return the numbers of `count` prompts; `chosen` were sampled earlier in this step (refill)."""
        raise NotImplementedError

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task whose prompts never end: the part samples prompts more than once."""
        endless = (
            f"{self.name} samples prompts more than once, but this task's prompts never end. Set data.prompts, e.g. 512"
        )
        return [endless] if run.examples is None else []


def unknown_column(name: str, by: str, run: RunFacts) -> list[str]:
    """Refuse a run whose prompts have no column `by`."""
    if not run.kinds or by in run.kinds:
        return []
    return [f"{name}.by is '{by}', but the prompts have no such column. {suggest(by, run.kinds)}"]


def all_alike(name: str, by: str, run: RunFacts) -> list[str]:
    """Say that telling prompts apart by `by` has no effect."""
    alike = run.kinds.get(by, 2) == 1
    return [f"{name} has no effect: all prompts that were looked at have the same {by}"] if alike else []


def pool_size(context: RunContext) -> int:
    """Return how many prompts there are to choose from. Raises InputError if they never end."""
    if context.examples is None:
        raise InputError(
            "the training prompts never end", "a curriculum samples prompts more than once", "Set data.prompts"
        )
    return context.examples


def best(key_n: np.ndarray, count: int, chosen: Sequence[int]) -> list[int]:
    """Return the numbers of the `count` largest keys [N], those of `chosen` last; numbers repeat if N is too small."""
    later_n = np.zeros(len(key_n), dtype=bool)
    later_n[list(chosen)] = True
    order = np.lexsort((-key_n, later_n))
    return [int(i) for i in np.resize(order, count)]


def at_random(among: np.ndarray, count: int, rng: np.random.Generator, chosen: Sequence[int]) -> list[int]:
    """Return `count` of the numbers `among` at random, those of `chosen` last; numbers repeat only if there are too
    few.
    """
    order = rng.permutation(among)
    order = np.concatenate([order[~np.isin(order, chosen)], order[np.isin(order, chosen)]])
    return [int(i) for i in np.resize(order, count)]


def labels(by: str, part_name: str, context: RunContext) -> list[Any]:
    """Return for each prompt its level (`by` = "level") or its value of a column. Raises InputError without one."""
    examples = [context.task.example("train", index) for index in range(pool_size(context))]
    if by == "level":
        return [example.level for example in examples]
    for example in examples:
        if by not in example.columns:
            raise InputError(
                f"{part_name}.by = '{by}', but prompt {example.id} has no such column",
                "by is 'level' or a column that every prompt has",
                suggest(by, ["level", *example.columns]),
            )
    return [example.columns[by] for example in examples]


@part("curriculum")
class HistoryResampling(Chooser):
    """Leave prompts out once every completion to them was right (SRPO, arXiv:2504.14286).

    Prompts are dealt out in shuffled epochs. At the end of each, those whose last visit was all right are dropped;
    mixed and all-wrong ones stay. Every `readmit_every` epochs all come back (0: never). Once no prompt is left,
    nothing more is sampled.
    """

    async_safe: ClassVar[bool] = True

    readmit_every: Annotated[int, Field(ge=0)] = 0

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Deal out the next prompts of the epoch."""
        store = context.state_of(self)
        picked: list[int] = []
        while len(picked) < count:
            if not store.get("left"):
                self._begin_epoch(store, rng, context)
            if not store["left"]:
                break
            missing = count - len(picked)
            picked, store["left"] = picked + store["left"][:missing], store["left"][missing:]
        context.note("prompts_open", len(store["open"]) / pool_size(context), "most")
        return picked

    def _begin_epoch(self, store: State, rng: np.random.Generator, context: RunContext) -> None:
        epoch = store.get("epoch", -1) + 1
        back = epoch == 0 or (self.readmit_every > 0 and epoch % self.readmit_every == 0)
        candidates = list(range(pool_size(context))) if back else store["open"]
        store["open"] = candidates if back else [i for i in candidates if not _solved(i, context)]
        store["left"], store["epoch"] = rng.permutation(store["open"]).astype(int).tolist(), epoch

    @override
    def words(self) -> str:
        back = f"; every {self.readmit_every} epochs all come back" if self.readmit_every else ""
        return f"prompts in epochs; those whose completions were all right the last time are left out of the next{back}"


def _solved(index: int, context: RunContext) -> bool:
    last = context.prompt_history.last(index)
    return last is not None and last.right == last.completions


@part("curriculum")
class EasyToHard(Chooser):
    """Unlock levels of difficulty one after the other; prompts come uniformly from all that are unlocked.

    `by` is "level" or a column of the prompts; the easiest have the smallest value. Without `mastery` the levels are
    unlocked evenly over the first `until` of the run's steps; with it the next one as soon as the last completions to
    the hardest unlocked level are right in that share (SARI, arXiv:2504.15900, orders easy to hard).
    """

    async_safe: ClassVar[bool] = True

    by: str = "level"
    until: Annotated[float, Field(gt=0, le=1)] = 1.0
    mastery: Annotated[float, Field(gt=0, le=1)] | None = None

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Sample from the unlocked levels."""
        rank_n = self._ranks(context)
        unlocked = self._unlocked(int(rank_n.max()) + 1, context)
        context.note("levels_open", unlocked, "most")
        return at_random(np.flatnonzero(rank_n < unlocked), count, rng, chosen)

    def observe(self, samples: object, prepared: object, context: RunContext) -> None:
        """Unlock the next level when the hardest is mastered."""
        if self.mastery is None:
            return
        rank_n, store = self._ranks(context), context.state_of(self)
        hardest = np.flatnonzero(rank_n == store.get("unlocked", 1) - 1)
        rates = [context.prompt_history.rate(int(i)) for i in hardest if int(i) in context.prompt_history]
        if rates and np.mean(rates) >= self.mastery:
            store["unlocked"] = min(store.get("unlocked", 1) + 1, int(rank_n.max()) + 1)

    def _ranks(self, context: RunContext) -> np.ndarray:
        """Return [N] rank of each prompt's level, from 0."""
        store = context.state_of(self)
        if "rank" not in store:
            found = labels(self.by, self.name, context)
            rank = {value: number for number, value in enumerate(sorted(set(found)))}
            if len(rank) < 2:
                raise InputError(
                    f"{self.name}.by = '{self.by}', but all {len(found)} prompts have the value {found[0]!r}",
                    "an order needs at least two levels of difficulty",
                    "Choose a column, a task whose prompts have levels, or more data.prompts",
                )
            store["rank"] = [rank[value] for value in found]
        return np.array(store["rank"])

    def _unlocked(self, levels: int, context: RunContext) -> int:
        if self.mastery is not None:
            return int(context.state_of(self).get("unlocked", 1))
        return min(levels, 1 + int(levels * context.step / (self.until * context.steps)))

    @override
    def words(self) -> str:
        when = f"evenly over the first {self.until:.0%} of the run"
        if self.mastery is not None:
            when = f"as soon as {self.mastery:.0%} of the last completions to the hardest one are right"
        return f"prompts from easy to hard by '{self.by}': levels are unlocked {when}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that `until` has no effect if `mastery` is set."""
        both = self.mastery is not None and self.until < 1
        said = ["easy_to_hard.until has no effect: mastery decides when levels are unlocked"] * both
        return [*said, *all_alike(self.name, self.by, run)]

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse prompts without the column that gives their level."""
        return [*super().refuse(run), *unknown_column(self.name, self.by, run)]


@part("curriculum")
class HardStage(Chooser):
    """Two stages: all prompts, then only the hard ones (reward-based curriculum sampling, arXiv:2504.13592).

    From the share `after` of the run's steps on, prompts come from the share `keep` with the lowest mean reward over
    all their visits; prompts never sampled count as hardest.
    """

    async_safe: ClassVar[bool] = True

    after: Share = 0.5
    keep: Annotated[float, Field(gt=0, le=1)] = 0.6
    says = "all prompts for {after:.0%} of the run, then the {keep:.0%} with the lowest mean reward"

    def choose(self, count: int, context: RunContext) -> list[RolloutRequest]:
        """Return the next prompts of the stream, and from the second stage on hard ones."""
        return context.take(count) if context.step < self.after * context.steps else super().choose(count, context)

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Sample from the hard prompts, which are fixed when the second stage begins."""
        store = context.state_of(self)
        if "hard" not in store:
            found = [context.prompt_history.moments(index) for index in range(pool_size(context))]
            mean_n = np.array([m.mean if m.visits else -np.inf for m in found])
            store["hard"] = np.argsort(mean_n, kind="stable")[: max(1, round(self.keep * len(found)))].tolist()
        return at_random(np.array(store["hard"]), count, rng, chosen)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if `keep` or `after` is 1."""
        never = self.keep == 1 or self.after == 1
        return ["hard_stage has no effect: keep or after is 1"] if never else []
