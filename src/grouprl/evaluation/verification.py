"""Scores of completions by a policy as verifier, and votes weighted by these scores (RL^V, arXiv:2505.04842)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grouprl.core.errors import InputError
from grouprl.records.examples import Example
from grouprl.records.tokens import Tokens
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy


@torch.no_grad()
def verdict_scores(policy: CausalPolicy, task: Task, examples: Sequence[Example], texts: Sequence[str]) -> Tensor:
    """Return [B] P(Yes)/(P(Yes) + P(No)) by `policy` for whether each of `texts` completes its example correctly.

    Only the first token of each verdict of the task counts.
    """
    prompts = [task.with_verdict(example, text) for example, text in zip(examples, texts, strict=True)]
    prompt_ids = policy.encode_prompts(prompts)
    yes, no = (policy.encode(verdict)[:1] for verdict in task.verdicts)
    logp = [policy.logp(Tokens.of(prompt_ids, [ids] * len(prompt_ids)))[:, 0].cpu() for ids in (yes, no)]
    return torch.sigmoid(logp[0] - logp[1])


def weighted_vote(answers: Sequence[str | None], weight_b: Sequence[float] | Tensor | None = None) -> str | None:
    """Return the answer with the largest sum of weights, the first of equals; without weights, a majority vote.

    None among `answers` has no vote; without any answer the result is None. Raises InputError if the number of weights
    differs from that of the answers, or a weight is negative.
    """
    weights = [1.0] * len(answers) if weight_b is None else [float(weight) for weight in weight_b]
    if len(weights) != len(answers) or min(weights, default=0.0) < 0:
        raise InputError(f"{len(answers)} answers with the weights {weights}", "each has one, of at least 0")
    votes: dict[str, float] = {}
    for answer, weight in zip(answers, weights, strict=True):
        if answer is not None:
            votes[answer] = votes.get(answer, 0.0) + weight
    return max(votes, key=lambda answer: votes[answer]) if votes else None
