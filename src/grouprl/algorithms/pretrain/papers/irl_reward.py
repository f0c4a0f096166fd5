"""A reward learnt from demonstrations against the policy's own completions, and how hard a completion is (DR-IRL)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from typing_extensions import override

from grouprl.algorithms.augment.demonstrations import demonstrated
from grouprl.algorithms.augment.resampling import again, groups
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import part
from grouprl.algorithms.pretrain.papers.second_model import PairSource, whole
from grouprl.algorithms.pretrain.papers.trajectory_reward import TrajectoryReward, rewards_of
from grouprl.core.batch import Batch
from grouprl.records.joining import join
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.text_samples import TextSamples, as_text


@part("pretrain")
class IrlReward(TrajectoryReward):
    """A reward model fitted before training: the task's demonstrations above the initial policy's completions (DR-IRL).

    The loss of a pair is -log σ(r(x, y*) - r(x, y)), y* the demonstration and y any other completion. Besides
    `stats.trajectory_reward`, which `learned_reward` pays, it gives `stats.demonstration_gap`, r(x, y*) - r(x, y), and
    `stats.hardness`, 1 less the cosine of the counts of tokens of y and y*; both are 0 without a demonstration.

    Differs: the paper has a model for each of seven kinds of harm, alternates with the policy, and measures likeness
    with a text encoder (arXiv:2503.18991). Steps, rate and passes are ours.
    """

    chosen: PairSource = "solutions"
    equation = "-log σ(r(x, y*) - r(x, y))"
    fills: ClassVar[tuple[str, ...]] = ("stats.trajectory_reward", "stats.demonstration_gap", "stats.hardness")
    says = (
        "train a reward model on {steps} rollouts of the initial policy, the task's solutions above its "
        "completions; then it is frozen"
    )

    @override
    def pairs(self, rows: TextSamples, context: RunContext) -> TextSamples | None:
        """Return demonstrations, then the completions they are paired with; None if there are no pairs."""
        solutions = [context.task.solution(example) for example in rows.examples]
        index = [row for row in np.flatnonzero(rows.valid_b).tolist() if solutions[row] not in (None, rows.texts[row])]
        if not index:
            return None
        texts = [solutions[row] or "" for row in index]
        return join(
            [context.text.rows_of_texts([again(rows, row) for row in index], texts), subset(rows, np.array(index))]
        )

    @override
    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `stats.trajectory_reward`, `stats.demonstration_gap` and `stats.hardness`."""
        batch, text = super().fill(batch, samples, context), as_text(samples)
        gap_b, hard_b = torch.zeros(len(text), dtype=batch.dtype), torch.zeros(len(text), dtype=batch.dtype)
        shown = demonstrated([again(text, own[0]) for own in groups(text, text.valid_b)], context)
        if shown is not None:
            demo = as_text(shown)
            worth_n = rewards_of(self.model(context), whole(demo.tokens, context.text.policy))[0].to(batch.dtype)
            place = {int(group): n for n, group in enumerate(demo.group_b)}
            own = [(row, place[int(group)]) for row, group in enumerate(text.group_b) if int(group) in place]
            for row, n in own:
                gap_b[row] = worth_n[n] - batch.stats["trajectory_reward"][row, 0]
                hard_b[row] = 1 - likeness(text.response_ids[row], demo.response_ids[n])
        added = {"demonstration_gap": batch.broadcast(gap_b), "hardness": batch.broadcast(hard_b)}
        return batch.replace(stats={**batch.stats, **added})


def likeness(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the cosine of the counts of tokens of two texts, 0 if one is empty."""
    a, b = Counter(one), Counter(other)
    size = math.sqrt(sum(n * n for n in a.values()) * sum(n * n for n in b.values()))
    return sum(n * b[token] for token, n in a.items()) / size if size else 0.0
