"""Supervised warm-up on a task's demonstrations: a demonstration is a group of one with advantage one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from grouprl.batch import Batch
from grouprl.envs.stage import Stage
from grouprl.errors import InputError
from grouprl.policy.tokens import Tokens
from grouprl.rollout.between import History
from grouprl.rollout.episodes import Start, demonstrate
from grouprl.rollout.seeds import answer_seed
from grouprl.tasks.task import Question, Task
from grouprl.train.config import Warmup
from grouprl.train.episodes import environments

EPOCH = 1_000_003
"""What the seed grows by from one epoch to the next, so that a question is demonstrated anew each time it comes."""


def demonstration_batch(
    policy: Any,
    task: Task,
    draws: Sequence[tuple[int, Question]],
    seed: int,
    *,
    questions: int | None = None,
    history: History = "refuse",
    stage: Stage | None = None,
) -> Batch:
    """Lay demonstrations out as a Batch: B groups of one, every token of the answer and its end acted.

    `questions` is how many the stream has before it begins anew; None when it never ends. An episode may have several
    rows; they are of one group. `stage` is where environments act; None: in this process.
    """
    if environments(task) is not None:
        return _episode_batch(policy, task, draws, seed, history, stage)
    epochs = [ordinal // questions if questions else 0 for ordinal, _ in draws]
    pairs = [(q, _demonstration(task, q, seed + EPOCH * e)) for (_, q), e in zip(draws, epochs, strict=True)]
    end = policy.eos_ids[0] if policy.tokenizer.eos_token_id is None else policy.tokenizer.eos_token_id
    tokens = Tokens.of(
        policy.encode_prompts([question.prompt for question, _ in pairs]),
        [[*ids, end] for ids in policy.encode_all([answer for _, answer in pairs])],
    )
    mask_bt = tokens.present_bt()
    ordinals = torch.tensor([ordinal for ordinal, _ in draws])
    return Batch(mask_bt=mask_bt, group_b=ordinals, reward_b=torch.ones(len(tokens)), inputs=tokens)


def _episode_batch(
    policy: Any,
    task: Task,
    draws: Sequence[tuple[int, Question]],
    seed: int,
    history: History,
    stage: Stage | None,
) -> Batch:
    """Lay episodes out that the environments act in themselves; the ordinal makes each pass over a question its own."""
    starts = [Start(question, answer_seed("demonstrate", seed, ordinal, 0)) for ordinal, question in draws]
    limits = {"max_turns": task.max_turns, "max_new_tokens": task.max_new_tokens, "positions": policy.max_positions}
    episodes = demonstrate(policy, task.environment, starts, agents=task.agents, history=history, stage=stage, **limits)
    if episodes.failures:
        raise InputError(episodes.failures[0].what, "a warm-up imitates environments that act in themselves")
    return Batch(
        mask_bt=torch.from_numpy(episodes.mask_bt),
        group_b=torch.tensor([draws[episode][0] for episode in episodes.episode_b.tolist()]),
        reward_b=torch.ones(len(episodes)),
        inputs=episodes.rollout.tokens.of_agents(episodes.agent_b),
    )


def warmup_rate(warmup: Warmup, step: int) -> float:
    """Learning rate of warm-up step `step` (from 0): linear rise, then linear fall to a tenth."""
    rise = min(1.0, (step + 1) / max(1, warmup.rise))
    return warmup.lr * rise * max(0.1, 1 - step / warmup.steps)


def _demonstration(task: Task, question: Question, seed: int) -> str:
    answer = task.demonstration(question, seed)
    if answer is None:
        raise InputError(
            f"the task '{task.name}' has no demonstrations, but warmup.steps is above 0",
            "a warm-up imitates demonstrations",
            "Set warmup.steps=0, or name a column that holds demonstrations",
        )
    return answer
