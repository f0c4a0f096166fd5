"""Check that a saved model answers in `transformers` like the policy from which it was saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from grouprl.core.errors import RunError
from grouprl.core.json_types import JsonObject
from grouprl.policy import CausalPolicy
from grouprl.policy.language.text import render_chat
from grouprl.policy.sharded.sharded_policy import ShardedPolicy
from grouprl.policy.teams.team_policy import TeamPolicy
from grouprl.processes.child_process import LoggedProcess, how_it_ended
from grouprl.processes.current_ranks import environment_without_ranks
from grouprl.protocols import Policy, Request
from grouprl.records.examples import Prompt
from grouprl.rollout.sampler import LocalSampler
from grouprl.tasks import Task
from grouprl.training.answer_in_transformers import Answer, main

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
    with policy.full_precision():
        sampled = LocalSampler(policy).sample([Request(ids, TOKENS, greedy=True) for ids in read])
    forms = [_form(policy, prompt) for prompt in prompts]
    return [Question(*form, *each) for form, *each in zip(forms, read, sampled.actions, strict=True)]


def _form(policy: CausalPolicy, prompt: Prompt) -> tuple[str | list[JsonObject], bool]:
    if isinstance(prompt, str):
        return prompt, False
    messages, text = [dict(message) for message in prompt], render_chat(policy.tokenizer, prompt)
    try:
        shown = policy.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception:  # templates raise errors of many types for messages that they do not support
        return text, True
    return (messages, False) if shown == text else (text, True)


def held_out_prompts(task: Task) -> list[Prompt]:
    """Return some prompts of the split `eval`; none if prompts begin episodes and have no text."""
    size = task.size("eval")
    examples = [task.example("eval", index) for index in range(PROMPTS if size is None else min(PROMPTS, size))]
    return [example.prompt for example in examples if example.prompt]


def check_saved(policy: Policy, folder: Path, prompts: Sequence[Prompt]) -> None:
    """Check the answers of the language model in `folder`, or of every member if the policy is a team.

    Raises:
        RunError: see `check_answers`.
    """
    if isinstance(policy, TeamPolicy):
        for name, member in policy.members.items():
            check_saved(member, folder / name, prompts)
        return
    whole = policy.whole if isinstance(policy, ShardedPolicy) else policy
    if isinstance(whole, CausalPolicy):
        check_answers(whole, folder, prompts or [_any_text(whole)])


def check_final_model(policy: Policy, folder: Path, task: Task) -> None:
    """Check the final model of a run, and keep its folder in any case.

    Raises:
        RunError: see `check_answers`.
    """
    check_saved(policy, folder, held_out_prompts(task))


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
    with TemporaryDirectory() as place:
        asking, answering = Path(place, "questions.json"), Path(place, "answers.json")
        asking.write_text(json.dumps(work), encoding="utf-8")
        environment = {**environment_without_ranks(), "HF_HUB_OFFLINE": "1"}
        child = LoggedProcess(main, asking, answering, environment=environment)
        try:
            code = child.wait()
        finally:
            child.end()
        if code:
            last = (child.last_output(2000).splitlines() or [how_it_ended(code)])[-1]
            raise RunError(f"transformers cannot use the saved model in {folder}: {last}")
        answers: list[Answer] = json.loads(answering.read_text(encoding="utf-8"))
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
