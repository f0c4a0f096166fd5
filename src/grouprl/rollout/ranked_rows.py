"""The ranking of the stored completions of held-out prompts by a reward model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grouprl.core.outputs import SCORE
from grouprl.protocols import Trainable
from grouprl.records.outcomes import Outcomes
from grouprl.records.scores import Scores
from grouprl.records.text_samples import TextSamples
from grouprl.rollout.pair_gaps import gap_measures


def ranked_outcomes(samples: TextSamples, model: Trainable) -> Outcomes:
    """Return, for each group of stored rows, the one with the highest score, and the share of pairs ranked right.

    A pair is two rows of a group with different rewards; a tie of their scores is wrong. A group without pairs has no
    reward (`not_applicable`), and one whose pairs are all right is correct. Components are those of `gap_measures`.
    """
    score_b = model.evaluate(samples.rollout.tokens, (SCORE,))[SCORE].double().cpu().numpy()
    groups = [np.flatnonzero(samples.group_b == group) for group in dict.fromkeys(samples.group_b.tolist())]
    best = [int(rows[score_b[rows].argmax()]) for rows in groups]
    reward_q = np.array([share_of_pairs(samples.scores.reward_b[rows], score_b[rows]) for rows in groups])
    known_q = np.isfinite(reward_q)
    gaps = [
        gap_measures(samples.scores.reward_b[rows], score_b[rows], [samples.texts[row] for row in rows])
        for rows in groups
    ]
    scores = Scores(
        reward_b=reward_q,
        components={name: np.array([each[name] for each in gaps]) for name in gaps[0]},
        correct_b=reward_q == 1,
        status_b=np.where(known_q, "ok", "not_applicable"),
        problems=[],
    )
    lengths = tuple(float(samples.length_b[row]) for row in best)
    late = tuple(bool(samples.rollout.truncated_b[row]) for row in best)
    return Outcomes(tuple(samples.texts[row] for row in best), ("",) * len(best), lengths, late, scores)


def share_of_pairs(reward_n: NDArray[np.float64], score_n: NDArray[np.float64]) -> float:
    """Return the share of the pairs with different rewards whose better one has the higher score; nan without pairs."""
    better_nn = reward_n[:, None] > reward_n[None]
    if not better_nn.any():
        return float("nan")
    return float((score_n[:, None] > score_n[None])[better_nn].mean())
