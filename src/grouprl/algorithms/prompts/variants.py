"""Questions asked in several equivalent ways, and answers shown under each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from grouprl.algorithms.data_part import Allocation, Desk, Exploration
from grouprl.algorithms.exploration.resampling import drawn_rows, further_numbers, groups, leads, splice
from grouprl.algorithms.part import RunFacts, part
from grouprl.rollout.requests import Ask, Prompt
from grouprl.rollout.samples import Collected, subset
from grouprl.tasks.task import Question, Task


def shares(answers: int, parts: int) -> list[int]:
    """Split `answers` into `parts` numbers that differ by at most one, the larger first."""
    return [answers // parts + (i < answers % parts) for i in range(parts)]


@part("allocation")
class Variants(Allocation):
    """Spread a question's answers evenly over equivalent forms of it (EIS-GRPO, arXiv:2505.13346; Share-GRPO).

    The forms come from the task, at most `limit` of them, the question itself first; together their answers are one
    group. `keys.variant` numbers the form that a row was asked in, `keys.own` is 1.
    """

    limit: Annotated[int, Field(ge=1)] = 2

    def allot(self, asks: Sequence[Ask], desk: Desk) -> list[Ask]:
        """Return one ask per form, with numbers of answers of their own."""
        return [part for ask in asks for part in self._spread(ask, desk)]

    def _spread(self, ask: Ask, desk: Desk) -> list[Ask]:
        forms = desk.task.variants(ask.question)[: self.limit]
        counts = shares(ask.answers, len(forms))
        return [
            replace(
                ask,
                question=form,
                answers=count,
                first=ask.first + sum(counts[:i]),
                keys={**ask.keys, "variant": i, "own": 1},
            )
            for i, (form, count) in enumerate(zip(forms, counts, strict=True))
        ]

    def supplies(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("keys.variant", "keys.own")

    def shown(self, question: Question, task: Task, run: RunFacts) -> list[Prompt]:
        """The other forms of the question."""
        return [form.prompt for form in task.variants(question)[: self.limit]]

    def words(self) -> str:
        """Describe."""
        return f"spread the answers of a question over up to {self.limit} equivalent forms of it"

    def idle(self, run: RunFacts) -> list[str]:
        """One form is the question itself."""
        return ["variants has no effect: limit is 1"] if self.limit == 1 else []


@part("explore")
class CrossPairs(Exploration):
    """Show every answer under the prompt of every form of its question, too (Share-GRPO, arXiv:2505.16673).

    M forms with n answers each become M·M·n rows. The new rows have the prompt's `keys.variant`, `keys.own` 0 and
    source 'extra'; their log-probs are those of the policy under the prompt they are shown.
    """

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Return the rows and their pairings with the other forms."""
        rows: list[int] = []
        prompts: list[Prompt] = []
        forms: list[int] = []
        variant_b = collected.extras["keys.variant"]
        for group in groups(collected, drawn_rows(collected)):
            first = {int(variant_b[i]): collected.prompts[i] for i in reversed(group.tolist())}
            pairs = [(i, v) for v in sorted(first) for i in group.tolist() if variant_b[i] != v]
            rows += [i for i, _ in pairs]
            forms += [v for _, v in pairs]
            prompts += [first[v] for _, v in pairs]
        if not rows:
            return collected
        paired = desk.under(subset(collected, np.array(rows)), prompts).with_source("extra")
        begun = zip(paired.rollout.prompt_ids, leads(collected, rows, desk), strict=True)
        rollout = replace(paired.rollout, prompt_ids=tuple((*ids, *lead) for ids, lead in begun))
        keys = {"keys__variant": np.array(forms, dtype=np.int64), "keys__own": np.zeros(len(rows), dtype=np.int64)}
        numbers_b = further_numbers(collected, np.array(rows))
        paired = replace(paired.with_extras(**keys), answer_b=numbers_b, rollout=rollout)
        return splice(collected, np.zeros(len(collected), dtype=bool), [paired])

    def needs(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("keys.variant", "keys.own")

    def further(self, run: RunFacts) -> str:
        """Rows besides the answers."""
        answers = run.prompts * run.group_size
        return f"no answers, but {answers} rows per rollout to train on for each further form of a question"

    def words(self) -> str:
        """Describe."""
        return "every answer is also a row under the prompt of each other form of its question"
