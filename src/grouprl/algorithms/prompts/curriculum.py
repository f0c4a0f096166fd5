"""Curricula that need nothing but the ledger: questions in an order, questions left out; and the base of all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from grouprl.algorithms.data_part import Curriculum, Desk
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import InputError, suggest
from grouprl.rollout.requests import Ask

Share = Annotated[float, Field(ge=0, le=1)]


class Chooser(Curriculum):
    """Base of curricula that choose among N questions by number. `pick` is called once per round of a step."""

    def choose(self, count: int, desk: Desk) -> list[Ask]:
        """Return `count` questions, or fewer where the part has no more."""
        now = desk.store(self).get("now", {})
        if now.get("step") != desk.step:
            now = {"step": desk.step, "rounds": 0, "chosen": []}
        rng = desk.rng(self).spawn(now["rounds"] + 1)[-1]
        picked = self.pick(count, rng, now["chosen"], desk)
        desk.store(self)["now"] = {**now, "rounds": now["rounds"] + 1, "chosen": [*now["chosen"], *picked]}
        return [desk.ask(index) for index in picked]

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], desk: Desk) -> list[int]:
        """Return the numbers of `count` questions; `chosen` were asked earlier in this step (refill)."""
        raise NotImplementedError

    def refuse(self, run: RunFacts) -> list[str]:
        """Questions that never end cannot be come back to."""
        endless = f"{self.name} comes back to questions, but they never end. Set data.questions, e.g. 512"
        return [endless] if run.questions is None else []


def unknown_column(name: str, by: str, run: RunFacts) -> list[str]:
    """Refuse a run whose questions have no column `by`."""
    if not run.kinds or by in run.kinds:
        return []
    return [f"{name}.by is '{by}', but the questions have no such column. {suggest(by, run.kinds)}"]


def all_alike(name: str, by: str, run: RunFacts) -> list[str]:
    """Say that telling questions apart by `by` has no effect."""
    alike = run.kinds.get(by, 2) == 1
    return [f"{name} has no effect: all questions that were looked at have the same {by}"] if alike else []


def pool_size(desk: Desk) -> int:
    """How many questions there are to choose from. Raises InputError when they never end."""
    if desk.questions is None:
        raise InputError("the training questions never end", "a curriculum comes back to them", "Set data.questions")
    return desk.questions


def best(key_n: np.ndarray, count: int, chosen: Sequence[int]) -> list[int]:
    """Numbers of the `count` largest keys [N], those of `chosen` last; all over again where N is too small."""
    later_n = np.zeros(len(key_n), dtype=bool)
    later_n[list(chosen)] = True
    order = np.lexsort((-key_n, later_n))
    return [int(i) for i in np.resize(order, count)]


def at_random(among: np.ndarray, count: int, rng: np.random.Generator, chosen: Sequence[int]) -> list[int]:
    """`count` of the numbers `among`, uniformly, none twice unless they are too few; those of `chosen` last."""
    order = rng.permutation(among)
    order = np.concatenate([order[~np.isin(order, chosen)], order[np.isin(order, chosen)]])
    return [int(i) for i in np.resize(order, count)]


def labels(by: str, part_name: str, desk: Desk) -> list[Any]:
    """Return for each question its level (`by` = "level") or its value of a column. Raises InputError without one."""
    questions = [desk.task.question("train", index) for index in range(pool_size(desk))]
    if by == "level":
        return [question.level for question in questions]
    for question in questions:
        if by not in question.columns:
            raise InputError(
                f"{part_name}.by = '{by}', but question {question.id} has no such column",
                "by is 'level' or a column that every question has",
                suggest(by, ["level", *question.columns]),
            )
    return [question.columns[by] for question in questions]


@part("curriculum")
class HistoryResampling(Chooser):
    """Leave questions out once every answer to them was right (SRPO, arXiv:2504.14286).

    Questions are dealt out in shuffled epochs. At the end of each, those whose last visit was all right are dropped;
    mixed and all-wrong ones stay. Every `readmit_every` epochs all come back (0: never). With none left nothing is
    asked any more.
    """

    ahead: ClassVar[bool] = True

    readmit_every: Annotated[int, Field(ge=0)] = 0

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], desk: Desk) -> list[int]:
        """Deal out the next questions of the epoch."""
        store = desk.store(self)
        picked: list[int] = []
        while len(picked) < count:
            if not store.get("left"):
                self._begin_epoch(store, rng, desk)
            if not store["left"]:
                break
            missing = count - len(picked)
            picked, store["left"] = picked + store["left"][:missing], store["left"][missing:]
        desk.note("questions_open", len(store["open"]) / pool_size(desk), "most")
        return picked

    def _begin_epoch(self, store: dict[str, Any], rng: np.random.Generator, desk: Desk) -> None:
        epoch = store.get("epoch", -1) + 1
        back = epoch == 0 or (self.readmit_every > 0 and epoch % self.readmit_every == 0)
        candidates = list(range(pool_size(desk))) if back else store["open"]
        store["open"] = candidates if back else [i for i in candidates if not _solved(i, desk)]
        store["left"], store["epoch"] = rng.permutation(store["open"]).astype(int).tolist(), epoch

    def words(self) -> str:
        """Describe."""
        back = f"; every {self.readmit_every} epochs all come back" if self.readmit_every else ""
        return f"questions in epochs; those last answered all right are left out of the next{back}"


def _solved(index: int, desk: Desk) -> bool:
    last = desk.ledger.last(index)
    return last is not None and last.right == last.answers


@part("curriculum")
class EasyToHard(Chooser):
    """Unlock levels of difficulty one after the other; questions come uniformly from all that are unlocked.

    `by` is "level" or a column of the questions; the easiest have the smallest value. Without `mastery` the levels are
    unlocked evenly over the first `until` of the run's steps; with it the next one as soon as the last answers to the
    hardest unlocked level are right in that share (SARI, arXiv:2504.15900, orders easy to hard).
    """

    ahead: ClassVar[bool] = True

    by: str = "level"
    until: Annotated[float, Field(gt=0, le=1)] = 1.0
    mastery: Annotated[float, Field(gt=0, le=1)] | None = None

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], desk: Desk) -> list[int]:
        """Draw from the unlocked levels."""
        rank_n = self._ranks(desk)
        unlocked = self._unlocked(int(rank_n.max()) + 1, desk)
        desk.note("levels_open", unlocked, "most")
        return at_random(np.flatnonzero(rank_n < unlocked), count, rng, chosen)

    def observe(self, collected: Any, judged: Any, desk: Desk) -> None:
        """Unlock the next level when the hardest is mastered."""
        if self.mastery is None:
            return
        rank_n, store = self._ranks(desk), desk.store(self)
        hardest = np.flatnonzero(rank_n == store.get("unlocked", 1) - 1)
        rates = [desk.ledger.rate(int(i)) for i in hardest if int(i) in desk.ledger]
        if rates and np.mean(rates) >= self.mastery:
            store["unlocked"] = min(store.get("unlocked", 1) + 1, int(rank_n.max()) + 1)

    def _ranks(self, desk: Desk) -> np.ndarray:
        """[N] rank of each question's level, from 0."""
        store = desk.store(self)
        if "rank" not in store:
            found = labels(self.by, self.name, desk)
            rank = {value: number for number, value in enumerate(sorted(set(found)))}
            if len(rank) < 2:
                raise InputError(
                    f"{self.name}.by = '{self.by}', but all {len(found)} questions have the value {found[0]!r}",
                    "an order needs at least two levels of difficulty",
                    "Choose a column, a task whose questions have levels, or more data.questions",
                )
            store["rank"] = [rank[value] for value in found]
        return np.array(store["rank"])

    def _unlocked(self, levels: int, desk: Desk) -> int:
        if self.mastery is not None:
            return int(desk.store(self).get("unlocked", 1))
        return min(levels, 1 + int(levels * desk.step / (self.until * desk.steps)))

    def words(self) -> str:
        """Describe."""
        when = f"evenly over the first {self.until:.0%} of the run"
        if self.mastery is not None:
            when = f"as soon as {self.mastery:.0%} of the last answers to the hardest one are right"
        return f"questions from easy to hard by '{self.by}': levels are unlocked {when}"

    def idle(self, run: RunFacts) -> list[str]:
        """With a mastery threshold the clock does not matter."""
        both = self.mastery is not None and self.until < 1
        said = ["easy_to_hard.until has no effect: mastery decides when levels are unlocked"] * both
        return [*said, *all_alike(self.name, self.by, run)]

    def refuse(self, run: RunFacts) -> list[str]:
        """Levels come from somewhere."""
        return [*super().refuse(run), *unknown_column(self.name, self.by, run)]


@part("curriculum")
class HardStage(Chooser):
    """Two stages: all questions, then only the hard ones (reward-based curriculum sampling, arXiv:2504.13592).

    From the share `after` of the run's steps on, questions come from the share `keep` with the lowest mean reward over
    all their visits; questions never asked count as hardest.
    """

    ahead: ClassVar[bool] = True

    after: Share = 0.5
    keep: Annotated[float, Field(gt=0, le=1)] = 0.6

    def choose(self, count: int, desk: Desk) -> list[Ask]:
        """Return the next questions of the stream, and from the second stage on hard ones."""
        return desk.take(count) if desk.step < self.after * desk.steps else super().choose(count, desk)

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], desk: Desk) -> list[int]:
        """Draw from the hard questions, which are fixed when the second stage begins."""
        store = desk.store(self)
        if "hard" not in store:
            found = [desk.ledger.moments(index) for index in range(pool_size(desk))]
            mean_n = np.array([m.mean if m.visits else -np.inf for m in found])
            store["hard"] = np.argsort(mean_n, kind="stable")[: max(1, round(self.keep * len(found)))].tolist()
        return at_random(np.array(store["hard"]), count, rng, chosen)

    def words(self) -> str:
        """Describe."""
        return f"all questions for {self.after:.0%} of the run, then the {self.keep:.0%} with the lowest mean reward"

    def idle(self, run: RunFacts) -> list[str]:
        """Keeping all questions is no second stage."""
        never = self.keep == 1 or self.after == 1
        return ["hard_stage has no effect: keep or after is 1"] if never else []
