"""Scoring completions a second time, which shows whether the reward is a function of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grouprl.config.run import Config
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.scores import Scores
from grouprl.records.text_samples import TextSamples
from grouprl.rewards.contract import Reward
from grouprl.rewards.scoring import score
from grouprl.rollout.row_settings import sample_id
from grouprl.rollout.row_source import ScoringSource


def rescore_refusals(config: Config, rows: type[ScoringSource]) -> Iterator[str]:
    """Say why rewards of a run's rows cannot be computed once more."""
    asked = f"reward.rescore = {config.reward.rescore}"
    if config.reward.rescore and (rows.acts or not rows.samples or not rows.text):
        yield f"{asked}, but only texts that the reward function scores can be scored again. Leave it out"
    elif config.reward.rescore and config.reward.replaced not in ("", "function"):
        yield f"{asked}, but reward.{config.reward.replaced} scores groups, not single completions. Leave it out"


def scored_again(reward: Reward, samples: ScoredSamples, count: int, correct_at: float) -> tuple[Scores, Scores]:
    """Return two scores of the first completion of each of the first `count` prompts: those it has, and new ones.

    Raises:
        InputError: see `grouprl.rewards.scoring.score`.
    """
    assert isinstance(samples, TextSamples)
    _, first = np.unique(samples.ordinal_b, return_index=True)
    chosen = subset(samples, np.sort(first)[:count])
    names = [sample_id(each.id, number) for each, number in zip(chosen.examples, chosen.sample_b.tolist(), strict=True)]
    columns = [example.columns for example in chosen.examples]
    return chosen.scores, score(reward, chosen.texts, columns, ids=names, correct_at=correct_at)
