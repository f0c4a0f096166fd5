"""The ranking of the stored completions of held-out prompts by a reward model, or by one that compares them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from grouprl.core.edges import preference_scores, without_rounding
from grouprl.core.outputs import SCORE
from grouprl.protocols import Trainable
from grouprl.records.outcomes import Outcomes
from grouprl.records.scores import Scores
from grouprl.records.text_samples import TextSamples
from grouprl.records.tokens import Tokens
from grouprl.rollout.pair_gaps import Floats, gap_measures


def ranked_outcomes(samples: TextSamples, model: Trainable) -> Outcomes:
    """Return, for each group of stored rows, the one that the model finds best, and the share of pairs ranked right.

    A pair is two rows of a group with different rewards; a tie of their scores is wrong. A group without pairs has no
    reward (`not_applicable`), and one whose pairs are all right is correct. Best is the row with the highest score, or
    with the highest mean score against the others. Where every prompt has one row, all rows are compared, and
    each has the share of pairs with it that are ranked right. Components are those of `gap_measures`.
    """
    groups = [np.flatnonzero(samples.group_b == group) for group in dict.fromkeys(samples.group_b.tolist())]
    tokens, reward_b = samples.rollout.tokens, samples.scores.reward_b
    if len(groups) == len(samples) > 1:
        [gap_bb] = gaps_of(model, tokens, [np.arange(len(samples))])
        return _outcomes(samples, list(range(len(samples))), shares_of_rows(reward_b, gap_bb), [])
    gap_g = gaps_of(model, tokens, groups)
    found = list(zip(groups, gap_g, strict=True))
    best = [int(rows[gap_nn.mean(1).argmax()]) for rows, gap_nn in found]
    share_q = np.array([share_of_pairs(reward_b[rows], gap_nn) for rows, gap_nn in found])
    gaps = [gap_measures(reward_b[rows], gap_nn, [samples.texts[row] for row in rows]) for rows, gap_nn in found]
    return _outcomes(samples, best, share_q, gaps)


def _outcomes(samples: TextSamples, best: list[int], share_q: Floats, gaps: list[dict[str, float]]) -> Outcomes:
    """Return the outcome of each prompt: its best row, its share of pairs, and its measures of gaps, if any."""
    scores = Scores(
        reward_b=share_q,
        components={name: np.array([each[name] for each in gaps]) for name in (gaps[0] if gaps else {})},
        correct_b=share_q == 1,
        status_b=np.where(np.isfinite(share_q), "ok", "not_applicable"),
        problems=[],
    )
    lengths = tuple(float(samples.length_b[row]) for row in best)
    late = tuple(bool(samples.rollout.truncated_b[row]) for row in best)
    return Outcomes(tuple(samples.texts[row] for row in best), ("",) * len(best), lengths, late, scores)


def gaps_of(model: Trainable, tokens: Tokens, groups: list[NDArray[np.int64]]) -> list[Floats]:
    """Return by how much each row of a group, N rows, scores above each other one, [N,N] for each group: differences of
    scores, or the scores of a preference model, divided by its temperature.
    """
    from grouprl.policy.language.columns.several_scores import GeneralPreferenceModel  # loads torch, plans need none

    if not isinstance(model, GeneralPreferenceModel):
        score_b = model.evaluate(tokens, (SCORE,))[SCORE].cpu()
        return [_differences(score_b[torch.from_numpy(rows)]) for rows in groups]
    value_bd = model.column_values(tokens).cpu()
    return [_against_each_other(value_bd[torch.from_numpy(rows)]) / model.tau for rows in groups]


def share_of_pairs(reward_n: Floats, gap_nn: Floats) -> float:
    """Return the share of the pairs with different rewards whose better one has the higher score; nan without pairs."""
    better_nn = reward_n[:, None] > reward_n[None]
    if not better_nn.any():
        return float("nan")
    return float((gap_nn > 0)[better_nn].mean())


def shares_of_rows(reward_n: Floats, gap_nn: Floats) -> Floats:
    """Return the share [N] of each row's pairs, with rows of another reward, that are ranked right."""
    order_nn = np.sign(reward_n[:, None] - reward_n)
    right_n, pairs_n = ((order_nn != 0) & (np.sign(gap_nn) == order_nn)).sum(1), (order_nn != 0).sum(1)
    return np.where(pairs_n > 0, right_n / np.maximum(pairs_n, 1), np.nan)


def _differences(score_n: torch.Tensor) -> Floats:
    """Return by how much each score lies above each, [N,N]; differences as small as rounding are 0."""
    gap_nn = score_n[:, None] - score_n
    found: Floats = without_rounding(gap_nn, score_n.abs()[:, None] + score_n.abs()).double().numpy()
    return found


def _against_each_other(value_nd: torch.Tensor) -> Floats:
    """Return the score of each vector against each, [N,N]; those as small as rounding are 0."""
    size = len(value_nd)
    one_md, other_md = value_nd.repeat_interleave(size, 0), value_nd.repeat(size, 1)
    score_m = without_rounding(preference_scores(one_md, other_md), (one_md * other_md).abs().sum(1))
    found: Floats = score_m.double().reshape(size, size).numpy()
    return found
