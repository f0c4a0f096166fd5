"""New prompts like those that the policy failed at (Logics-STEM)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from grouprl.algorithms.curriculum.papers.curriculum import Chooser, at_random, pool_size
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, Share
from grouprl.records.examples import Prompt
from grouprl.records.prompt_history import PromptHistory
from grouprl.records.requests import RolloutRequest


@part("curriculum")
class FailureNeighbours(Chooser):
    """Two stages: prompts of the stream, then new ones around those that failed (Logics-STEM).

    When the share `after` of the run's steps is over, the prompts whose last share of right completions was below
    `below` have failed. From then on prompts come at random from the `nearest` prompts to each of them that were never
    sampled: those with the most similar text, by the cosine of their counts of `span` successive characters. If
    none failed, or every prompt was sampled, prompts come from the stream as before.

    Differs: the paper retrieves documents near failed questions and lets a model write new problems, with which it
    trains by imitation or reinforcement; here the nearest prompts of the task stand for these. Numbers are ours.
    """

    async_safe: ClassVar[bool] = True
    metrics: ClassVar = {
        "prompts_failed": Metric(words="prompts whose neighbours are sampled", group="completions"),
        "prompts_near_failures": Metric(words="new prompts near failed ones", group="completions"),
    }

    after: Share = 0.5
    below: Share = 0.5
    nearest: Count = 4
    span: Count = 2
    says = (
        "all prompts for {after:.0%} of the run, then new ones: the {nearest} nearest to each of which less than "
        "{below:.0%} was right"
    )

    def choose(self, count: int, context: RunContext) -> list[RolloutRequest]:
        """Return the next prompts of the stream, and from the second stage on neighbours of failures."""
        early = context.step < self.after * context.steps
        near = [] if early else self._near(context)
        return super().choose(count, context) if near else context.take(count)

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Sample from the neighbours."""
        return at_random(np.array(self._near(context)), count, rng, chosen)

    def _near(self, context: RunContext) -> list[int]:
        """Return the neighbours of failed prompts, found once, when the second stage begins."""
        store = context.state_of(self)
        if "near" not in store:
            size = pool_size(context)
            lost = failed(context.prompt_history, size, self.below)
            fresh = [i for i in range(size) if i not in context.prompt_history]
            texts = [text_of(context.task.example("train", i).prompt) for i in (*lost, *fresh)]
            places = neighbours(grams(texts, self.span), len(lost), self.nearest)
            store["near"], store["failed"] = [fresh[place] for place in places], len(lost)
        context.note("prompts_failed", store["failed"], "most")
        context.note("prompts_near_failures", len(store["near"]), "most")
        near: list[int] = store["near"]
        return near

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if the second stage never comes, nothing fails, or nothing is left."""
        if self.after == 1 or self.below == 0:
            return ["failure_neighbours has no effect: after is 1, or below is 0"]
        if run.examples is not None and self.after * run.steps * run.prompts >= run.examples:
            return [
                "failure_neighbours has no effect: every prompt is sampled before it begins. Set data.prompts higher"
            ]
        return []


def failed(history: PromptHistory, size: int, below: float) -> list[int]:
    """Return those of the first `size` prompts whose last share of right completions was below `below`."""
    return [i for i in range(size) if i in history and history.rate(i) < below]


def text_of(prompt: Prompt) -> str:
    """Return a prompt as one text, the contents of messages line by line."""
    return prompt if isinstance(prompt, str) else "\n".join(str(message["content"]) for message in prompt)


def grams(texts: Sequence[str], span: int) -> np.ndarray:
    """Return [N,V] counts of every `span` successive characters, each row of length 1 (0 for shorter texts)."""
    found = [[text[i : i + span] for i in range(len(text) - span + 1)] for text in texts]
    place = {gram: number for number, gram in enumerate(sorted({gram for each in found for gram in each}))}
    count_nv = np.zeros((len(texts), max(1, len(place))))
    for row, each in enumerate(found):
        np.add.at(count_nv[row], [place[gram] for gram in each], 1.0)
    size_n = np.linalg.norm(count_nv, axis=1, keepdims=True)
    return np.divide(count_nv, size_n, out=np.zeros_like(count_nv), where=size_n > 0)


def neighbours(row_nv: np.ndarray, first: int, nearest: int) -> list[int]:
    """Return which of the later rows [N-first] are among the `nearest` to any of the first, by cosine, in order."""
    like_fm = row_nv[:first] @ row_nv[first:].T
    order_fm = np.argsort(-like_fm, axis=1, kind="stable")[:, :nearest]
    return sorted(set(order_fm.ravel().tolist()))
