"""Help for prompts that no completion got right: a part of the solution, a ladder of hints, solved examples.

A hint stands in the prompt (or at the forced beginning of the completion), so it is never trained on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.exploration.resampling import again, dead_groups, groups, sampled_rows, splice
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.core.errors import InputError
from grouprl.core.numbers import Share
from grouprl.records.examples import Example, Prompt
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, join, subset

if TYPE_CHECKING:
    from grouprl.tasks.task import Task

Grams = frozenset[tuple[int, ...]]
Solved = tuple[int, tuple[str, str], Grams]
"""Number of a prompt, its text with a correct completion, its tokens and pairs of tokens."""
GUIDED = SOURCES["guided"]


class OnDeadGroup(Augmentation):
    """Base: what is done for prompts whose sampled completions are all wrong, from a share `start` of the run on."""

    start: float

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with help for the zero-variance groups; the others are left as they are."""
        if context.step < self.start * context.steps:
            return samples
        return self.help(samples, dead_groups(samples), context)

    def help(self, samples: ScoredSamples, dead: Sequence[np.ndarray], context: RunContext) -> ScoredSamples:
        """Return the rows with help for the groups `dead` (rows [N] of each)."""
        raise NotImplementedError

    def idle(self, run: RunFacts) -> list[str]:
        """Help that begins when the run ends is none."""
        return [f"{self.name} has no effect: it starts when the run ends"] if self.start >= 1 else []


def under_own_prompt(guided: ScoredSamples, context: RunContext) -> ScoredSamples:
    """Return guided rows shown under their prompts' own prompts; their log-probs become foreign."""
    return context.with_prompts(guided, [example.prompt for example in guided.examples])


@part("augment")
class GroupHints(OnDeadGroup):
    """GHPO: a zero-variance group is sampled again under longer and longer hints until a completion is right
    (arXiv:2507.10628).

    The hint is the first part of the right solution by characters, `levels` of it in turn; None takes the task's own
    hints. `place="prompt"` shows it in the prompt, `"completion"` makes every completion begin with it (not trained
    on). `train_on="original"` trains the completions under the prompt without the hint, without correction for that.
    The last attempt stays in the group's place, right or wrong.
    """

    levels: tuple[Annotated[float, Field(gt=0, lt=1)], ...] | None = (0.25, 0.5, 0.75)
    place: Literal["prompt", "answer"] = "prompt"
    train_on: Literal["hinted", "original"] = "hinted"
    start: Share = 0.0

    def __post_init__(self) -> None:
        """Refuse a ladder that does not rise, and to forget a hint that stands in the completion."""
        if self.levels is not None and list(self.levels) != sorted(set(self.levels)):
            raise InputError(f"group_hints: levels {list(self.levels)}", "each hint says more than the one before")
        if self.place == "answer" and self.train_on == "original":
            raise InputError(
                "group_hints: place 'completion' with train_on 'original'",
                "a completion that begins with the hint makes no sense without it",
                "Set train_on: hinted",
            )

    def help(self, samples: ScoredSamples, dead: Sequence[np.ndarray], context: RunContext) -> ScoredSamples:
        """Sample zero-variance groups again, level by level, as long as they are dead."""
        open_groups = {int(samples.group_b[rows[0]]): rows for rows in dead}
        ladders = {g: self.ladder(context.task, samples.examples[rows[0]]) for g, rows in open_groups.items()}
        latest: dict[int, ScoredSamples] = {}
        for level in range(max(map(len, ladders.values()), default=0)):
            requests = [
                self._request(context, samples, rows, ladders[group][level], level)
                for group, rows in open_groups.items()
                if level < len(ladders[group])
            ]
            if not requests:
                break
            sampled = context.sample(requests)
            for rows in groups(sampled, sampled.valid_b):
                group = int(sampled.group_b[rows[0]])
                latest[group] = subset(sampled, rows)
                if sampled.scores.correct_b[rows].any():
                    del open_groups[group]
            context.note("guidance_rounds", 1)
        return self._placed(samples, latest, dead, context)

    def ladder(self, task: Task, example: Example) -> tuple[str, ...]:
        """Return the hints for a prompt, from the shortest; () if there are none."""
        if self.levels is None:
            return task.hints(example)
        right = task.solution(example) or ""
        return tuple(dict.fromkeys(right[: math.ceil(level * len(right))] for level in self.levels if right))

    def _request(
        self, context: RunContext, samples: ScoredSamples, rows: np.ndarray, hint: str, level: int
    ) -> RolloutRequest:
        shown: dict[str, Any] = {}
        if self.place == "prompt":
            shown["prompt"] = context.task.with_hint(samples.examples[rows[0]], hint)
        else:
            shown["prefix"] = context.encode(hint)
            shown["max_new_tokens"] = max(1, context.max_new_tokens - len(shown["prefix"]))
        return again(samples, rows[0], level * len(rows), completions=len(rows), source=GUIDED, **shown)

    def _placed(
        self, samples: ScoredSamples, latest: dict[int, ScoredSamples], dead: Sequence[np.ndarray], context: RunContext
    ) -> ScoredSamples:
        context.note("groups_guided", len(latest))
        if not latest:
            return samples
        gone_b = sampled_rows(samples) & np.isin(samples.group_b, list(latest))
        found = join(list(latest.values()))
        return splice(samples, gone_b, [under_own_prompt(found, context) if self.train_on == "original" else found])

    def extra_samples(self, run: RunFacts) -> str:
        """Completions besides those of the run."""
        levels = "as often as the task has hints" if self.levels is None else f"up to {len(self.levels)} times"
        return f"{run.group_size} completions, {levels}, for each prompt that no completion got right"

    def shown(self, example: Example, task: Task, run: RunFacts) -> list[Prompt]:
        """The prompt with each hint, where hints stand in the prompt."""
        if self.place == "answer":
            return []
        return [task.with_hint(example, hint) for hint in self.ladder(task, example)]

    @override
    def words(self) -> str:
        what = (
            "the task's next hint"
            if self.levels is None
            else f"{', '.join(f'{x:.0%}' for x in self.levels)} of the solution"
        )
        where = "in the prompt" if self.place == "prompt" else "as the beginning of every completion"
        trained = "" if self.train_on == "hinted" else "; trained under the prompt without the hint"
        return f"a group without a correct completion is sampled again with {what} {where}, until one is right{trained}"

    def refuse(self, run: RunFacts) -> list[str]:
        """Hints are made of solutions."""
        return needs_solutions(self.name, run)


@part("augment")
class RowHint(OnDeadGroup):
    """Scaf-GRPO: one completion with the least hint that helps takes the place of a zero-variance group's first
    (arXiv:2510.19807).

    One more completion is sampled per hint of the task; the right one with the least hint replaces the first row. It is
    trained under the hinted prompt, under the prompt's own prompt (`original`, no correction), or both ways
    (`both` replaces two rows). Where no hint helps the group stays as it is.
    """

    train_on: Literal["hinted", "original", "both"] = "hinted"
    start: Share = 0.0

    def help(self, samples: ScoredSamples, dead: Sequence[np.ndarray], context: RunContext) -> ScoredSamples:
        """Sample one completion per level and keep the first right one of each group."""
        requests = [request for rows in dead for request in self._ladder(samples, int(rows[0]), context)]
        found = context.sample(requests) if requests else None
        helped = [] if found is None else list(groups(found, found.valid_b & found.scores.correct_b))
        context.note("groups_guided", len(helped))
        if found is None or not helped:
            return samples
        least = subset(found, np.array([rows[0] for rows in helped]))
        added = [] if self.train_on == "original" else [least]
        if self.train_on != "hinted":
            added.append(renumbered(under_own_prompt(least, context), 1 if added else 0))
        return splice(samples, self._replaced(samples, dead, least, len(added)), added)

    def _ladder(self, samples: ScoredSamples, row: int, context: RunContext) -> list[RolloutRequest]:
        example = samples.examples[row]
        return [
            again(samples, row, 2 * i, source=GUIDED, prompt=context.task.with_hint(example, hint))
            for i, hint in enumerate(context.task.hints(example))
        ]

    def _replaced(
        self, samples: ScoredSamples, dead: Sequence[np.ndarray], least: ScoredSamples, count: int
    ) -> np.ndarray:
        gone_b = np.zeros(len(samples), dtype=bool)
        for rows in dead:
            if samples.group_b[rows[0]] in least.group_b:
                gone_b[rows[:count]] = True
        return gone_b

    def extra_samples(self, run: RunFacts) -> str:
        """Completions besides those of the run."""
        return "one completion per hint of the task for each prompt that no completion got right"

    def shown(self, example: Example, task: Task, run: RunFacts) -> list[Prompt]:
        """The prompt with each hint."""
        return [task.with_hint(example, hint) for hint in task.hints(example)]

    @override
    def words(self) -> str:
        how = {
            "hinted": "trained under the prompt with the hint",
            "original": "trained under the prompt without the hint",
            "both": "trained with the hint and without it, in the place of two",
        }[self.train_on]
        return (
            f"in a group without a correct completion one that the least hint makes right takes the first place, {how}"
        )

    def refuse(self, run: RunFacts) -> list[str]:
        """Hints are made of solutions."""
        return needs_solutions(self.name, run)


@part("augment")
class SolvedExemplars(OnDeadGroup):
    """XRPO: a zero-variance group is sampled again after `count` similar prompts that were solved before
    (arXiv:2510.06672).

    The first correct completion of each visit goes into a store of at most `keep` prompts, the latest of each. Similar
    are other prompts that share most of their tokens and pairs of tokens. A completion is cut to `longest` tokens.
    """

    count: Annotated[int, Field(ge=1)] = 2
    keep: Annotated[int, Field(ge=1)] = 512
    longest: Annotated[int, Field(ge=1)] = 512
    start: Share = 0.0
    says = (
        "a group without a correct completion is sampled again behind {count} similar prompts with correct "
        "completions from earlier in the run"
    )

    def help(self, samples: ScoredSamples, dead: Sequence[np.ndarray], context: RunContext) -> ScoredSamples:
        """Remember what is solved now; sample zero-variance groups again behind solved prompts."""
        self._remember(samples, context)
        store = context.state_of(self)["solved"] if dead else {}
        solved = [(int(key), (prompt, text), grams(context, prompt)) for key, (prompt, text) in store.items()]
        requests = [request for rows in dead for request in self._requests(samples, rows, context, solved)]
        context.note("groups_guided", len(requests))
        if not requests:
            return samples
        seeded = context.sample(requests)
        seeded = subset(seeded, seeded.valid_b)
        gone_b = sampled_rows(samples) & np.isin(samples.group_b, seeded.group_b)
        return splice(samples, gone_b, [seeded])

    def _requests(
        self, samples: ScoredSamples, rows: np.ndarray, context: RunContext, solved: Sequence[Solved]
    ) -> list[RolloutRequest]:
        """Return one request behind the nearest solved prompts; none where there are too few besides the prompt."""
        example, index = samples.examples[rows[0]], int(samples.index_b[rows[0]])
        others = [known for known in solved if known[0] != index]
        if len(others) < self.count:
            return []
        own = grams(context, example.prompt)
        nearest = sorted(others, key=lambda known: -overlap(own, known[2]))[: self.count]
        prompt = context.task.with_examples(example, [example for _, example, _ in nearest])
        return [again(samples, rows[0], completions=len(rows), source=GUIDED, prompt=prompt)]

    def _remember(self, samples: ScoredSamples, context: RunContext) -> None:
        """Store the first correct completion of each prompt, the latest prompts last."""
        store = context.state_of(self).setdefault("solved", {})
        for rows in groups(samples, sampled_rows(samples) & samples.scores.correct_b):
            row, key = rows[0], str(int(samples.index_b[rows[0]]))
            (text,) = context.decode([samples.rollout.response_ids[row][: self.longest]])
            store.pop(key, None)
            store[key] = [plain(samples.examples[row].prompt), text]
        for key in list(store)[: max(0, len(store) - self.keep)]:
            del store[key]

    def extra_samples(self, run: RunFacts) -> str:
        """Completions besides those of the run."""
        return f"{run.group_size} completions for each prompt that no completion got right"

    def shown(self, example: Example, task: Task, run: RunFacts) -> list[Prompt]:
        """The prompt behind examples like itself."""
        right = task.solution(example)
        return [task.with_examples(example, [(plain(example.prompt), right)] * self.count)] if right else []


def plain(prompt: Prompt) -> str:
    """Return the text of a prompt: that of its last message."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def grams(context: RunContext, prompt: Prompt) -> Grams:
    """Return the tokens of a prompt and the pairs of neighbours among them."""
    ids = context.encode(plain(prompt))
    return frozenset([(i,) for i in ids] + list(pairwise(ids)))


def overlap(a: Grams, b: Grams) -> float:
    """Share of what two sets have in common (Jaccard); 0 for two empty ones."""
    return len(a & b) / max(len(a | b), 1)


def renumbered(samples: ScoredSamples, by: int) -> ScoredSamples:
    """Return the rows with other numbers within their groups, `by` higher."""
    return replace(samples, sample_b=samples.sample_b + by)


def needs_solutions(name: str, run: RunFacts) -> list[str]:
    """Return why a part that needs right solutions cannot work without them; empty when the task has some."""
    if run.demonstrations:
        return []
    return [f"{name} needs right solutions, and the task has none. Use a task with solutions, or leave {name} out"]
