"""Hints for groups without a correct completion: for the whole group (GHPO), or for one row (Scaf-GRPO)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.augment.resampling import again, groups, sampled_rows, splice
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import InputError
from grouprl.core.numbers import Share
from grouprl.records.examples import Example, Prompt
from grouprl.records.joining import join
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.text_samples import TextSamples, as_text

if TYPE_CHECKING:
    from grouprl.tasks.task import Task
from grouprl.algorithms.augment.guidance import GUIDED, OnDeadGroup, needs_solutions


def under_own_prompt(guided: ScoredSamples, context: RunContext) -> TextSamples:
    """Return guided rows shown under their original prompts; their log-probs are then computed anew."""
    return context.text.with_prompts(as_text(guided), [example.prompt for example in guided.examples])


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
    place: Literal["prompt", "completion"] = "prompt"
    train_on: Literal["hinted", "original"] = "hinted"
    start: Share = 0.0

    def __post_init__(self) -> None:
        """Raise InputError if the levels do not rise, or if a hint that begins the completion is to be left out in
        training.
        """
        if self.levels is not None and list(self.levels) != sorted(set(self.levels)):
            raise InputError(
                f"group_hints has the levels {list(self.levels)}", "each hint must say more than the one before"
            )
        if self.place == "completion" and self.train_on == "original":
            raise InputError(
                "group_hints has place 'completion' with train_on 'original'",
                "a completion that begins with the hint makes no sense without it",
                "Set train_on: hinted",
            )

    def help(self, samples: ScoredSamples, dead: Sequence[np.ndarray], context: RunContext) -> ScoredSamples:
        """Sample zero-variance groups again, level by level, until a completion is right."""
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
        shown: dict[str, object] = {}
        if self.place == "prompt":
            shown["prompt"] = context.task.with_hint(samples.examples[rows[0]], hint)
        else:
            prefix = context.text.encode(hint)
            shown |= {"prefix": prefix, "max_new_tokens": max(1, context.max_new_tokens - len(prefix))}
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
        """Say how many completions are sampled besides those of the run."""
        levels = "once per hint of the task" if self.levels is None else f"up to {len(self.levels)} times"
        return f"{run.group_size} completions, {levels}, for each prompt that no completion got right"

    def shown(self, example: Example, task: Task, run: RunFacts) -> list[Prompt]:
        """Return the prompt with each hint, if hints are part of the prompt."""
        if self.place == "completion":
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
        """Refuse a task without right solutions."""
        return needs_solutions(self.name, run)


@part("augment")
class RowHint(OnDeadGroup):
    """Scaf-GRPO: one completion with the least hint that helps takes the place of a zero-variance group's first
    (arXiv:2510.19807).

    One more completion is sampled per hint of the task; the right one with the least hint replaces the first row. It is
    trained under the hinted prompt, under the original prompt (`original`, no correction), or both ways (`both`
    replaces two rows). If no hint helps, the group stays as it is.
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
        """Say how many completions are sampled besides those of the run."""
        return "one completion per hint of the task for each prompt that no completion got right"

    def shown(self, example: Example, task: Task, run: RunFacts) -> list[Prompt]:
        """Return the prompt with each hint."""
        return [task.with_hint(example, hint) for hint in task.hints(example)]

    @override
    def words(self) -> str:
        how = {
            "hinted": "trained under the prompt with the hint",
            "original": "trained under the prompt without the hint",
            "both": "trained with the hint and without it, in place of two",
        }[self.train_on]
        return (
            f"in a group without a correct completion one that the least hint makes right takes the first place, {how}"
        )

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without right solutions."""
        return needs_solutions(self.name, run)


def renumbered(samples: ScoredSamples, by: int) -> ScoredSamples:
    """Return the rows with their numbers within their groups increased by `by`."""
    return replace(samples, sample_b=samples.sample_b + by)
