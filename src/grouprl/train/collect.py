"""Collecting experience: ask, answer, score, and lay the result out as a Batch.

A *draw* is one question with its group of answers. Every answer has a seed made from (run, question ordinal, answer),
so it does not depend on which other questions are asked beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grouprl.batch import Batch
from grouprl.policy.tokens import Tokens
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rewards.scoring import Scores, score
from grouprl.rollout.sampler import Rollout, generate
from grouprl.rollout.seeds import answer_seed
from grouprl.tasks.task import Question
from grouprl.train.config import Config
from grouprl.train.stopwatch import Stopwatch

GREEDY = -1
"""Answer number of the greedy answer, which needs no seed of its own."""


@dataclass(frozen=True)
class Collected:
    """Answers to some questions, scored: B rows, `kept_b` says which may be trained on."""

    questions: tuple[Question, ...]
    """[B] the question of each row."""
    group_b: np.ndarray
    """[B] ordinal of the question in this run."""
    answer_b: np.ndarray
    """[B] number of the answer within its group."""
    rollout: Rollout
    texts: tuple[str, ...]
    scores: Scores
    kept_b: np.ndarray
    greedy_reward_b: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.questions)


class Collector:
    """Draws and scores groups of answers; `watch` adds up the seconds of both."""

    def __init__(self, config: Config, policy: Any, reward: Any, max_new_tokens: int, errors: ErrorPolicy) -> None:
        self.config, self.policy, self.reward = config, policy, reward
        self.max_new_tokens, self.errors = max_new_tokens, errors
        self.watch = Stopwatch()

    def collect(self, draws: Sequence[tuple[int, Question]], *, greedy_baseline: bool = False) -> Collected:
        """Draw a group of answers for each (ordinal, question) and score them."""
        size = self.config.batch.group
        rollout = self._generate(draws, size)
        questions = tuple(q for _, q in draws for _ in range(size))
        group_b = np.repeat(np.array([n for n, _ in draws], dtype=np.int64), size)
        texts = tuple(self.policy.decode_all(rollout.response_ids))
        scores = self._score(texts, questions, [f"{q.id}#{i % size}" for i, q in enumerate(questions)])
        kept_b = self.errors.apply(scores, group_b)
        baseline_b = self._greedy(draws, size) if greedy_baseline else None
        if baseline_b is not None:
            kept_b = kept_b & np.isfinite(baseline_b)
        answer_b = np.tile(np.arange(size), len(draws))
        return Collected(questions, group_b, answer_b, rollout, texts, scores, kept_b, baseline_b)

    def _generate(self, draws: Sequence[tuple[int, Question]], n: int, *, greedy: bool = False) -> Rollout:
        sampling = self.config.sampling
        numbers = [GREEDY] if greedy else range(n)
        with self.watch("rollout"):
            return generate(
                self.policy,
                self.policy.encode_prompts([question.prompt for _, question in draws]),
                n=n,
                max_new_tokens=self.max_new_tokens,
                temperature=sampling.temperature,
                seeds=[answer_seed("train", self.config.seed, ordinal, i) for ordinal, _ in draws for i in numbers],
                greedy=greedy,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
            )

    def _score(self, texts: Sequence[str], questions: Sequence[Question], ids: Sequence[str]) -> Scores:
        columns = [question.columns for question in questions]
        with self.watch("score"):
            return score(self.reward, texts, columns, ids=ids, correct_at=self.config.reward.correct_at)

    def _greedy(self, draws: Sequence[tuple[int, Question]], size: int) -> np.ndarray:
        """[B] reward of the greedy answer to each row's question; NaN where it could not be scored."""
        rollout = self._generate(draws, 1, greedy=True)
        texts = self.policy.decode_all(rollout.response_ids)
        questions = [question for _, question in draws]
        scores = self._score(texts, questions, [f"{q.id}#greedy" for q in questions])
        return np.repeat(scores.reward_b, size)


def join(parts: Sequence[Collected]) -> Collected:
    """Put several collections one after the other."""
    if len(parts) == 1:
        return parts[0]
    rollouts = [part.rollout for part in parts]
    rollout = Rollout(
        prompt_ids=tuple(ids for r in rollouts for ids in r.prompt_ids),
        response_ids=tuple(ids for r in rollouts for ids in r.response_ids),
        logp_bt=_stack([r.logp_bt for r in rollouts]),
        entropy_bt=_stack([r.entropy_bt for r in rollouts]),
        truncated_b=torch.cat([r.truncated_b for r in rollouts]),
    )
    scores = [part.scores for part in parts]
    names = list(dict.fromkeys(name for s in scores for name in s.components))
    greedy = [part.greedy_reward_b for part in parts if part.greedy_reward_b is not None]
    return Collected(
        questions=tuple(q for part in parts for q in part.questions),
        group_b=np.concatenate([part.group_b for part in parts]),
        answer_b=np.concatenate([part.answer_b for part in parts]),
        rollout=rollout,
        texts=tuple(text for part in parts for text in part.texts),
        scores=Scores(
            reward_b=np.concatenate([s.reward_b for s in scores]),
            components={
                n: np.concatenate([s.components.get(n, np.full(len(s.reward_b), np.nan)) for s in scores])
                for n in names
            },
            correct_b=np.concatenate([s.correct_b for s in scores]),
            status_b=np.concatenate([s.status_b for s in scores]),
            problems=[problem for s in scores for problem in s.problems],
        ),
        kept_b=np.concatenate([part.kept_b for part in parts]),
        greedy_reward_b=np.concatenate(greedy) if greedy else None,
    )


def subset(collected: Collected, rows: np.ndarray) -> Collected:
    """The rows of `rows` ([N] int or [B] bool)."""
    index = np.flatnonzero(rows) if rows.dtype == bool else rows
    rollout, scores, where = collected.rollout, collected.scores, torch.from_numpy(index)
    return Collected(
        questions=tuple(collected.questions[i] for i in index),
        group_b=collected.group_b[index],
        answer_b=collected.answer_b[index],
        rollout=Rollout(
            prompt_ids=tuple(rollout.prompt_ids[i] for i in index),
            response_ids=tuple(rollout.response_ids[i] for i in index),
            logp_bt=rollout.logp_bt[where],
            entropy_bt=rollout.entropy_bt[where],
            truncated_b=rollout.truncated_b[where],
        ),
        texts=tuple(collected.texts[i] for i in index),
        scores=Scores(
            reward_b=scores.reward_b[index],
            components={name: values[index] for name, values in scores.components.items()},
            correct_b=scores.correct_b[index],
            status_b=scores.status_b[index],
            problems=scores.problems,
        ),
        kept_b=collected.kept_b[index],
        greedy_reward_b=None if collected.greedy_reward_b is None else collected.greedy_reward_b[index],
    )


def to_batch(collected: Collected, *, max_length: int) -> Batch:
    """Lay scored answers out as a Batch of B rows and T = longest answer positions, one turn, everything acted."""
    rollout, scores = collected.rollout, collected.scores
    tokens = Tokens(rollout.prompt_ids, rollout.response_ids)
    width = tokens.max_response
    mask_bt = tokens.present_bt()
    reward_b = torch.from_numpy(scores.reward_b).to(rollout.logp_bt.dtype)
    behavior_bt = rollout.logp_bt[:, :width]
    return Batch(
        mask_bt=mask_bt,
        group_b=torch.from_numpy(collected.group_b),
        reward_b=reward_b,
        rewards={name: torch.from_numpy(x).to(reward_b.dtype) for name, x in scores.components.items()},
        behavior_bt=behavior_bt,
        old_bt=behavior_bt,
        entropy_bt=rollout.entropy_bt[:, :width],
        greedy_reward_b=_optional(collected.greedy_reward_b, reward_b.dtype),
        truncated_b=rollout.truncated_b,
        correct_b=torch.from_numpy(scores.correct_b),
        token_bt=_token_ids(tokens, mask_bt),
        turn_bt=torch.where(mask_bt, 0, -1),
        max_length=max_length,
        inputs=tokens,
    )


def _token_ids(tokens: Tokens, present_bt: Tensor) -> Tensor:
    """[B,T] int64 id of each response token, -1 where there is none."""
    token_bt = torch.full(present_bt.shape, -1)
    token_bt[present_bt] = tokens.targets()
    return token_bt


def _optional(values: np.ndarray | None, dtype: torch.dtype) -> Tensor | None:
    return None if values is None else torch.from_numpy(values).to(dtype)


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate [B_i, T_i] along B, padded with zeros to the longest."""
    width = max(t.shape[1] for t in tensors)
    return torch.cat([torch.nn.functional.pad(t, (0, width - t.shape[1])) for t in tensors])
