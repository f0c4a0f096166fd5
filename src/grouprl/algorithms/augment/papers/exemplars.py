"""Solved prompts like a hard one, shown before it (XRPO)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from grouprl.algorithms.augment.resampling import again, groups, sampled_rows, splice
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.numbers import Share
from grouprl.records.examples import Example, Prompt
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.text_samples import as_text

if TYPE_CHECKING:
    from grouprl.tasks.task import Task
from grouprl.algorithms.augment.guidance import GUIDED, OnDeadGroup

Grams = frozenset[tuple[int, ...]]


Solved = tuple[int, tuple[str, str], Grams]
"""Number of a prompt, its text with a correct completion, its tokens and pairs of tokens."""


@part("augment")
class SolvedExemplars(OnDeadGroup):
    """XRPO: the prompt of a zero-variance group is sampled again after `count` similar prompts that were solved before
    (arXiv:2510.06672).

    The first correct completion of each visit goes into a store of at most `keep` prompts, the latest of each. Similar
    are other prompts that share most of their tokens and pairs of tokens. A completion is cut to `longest` tokens.
    """

    count: Annotated[int, Field(ge=1)] = 2
    keep: Annotated[int, Field(ge=1)] = 512
    longest: Annotated[int, Field(ge=1)] = 512
    start: Share = 0.0
    says = (
        "a group without a correct completion is sampled again after {count} similar prompts with correct "
        "completions from earlier in the run"
    )

    def help(self, samples: ScoredSamples, dead: Sequence[np.ndarray], context: RunContext) -> ScoredSamples:
        """Remember what is solved now; sample the prompts of zero-variance groups again after solved prompts."""
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
        """Return one request with the nearest solved prompts in front; none if there are too few other prompts."""
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
            (text,) = context.text.decode([as_text(samples).response_ids[row][: self.longest]])
            store.pop(key, None)
            store[key] = [plain(samples.examples[row].prompt), text]
        for key in list(store)[: max(0, len(store) - self.keep)]:
            del store[key]

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        return f"{run.group_size} completions for each prompt that no completion got right"

    def shown(self, example: Example, task: Task, run: RunFacts) -> list[Prompt]:
        """Return the prompt preceded by similar solved ones."""
        right = task.solution(example)
        return [task.with_examples(example, [(plain(example.prompt), right)] * self.count)] if right else []


def plain(prompt: Prompt) -> str:
    """Return the text of a prompt, which is that of its last message."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def grams(context: RunContext, prompt: Prompt) -> Grams:
    """Return the tokens of a prompt and the pairs of neighbours among them."""
    ids = context.text.encode(plain(prompt))
    return frozenset([(i,) for i in ids] + list(pairwise(ids)))


def overlap(a: Grams, b: Grams) -> float:
    """Return the share of elements that two sets have in common (Jaccard); 0 for two empty sets."""
    return len(a & b) / max(len(a | b), 1)
