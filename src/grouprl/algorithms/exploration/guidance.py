"""Help for questions that no answer got right: a part of the solution, a ladder of hints, solved examples.

A hint stands in the prompt (or at the forced beginning of the answer), so it is never trained on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from grouprl.algorithms.data_part import Desk, Exploration
from grouprl.algorithms.exploration.resampling import again, dead_groups, drawn_rows, groups, splice
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.core.errors import InputError
from grouprl.rollout.requests import Ask, Prompt
from grouprl.rollout.samples import Collected, join, subset
from grouprl.tasks.task import Question, Task

Share = Annotated[float, Field(ge=0, le=1)]
Grams = frozenset[tuple[int, ...]]
Solved = tuple[int, tuple[str, str], Grams]
"""Number of a question, its text with a right answer, its tokens and pairs of tokens."""
GUIDED = SOURCES["guided"]


class OnDeadGroup(Exploration):
    """Base: what is done for questions whose drawn answers are all wrong, from a share `start` of the run on."""

    start: float

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Return the rows with help for the dead groups; the others are left as they are."""
        if desk.step < self.start * desk.steps:
            return collected
        return self.help(collected, dead_groups(collected), desk)

    def help(self, collected: Collected, dead: Sequence[np.ndarray], desk: Desk) -> Collected:
        """Return the rows with help for the groups `dead` (rows [N] of each)."""
        raise NotImplementedError

    def idle(self, run: RunFacts) -> list[str]:
        """Help that begins when the run ends is none."""
        return [f"{self.name} has no effect: it starts when the run ends"] if self.start >= 1 else []


def under_own_prompt(guided: Collected, desk: Desk) -> Collected:
    """Return guided rows shown under their questions' own prompts; their log-probs become foreign."""
    return desk.under(guided, [question.prompt for question in guided.questions])


@part("explore")
class GroupHints(OnDeadGroup):
    """GHPO: a dead group is drawn again under longer and longer hints until an answer is right (arXiv:2507.10628).

    The hint is the first part of the right solution by characters, `levels` of it in turn; None takes the task's own
    hints. `place="prompt"` shows it in the prompt, `"answer"` makes every answer begin with it (not trained on).
    `train_on="original"` trains the answers under the prompt without the hint, without correction for that.
    The last attempt stays in the group's place, right or wrong.
    """

    levels: tuple[Annotated[float, Field(gt=0, lt=1)], ...] | None = (0.25, 0.5, 0.75)
    place: Literal["prompt", "answer"] = "prompt"
    train_on: Literal["hinted", "original"] = "hinted"
    start: Share = 0.0

    def __post_init__(self) -> None:
        """Refuse a ladder that does not rise, and to forget a hint that stands in the answer."""
        if self.levels is not None and list(self.levels) != sorted(set(self.levels)):
            raise InputError(f"group_hints: levels {list(self.levels)}", "each hint says more than the one before")
        if self.place == "answer" and self.train_on == "original":
            raise InputError(
                "group_hints: place 'answer' with train_on 'original'",
                "an answer that begins with the hint makes no sense without it",
                "Set train_on: hinted",
            )

    def help(self, collected: Collected, dead: Sequence[np.ndarray], desk: Desk) -> Collected:
        """Draw dead groups again, level by level, as long as they are dead."""
        open_groups = {int(collected.group_b[rows[0]]): rows for rows in dead}
        ladders = {g: self.ladder(desk.task, collected.questions[rows[0]]) for g, rows in open_groups.items()}
        latest: dict[int, Collected] = {}
        for level in range(max(map(len, ladders.values()), default=0)):
            asks = [
                self._ask(desk, collected, rows, ladders[group][level], level)
                for group, rows in open_groups.items()
                if level < len(ladders[group])
            ]
            if not asks:
                break
            drawn = desk.draw(asks)
            for rows in groups(drawn, drawn.kept_b):
                group = int(drawn.group_b[rows[0]])
                latest[group] = subset(drawn, rows)
                if drawn.scores.correct_b[rows].any():
                    del open_groups[group]
            desk.note("guidance_rounds", 1)
        return self._placed(collected, latest, dead, desk)

    def ladder(self, task: Task, question: Question) -> tuple[str, ...]:
        """Return the hints for a question, from the shortest; () if there are none."""
        if self.levels is None:
            return task.hints(question)
        right = task.solution(question) or ""
        return tuple(dict.fromkeys(right[: math.ceil(level * len(right))] for level in self.levels if right))

    def _ask(self, desk: Desk, collected: Collected, rows: np.ndarray, hint: str, level: int) -> Ask:
        shown: dict[str, Any] = {}
        if self.place == "prompt":
            shown["prompt"] = desk.task.with_hint(collected.questions[rows[0]], hint)
        else:
            shown["lead"] = desk.encode(hint)
            shown["max_new_tokens"] = max(1, desk.max_new_tokens - len(shown["lead"]))
        return again(collected, rows[0], level * len(rows), answers=len(rows), source=GUIDED, **shown)

    def _placed(
        self, collected: Collected, latest: dict[int, Collected], dead: Sequence[np.ndarray], desk: Desk
    ) -> Collected:
        desk.note("groups_guided", len(latest))
        if not latest:
            return collected
        gone_b = drawn_rows(collected) & np.isin(collected.group_b, list(latest))
        found = join(list(latest.values()))
        return splice(collected, gone_b, [under_own_prompt(found, desk) if self.train_on == "original" else found])

    def further(self, run: RunFacts) -> str:
        """Answers besides those of the run."""
        levels = "as often as the task has hints" if self.levels is None else f"up to {len(self.levels)} times"
        return f"{run.group_size} answers, {levels}, for each question that no answer got right"

    def shown(self, question: Question, task: Task, run: RunFacts) -> list[Prompt]:
        """The question with each hint, where hints stand in the prompt."""
        if self.place == "answer":
            return []
        return [task.with_hint(question, hint) for hint in self.ladder(task, question)]

    def words(self) -> str:
        """Describe."""
        what = (
            "the task's next hint"
            if self.levels is None
            else f"{', '.join(f'{x:.0%}' for x in self.levels)} of the solution"
        )
        where = "in the prompt" if self.place == "prompt" else "as the beginning of every answer"
        trained = "" if self.train_on == "hinted" else "; trained under the prompt without the hint"
        return f"a group without a right answer is drawn again with {what} {where}, until one is right{trained}"

    def refuse(self, run: RunFacts) -> list[str]:
        """Hints are made of solutions."""
        return needs_solutions(self.name, run)


@part("explore")
class RowHint(OnDeadGroup):
    """Scaf-GRPO: one answer with the least hint that helps takes the place of a dead group's first (arXiv:2510.19807).

    One more answer is drawn per hint of the task; the right one with the least hint replaces the first row. It is
    trained under the hinted prompt, under the question's own prompt (`original`, no correction), or both ways
    (`both` replaces two rows). Where no hint helps the group stays as it is.
    """

    train_on: Literal["hinted", "original", "both"] = "hinted"
    start: Share = 0.0

    def help(self, collected: Collected, dead: Sequence[np.ndarray], desk: Desk) -> Collected:
        """Draw one answer per level and keep the first right one of each group."""
        asks = [ask for rows in dead for ask in self._ladder(collected, int(rows[0]), desk)]
        found = desk.draw(asks) if asks else None
        helped = [] if found is None else list(groups(found, found.kept_b & found.scores.correct_b))
        desk.note("groups_guided", len(helped))
        if found is None or not helped:
            return collected
        least = subset(found, np.array([rows[0] for rows in helped]))
        added = [] if self.train_on == "original" else [least]
        if self.train_on != "hinted":
            added.append(renumbered(under_own_prompt(least, desk), 1 if added else 0))
        return splice(collected, self._replaced(collected, dead, least, len(added)), added)

    def _ladder(self, collected: Collected, row: int, desk: Desk) -> list[Ask]:
        question = collected.questions[row]
        return [
            again(collected, row, 2 * i, source=GUIDED, prompt=desk.task.with_hint(question, hint))
            for i, hint in enumerate(desk.task.hints(question))
        ]

    def _replaced(self, collected: Collected, dead: Sequence[np.ndarray], least: Collected, count: int) -> np.ndarray:
        gone_b = np.zeros(len(collected), dtype=bool)
        for rows in dead:
            if collected.group_b[rows[0]] in least.group_b:
                gone_b[rows[:count]] = True
        return gone_b

    def further(self, run: RunFacts) -> str:
        """Answers besides those of the run."""
        return "one answer per hint of the task for each question that no answer got right"

    def shown(self, question: Question, task: Task, run: RunFacts) -> list[Prompt]:
        """The question with each hint."""
        return [task.with_hint(question, hint) for hint in task.hints(question)]

    def words(self) -> str:
        """Describe."""
        how = {
            "hinted": "trained under the prompt with the hint",
            "original": "trained under the prompt without the hint",
            "both": "trained with the hint and without it, in the place of two",
        }[self.train_on]
        return f"in a group without a right answer one that the least hint makes right takes the first place, {how}"

    def refuse(self, run: RunFacts) -> list[str]:
        """Hints are made of solutions."""
        return needs_solutions(self.name, run)


@part("explore")
class SolvedExemplars(OnDeadGroup):
    """XRPO: a dead group is drawn again after `count` similar questions that were solved before (arXiv:2510.06672).

    The first right answer of each visit goes into a store of at most `keep` questions, the latest of each. Similar
    are other questions that share most of their tokens and pairs of tokens. An answer is cut to `longest` tokens.
    """

    count: Annotated[int, Field(ge=1)] = 2
    keep: Annotated[int, Field(ge=1)] = 512
    longest: Annotated[int, Field(ge=1)] = 512
    start: Share = 0.0

    def help(self, collected: Collected, dead: Sequence[np.ndarray], desk: Desk) -> Collected:
        """Remember what is solved now; draw dead groups again behind solved questions."""
        self._remember(collected, desk)
        store = desk.store(self)["solved"] if dead else {}
        solved = [(int(key), (prompt, text), grams(desk, prompt)) for key, (prompt, text) in store.items()]
        asks = [ask for rows in dead for ask in self._asks(collected, rows, desk, solved)]
        desk.note("groups_guided", len(asks))
        if not asks:
            return collected
        seeded = desk.draw(asks)
        seeded = subset(seeded, seeded.kept_b)
        gone_b = drawn_rows(collected) & np.isin(collected.group_b, seeded.group_b)
        return splice(collected, gone_b, [seeded])

    def _asks(self, collected: Collected, rows: np.ndarray, desk: Desk, solved: Sequence[Solved]) -> list[Ask]:
        """Return one ask behind the nearest solved questions; none where there are too few besides the question."""
        question, index = collected.questions[rows[0]], int(collected.index_b[rows[0]])
        others = [known for known in solved if known[0] != index]
        if len(others) < self.count:
            return []
        own = grams(desk, question.prompt)
        nearest = sorted(others, key=lambda known: -overlap(own, known[2]))[: self.count]
        prompt = desk.task.with_examples(question, [example for _, example, _ in nearest])
        return [again(collected, rows[0], answers=len(rows), source=GUIDED, prompt=prompt)]

    def _remember(self, collected: Collected, desk: Desk) -> None:
        """Store the first right answer of each question, the latest questions last."""
        store = desk.store(self).setdefault("solved", {})
        for rows in groups(collected, drawn_rows(collected) & collected.scores.correct_b):
            row, key = rows[0], str(int(collected.index_b[rows[0]]))
            (text,) = desk.decode([collected.rollout.response_ids[row][: self.longest]])
            store.pop(key, None)
            store[key] = [plain(collected.questions[row].prompt), text]
        for key in list(store)[: max(0, len(store) - self.keep)]:
            del store[key]

    def further(self, run: RunFacts) -> str:
        """Answers besides those of the run."""
        return f"{run.group_size} answers for each question that no answer got right"

    def shown(self, question: Question, task: Task, run: RunFacts) -> list[Prompt]:
        """The question behind examples like itself."""
        right = task.solution(question)
        return [task.with_examples(question, [(plain(question.prompt), right)] * self.count)] if right else []

    def words(self) -> str:
        """Describe."""
        return (
            f"a group without a right answer is drawn again behind {self.count} similar questions with right answers "
            "from earlier in the run"
        )


def plain(prompt: Prompt) -> str:
    """Return the text of a prompt: that of its last message."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def grams(desk: Desk, prompt: Prompt) -> Grams:
    """Return the tokens of a prompt and the pairs of neighbours among them."""
    ids = desk.encode(plain(prompt))
    return frozenset([(i,) for i in ids] + list(pairwise(ids)))


def overlap(a: Grams, b: Grams) -> float:
    """Share of what two sets have in common (Jaccard); 0 for two empty ones."""
    return len(a & b) / max(len(a | b), 1)


def renumbered(collected: Collected, by: int) -> Collected:
    """Return the rows with other numbers within their groups, `by` higher."""
    return replace(collected, answer_b=collected.answer_b + by)


def needs_solutions(name: str, run: RunFacts) -> list[str]:
    """Return why a part that needs right solutions cannot work without them; empty when the task has some."""
    if run.demonstrations:
        return []
    return [f"{name} needs right solutions, and the task has none. Use a task with solutions, or leave {name} out"]
