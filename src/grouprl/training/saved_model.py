"""Check that a saved model answers in `transformers` like the policy from which it was saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from grouprl.core.errors import RunError
from grouprl.core.json_types import JsonObject
from grouprl.policy import CausalPolicy
from grouprl.policy.language.models_of import language_models_of
from grouprl.policy.language.reward_model import RewardModel
from grouprl.policy.language.users.user_reward_model import UserRewardModel
from grouprl.policy.state import as_policy
from grouprl.protocols import Policy, Request, Trainable
from grouprl.records.examples import Prompt
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.tasks import Task
from grouprl.training.answer_in_transformers import Answer, main
from grouprl.training.asked_process import answered, form_of
from grouprl.training.saved_scores import check_reloaded, check_scores, held_out_texts

PROMPTS = 6
TOKENS = 48
"""Number of compared tokens of an answer; a difference in reading or computing shows in the first few."""
TIES = {torch.float32: 1e-3, torch.float64: 1e-6}
HALF_TIE = 0.2
"""Nats by which log-probs of the best token may differ: two ways to compute a product round differently."""


@dataclass(frozen=True)
class Question:
    """A prompt as given to the saved model, its token ids, and the greedy answer of the policy."""

    prompt: str | list[JsonObject]
    rendered: bool
    """Whether the prompt is a rendered chat, because the template alone does not show everything in the messages."""
    ids: tuple[int, ...]
    expected: tuple[int, ...]


def questions(policy: CausalPolicy, prompts: Sequence[Prompt]) -> list[Question]:
    """Return the prompts with the policy's greedy answers."""
    read = [tuple(ids) for ids in policy.encode_prompts(list(prompts))]
    room = (policy.max_positions or math.inf) - max(map(len, read))
    budget = int(max(1, min(TOKENS, room)))
    with policy.full_precision():
        sampled = LocalSampler(policy).sample([Request(ids, budget, greedy=True) for ids in read])
    forms = [form_of(policy.tokenizer, prompt) for prompt in prompts]
    return [Question(*form, *each) for form, *each in zip(forms, read, sampled.actions, strict=True)]


def held_out_prompts(task: Task) -> list[Prompt]:
    """Return some prompts of the split `eval`; none if prompts begin episodes and have no text."""
    size = task.size("eval")
    examples = [task.example("eval", index) for index in range(PROMPTS if size is None else min(PROMPTS, size))]
    return [example.prompt for example in examples if example.prompt]


def check_saved(policy: Policy, folder: Path, prompts: Sequence[Prompt]) -> None:
    """Check the answers of the policy's language models in `folder`.

    Raises:
        RunError: see `check_answers`.
    """
    for name, model in language_models_of(policy).items():
        check_answers(model, folder / name, _read_by(model, prompts) or [_any_text(model)])


def check_final_model(model: Trainable, folder: Path, task: Task) -> None:
    """Check the saved model of a run on held-out prompts of its task, and keep its folder in any case.

    Raises:
        RunError: see `check_answers`, and `check_scores` for a reward model.
    """
    if isinstance(model, UserRewardModel):
        check_reloaded(model, folder, held_out_texts(task))
    elif isinstance(model, RewardModel):
        check_scores(model, folder, held_out_texts(task))
    else:
        check_saved(as_policy(model), folder, held_out_prompts(task))


def _read_by(policy: CausalPolicy, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts that a policy reads: without a chat template it reads no chats, as episodes show it texts."""
    chat = bool(getattr(policy.tokenizer, "chat_template", None))
    return [prompt for prompt in prompts if chat or isinstance(prompt, str)]


def _any_text(policy: CausalPolicy) -> str:
    """Return the text of some token, as a prompt for tasks whose prompts have no text."""
    return next(text for i in reversed(range(len(policy.tokenizer))) if (text := policy.decode([i]).strip()))


def check_answers(policy: CausalPolicy, folder: Path, prompts: Sequence[Prompt]) -> None:
    """Load `folder` in a fresh process with `transformers` alone, and compare its greedy answers with the policy's.

    Raises:
        RunError: a prompt has other token ids, an answer differs, or the folder cannot be loaded.
    """
    asked = questions(policy, prompts)
    found = _answers(policy, folder, asked)
    for question, answer in zip(asked, found, strict=True):
        _compare(policy, question, answer)


def _answers(policy: CausalPolicy, folder: Path, asked: Sequence[Question]) -> list[Answer]:
    work = {
        "folder": str(folder),
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "questions": [{"prompt": q.prompt, "rendered": q.rendered, "expected": q.expected} for q in asked],
    }
    answers: list[Answer] = answered(main, work, f"transformers cannot use the saved model in {folder}")
    return answers


def _compare(policy: CausalPolicy, question: Question, answer: Answer) -> None:
    if answer["prompt_ids"] != list(question.ids):
        raise RunError(
            f"the saved tokenizer reads the prompt {question.prompt!r} as {answer['prompt_ids'][:12]}, training read "
            f"{list(question.ids[:12])}: answers of the saved model are not those of the trained one"
        )
    tie = TIES.get(policy.model.dtype, HALF_TIE)
    if answer["gap"] > tie:
        raise RunError(
            f"the saved model answers {question.prompt!r} in transformers with {answer['text']!r}, the trained one "
            f"with {policy.decode(question.expected)!r} (a difference of {answer['gap']:.3g} nats, of which rounding "
            f"explains {tie})"
        )
