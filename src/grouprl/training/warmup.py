"""Supervised warm-up on a task's demonstrations: a demonstration is a group of one with advantage one."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from grouprl.algorithms.data_part import DataPart
from grouprl.algorithms.warmup_examples import Lesson, Shown
from grouprl.config.sections import Warmup
from grouprl.core.batch import Batch
from grouprl.core.errors import GrouprlError, InputError, described
from grouprl.envs.environment import worth
from grouprl.envs.environment_pool import Stage
from grouprl.policy.language.text import encode_after
from grouprl.records.examples import Example
from grouprl.records.scores import Problem
from grouprl.records.tokens import Tokens
from grouprl.rewards.contract import LONGEST_MESSAGE, Failure
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rewards.scoring import shorten
from grouprl.rollout.episode_rows import environments
from grouprl.rollout.episodes import Episodes, Start, demonstrate
from grouprl.rollout.seeds import sample_seed
from grouprl.rollout.turn_text import History
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.records.token_policy import TokenPolicy

EPOCH = 1_000_003
"""Increase of the seed from one epoch to the next, so that each visit to a prompt gets a new demonstration."""


def demonstration_batch(
    policy: TokenPolicy,
    task: Task,
    numbered_examples: Sequence[tuple[int, Example]],
    seed: int,
    *,
    examples: int | None = None,
    history: History = "refuse",
    stage: Stage | None = None,
    teachers: Sequence[DataPart] = (),
    errors: ErrorPolicy | None = None,
) -> Batch | None:
    """Arrange demonstrations as a Batch: B groups of one, with all tokens of completion and end as actions.

    `examples` is the number of examples in the stream before it repeats; None if it never ends. An episode may have
    several rows, which form one group. `stage` runs the environments; None: in this process. With `teachers`, each
    episode is demonstrated twice, and their lessons are added. Unless `errors` is "raise", failed demonstrations are
    left out and counted against its budget (None: the first one ends the run). Returns None if all failed.

    Raises:
        RunError: a demonstration failed, and `errors` makes that end the run.
        InputError: the task has no demonstrations.
    """
    errors = errors or ErrorPolicy("raise")
    if environments(task) is not None:
        return _episode_batch(policy, task, numbered_examples, seed, history, stage, teachers, errors)
    epochs = [ordinal // examples if examples else 0 for ordinal, _ in numbered_examples]
    shown = [_demonstration(task, q, seed + EPOCH * e) for (_, q), e in zip(numbered_examples, epochs, strict=True)]
    _count(
        errors,
        [(example.id, completion, "") for (_, example), completion in zip(numbered_examples, shown, strict=True)],
    )
    good = [
        (n, q, completion)
        for (n, q), completion in zip(numbered_examples, shown, strict=True)
        if isinstance(completion, str)
    ]
    if not good:
        return None
    prompts = policy.encode_prompts([example.prompt for _, example, _ in good])
    completions = encode_after(policy, prompts, [completion for _, _, completion in good])
    tokens = Tokens.of(prompts, [[*ids, policy.eos_ids[0]] for ids in completions])
    if len(task.agents) > 1:
        tokens = tokens.of_agents([task.agent_of(example) for _, example, _ in good])
    mask_bt = tokens.present_bt()
    ordinals = torch.tensor([ordinal for ordinal, _, _ in good])
    return Batch(mask_bt=mask_bt, group_b=ordinals, reward_b=torch.ones(len(tokens)), inputs=tokens)


def _count(errors: ErrorPolicy, shown: Sequence[tuple[str, object, str]]) -> None:
    """Count demonstrations (prompt, completion or failure, transcript) against the budget of failures."""
    problems = [
        Problem(f"{name}#demonstration", found.status, found.what, shorten(said), found.trace, found.by)
        for name, found, said in shown
        if isinstance(found, Failure)
    ]
    errors.spend(np.array([isinstance(found, Failure) for _, found, _ in shown]), problems)


def _episode_batch(
    policy: TokenPolicy,
    task: Task,
    numbered_examples: Sequence[tuple[int, Example]],
    seed: int,
    history: History,
    stage: Stage | None,
    teachers: Sequence[DataPart],
    errors: ErrorPolicy,
) -> Batch | None:
    """Arrange episodes that the environments demonstrate; the ordinal distinguishes passes over a prompt."""
    numbered_examples = [*numbered_examples, *(numbered_examples if teachers else ())]
    times = np.arange(len(numbered_examples)) >= len(numbered_examples) / (2 if teachers else 1)
    starts = [
        Start(q, sample_seed("demonstrate", seed, n, int(k)))
        for (n, q), k in zip(numbered_examples, times, strict=True)
    ]
    episodes = demonstrate(
        policy,
        task.environment,
        starts,
        max_turns=task.max_turns,
        max_new_tokens=task.max_new_tokens,
        positions=policy.max_positions,
        agents=task.agents,
        history=history,
        stage=stage,
    )
    names = [example.id for _, example in numbered_examples]
    _count(errors, list(zip(names, episodes.outcomes, episodes.transcripts, strict=True)))
    good = [row for row, e in enumerate(episodes.episode_b) if not isinstance(episodes.outcomes[e], Failure)]
    if not good:
        return None
    tokens = episodes.rollout.tokens.of_agents(episodes.agent_b).rows(good)
    shown = Batch(
        mask_bt=torch.from_numpy(episodes.mask_bt)[good, : tokens.max_response],
        group_b=torch.tensor([numbered_examples[episode][0] for episode in episodes.episode_b[good].tolist()]),
        reward_b=torch.ones(len(good)),
        turn_bt=torch.from_numpy(episodes.turn_bt)[good, : tokens.max_response],
        inputs=tokens,
    )
    return (
        _with_lessons(policy, shown, tokens, episodes, [n for n, _ in numbered_examples], teachers)
        if teachers
        else shown
    )


def _with_lessons(
    policy: TokenPolicy,
    shown: Batch,
    tokens: Tokens,
    episodes: Episodes,
    ordinals: Sequence[int],
    teachers: Sequence[DataPart],
) -> Batch:
    """Add the lessons of `teachers` on every two episodes of a prompt; episodes with several rows are skipped."""
    once, half = episodes.per_episode(np.ones(len(episodes))) == 1, len(episodes.outcomes) // 2
    alone = [one and not isinstance(found, Failure) for one, found in zip(once, episodes.outcomes, strict=True)]
    row_of = dict(zip(episodes.episode_b.tolist(), range(len(episodes)), strict=True))
    found = [
        (ordinals[i], lesson)
        for i in range(half)
        if alone[i] and alone[i + half]
        for part in teachers
        for lesson in part.lessons(_shown(episodes, row_of[i]), _shown(episodes, row_of[i + half]), policy)
    ]
    if not found:
        return shown
    prompt_ids = [*tokens.prompt_ids, *policy.encode_prompts([lesson.prompt for _, lesson in found])]
    joined = Tokens.of(prompt_ids, [*tokens.response_ids, *(lesson.response_ids for _, lesson in found)])
    mask_bt = torch.zeros(len(joined), joined.max_response, dtype=torch.bool)
    mask_bt[: len(tokens), : tokens.max_response] = shown.mask_bt
    for row, (_, lesson) in enumerate(found, start=len(tokens)):
        mask_bt[row, : len(lesson.own)] = torch.tensor(lesson.own)
    group_b = torch.cat([shown.group_b, torch.tensor([group for group, _ in found])])
    return Batch(mask_bt=mask_bt, group_b=group_b, reward_b=torch.ones(len(joined)), inputs=joined)


def _shown(episodes: Episodes, row: int) -> Shown:
    """Return a demonstrated episode of one row."""
    outcome = episodes.verdicts[row]
    assert not isinstance(outcome, Failure), "those that failed are left out before"
    ids = episodes.rollout.response_ids[row]
    lesson = Lesson(episodes.prompts[row], tuple(ids), tuple(episodes.mask_bt[row, : len(ids)].tolist()))
    reward = outcome.get("reward", worth(outcome))
    return Shown(lesson, episodes.records[row].turns, float(reward), bool(outcome.get("correct", reward >= 1)))


def warmup_rate(warmup: Warmup, step: int) -> float:
    """Return the learning rate of warm-up step `step` (from 0): linear warm-up, then linear decay to a tenth."""
    rise = min(1.0, (step + 1) / max(1, warmup.warmup_steps))
    return warmup.lr * rise * max(0.1, 1 - step / warmup.steps)


def _demonstration(task: Task, example: Example, seed: int) -> str | Failure:
    try:
        completion = task.demonstration(example, seed)
    except GrouprlError:
        raise
    except (Exception, SystemExit) as error:
        what, trace = f"demonstration() raised {described(error)}", traceback.format_exc()
        return Failure(what[:LONGEST_MESSAGE], trace[-LONGEST_MESSAGE:], "error", "demonstration")
    if completion is None:
        raise InputError(
            f"the task '{task.name}' has no demonstrations, but warmup.steps is above 0",
            "a warm-up imitates demonstrations",
            "Set warmup.steps=0, or name a column that holds demonstrations",
        )
    return completion
