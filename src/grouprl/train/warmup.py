"""Supervised warm-up on a task's demonstrations: a demonstration is a group of one with advantage one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from grouprl.batch import Batch
from grouprl.errors import InputError
from grouprl.policy.tokens import Tokens
from grouprl.tasks.task import Question, Task
from grouprl.train.config import Warmup

EPOCH = 1_000_003
"""What the seed grows by from one epoch to the next, so that a question is demonstrated anew each time it comes."""


def demonstration_batch(
    policy: Any, task: Task, draws: Sequence[tuple[int, Question]], seed: int, *, questions: int | None = None
) -> Batch:
    """Lay demonstrations out as a Batch: B groups of one, every token of the answer and its end acted.

    `questions` is how many the stream has before it begins anew; None when it never ends.
    """
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
