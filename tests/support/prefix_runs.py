"""Episodes with prefixes, collected without a run."""

from __future__ import annotations

from typing import Any

import toy_envs
from episode_runs import run_config
from grouprl.config.run import parse_config
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.kinds.row_kinds import open_rows
from grouprl.rollout.row_source import ScoringSource


def policy() -> CausalPolicy:
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}
    return CausalPolicy(*build_tiny(toy_envs.AskTask.alphabet, **sizes, seed=1))


def row_source(task: Any) -> ScoringSource:
    return open_rows(parse_config(run_config()), task, policy(), task.reward, 2, ErrorPolicy())


def sampled(task: Any, completions: int = 6) -> tuple[ScoringSource, ScoredSamples]:
    made = row_source(task)
    return made, made.rows([RolloutRequest(3, 3, task.example("train", 3), completions)])
