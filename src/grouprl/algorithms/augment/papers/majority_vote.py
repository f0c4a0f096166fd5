"""Answers labelled by the majority of a group's votes (CPMobius)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.numbers import Whole
from grouprl.records.samples import ScoredSamples


def majority(answers: Sequence[str | None]) -> str | None:
    """Return the most frequent answer, of equally frequent ones the first; None if there are no answers."""
    counted = Counter(answer for answer in answers if answer is not None)
    return counted.most_common(1)[0][0] if counted else None


@part("augment")
class MajorityVote(Augmentation):
    """CPMobius: a row of `agent` earns 1 if its final answer is the one most rows of its episode give, else 0.

    The environment's verdict on right and wrong is not used. The rows of other agents earn 0 here.
    """

    blind = "the majority's answer"
    needs_text = True

    agent: Whole = 0
    says = "agent {agent} earns 1 for the answer that most of its rows of the episode give, else 0"
    equation = "R_i = 1[answer_i = majority of the episode]"

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Replace the rewards."""
        agent_b, episode_b = (samples.extras[name] for name in ("agent_b", "keys.episode"))
        answers = [self._answer(samples, row, context) for row in range(len(samples))]
        reward_b = np.zeros(len(samples))
        for episode in np.unique(episode_b):
            rows = np.flatnonzero((episode_b == episode) & (agent_b == self.agent))
            label = majority([answers[row] for row in rows])
            reward_b[rows] = [label is not None and answers[row] == label for row in rows]
        return replace(samples, scores=replace(samples.scores, reward_b=reward_b))

    def _answer(self, samples: ScoredSamples, row: int, context: RunContext) -> str | None:
        """Return the final answer in the last action of a row."""
        record = samples.records[row] if samples.records is not None else None
        text = record.turns[-1].action if record is not None and record.turns else ""
        return context.task.final_answer(samples.examples[row], text) or None

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without episodes, in which votes are counted."""
        if not run.environment:
            return [
                f"{self.name} counts the answers of an episode, and the task has no episodes. Use a task with an "
                "environment, such as propose"
            ]
        return []
