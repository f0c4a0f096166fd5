"""The reward of a run: loaded, moved into worker processes, and tested on completions with a known reward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

from grouprl.config.sections import Judge, Reward
from grouprl.config.sections.scoring import ScoringModels
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.records.examples import Split
from grouprl.rewards import check_reward, load_reward
from grouprl.rewards.catalogue.worker_choice import in_workers
from grouprl.rewards.contract import Reward as RewardFunction
from grouprl.rewards.contract import inspect_reward, missing_column
from grouprl.rewards.judging.judge import TrajectoryJudge
from grouprl.rewards.judging.judge_client import JudgeClient
from grouprl.rewards.judging.judge_text import RUBRIC
from grouprl.rewards.judging.measured import MeasuredReward
from grouprl.rewards.judging.pair_judge import PairJudge
from grouprl.rewards.judging.pair_text import PAIR_RUBRIC
from grouprl.rewards.judging.verdict_store import VerdictStore
from grouprl.rewards.reward_workers import RewardWorkers
from grouprl.rewards.validation import VerdictReward, plain_rewards
from grouprl.rollout.kinds.row_kinds import row_kind
from grouprl.tasks import Task
from grouprl.tasks.rows import RowTask

OWN = "task"
"""The name of the task's own reward."""


def open_reward(
    settings: Reward,
    task: Task,
    reward: RewardFunction | None = None,
    verdicts: Path | None = None,
    placed: VerdictReward | None = None,
    pace: Path | None = None,
) -> tuple[RewardFunction, list[str]]:
    """Return the reward that scores the completions of a run, and notes on it; `close_reward` ends its processes.

    `reward` is the chosen reward if it has already been looked up; `verdicts` is the folder of a judge's verdicts,
    None if they are not kept; `placed` is the reward computed by the workers of a cluster, if they compute it; `pace`
    is the file in which several processes keep a judge's limit of requests together, None if this process alone asks.

    Raises:
        InputError: it cannot be found, cannot be sent to workers although they are requested, or fails its self-test.
    """
    reward = chosen_reward(settings, task) if reward is None else reward
    if isinstance(reward, MeasuredReward):
        return _open_measured(reward, settings, task, verdicts, pace)
    if isinstance(reward, TrajectoryJudge | PairJudge):  # it waits for others, in threads, and sees whole groups
        folder = None if settings.judge is None else kept_in(settings.judge.cache, verdicts)
        client = replace(reward.client, shared_pace=pace)
        return replace(reward, client=client, store=None if folder is None else VerdictStore(folder)), []
    if getattr(reward, "sees_groups", False):  # it stays in this process, and no completion is right by itself
        return reward, []
    limits = {"timeout": settings.timeout, "memory_gb": settings.memory_gb}
    scorer, note = (placed, "") if placed is not None else in_workers(reward, settings.workers, **limits)
    if settings.self_test:
        examples = None if settings.function else task.reward_examples() or None
        try:
            check_reward(scorer, examples, correct_at=settings.correct_at)
        except InputError as error:
            close_reward(scorer)
            rule = error.rule or "a reward is tested on completions whose reward is known before it is trusted"
            remedy = error.remedy or "Fix the reward or its examples; reward.self_test=false skips the test."
            raise InputError(error.what, rule, remedy) from error
    return scorer, [note] if note else []


def chosen_reward(settings: Reward, task: Task) -> RewardFunction:
    """Return the reward that a run uses, checked against the columns of the task's prompts.

    Raises:
        InputError: it cannot be found, or needs a column that prompts lack.
    """
    learned = _learned_reward(settings)
    if learned is not None:
        return learned if settings.gold is None else MeasuredReward(learned, _gold_reward(settings.gold, task))
    reward = load_reward(settings.function) if settings.function else task.reward
    if not row_kind(task).samples:  # rewards are stored with the rows: nothing calls a function
        return reward
    if isinstance(task, RowTask):
        task.check_columns(reward)
    elif settings.function:
        _check_first(reward, task)
    return reward


def _learned_reward(settings: Reward) -> RewardFunction | None:
    """Return the judge or the reward model that the settings name, or None."""
    if settings.judge is not None:
        return judge_of(settings.judge)
    if settings.model is None:
        return None
    from grouprl.orchestrator.compared_reward import compares, load_comparison
    from grouprl.orchestrator.model_reward import load_model_reward, model_folder

    chosen = settings.model
    comparing = [name for name in chosen.names if compares(model_folder(name))]
    if comparing:
        refuse_beside(chosen, comparing[0])
        return load_comparison(model_folder(comparing[0]), chat=chosen.chat, device=chosen.device, dtype=chosen.dtype)
    return load_model_reward(
        chosen.names,
        combine=chosen.combine,
        spread=chosen.spread,
        chat=chosen.chat,
        steps=chosen.steps,
        separator=chosen.separator,
        after=chosen.after,
        strict=chosen.strict,
        weights=chosen.weights,
        device=chosen.device,
        dtype=chosen.dtype,
    )


def refuse_beside(chosen: ScoringModels, folder: str) -> None:
    """Refuse options of scores beside a preference model.

    Raises:
        InputError: there are some; the message names one of them.
    """
    plain = ScoringModels(name=chosen.name, chat=chosen.chat, device=chosen.device, dtype=chosen.dtype)
    other = next((key for key in ScoringModels.model_fields if getattr(chosen, key) != getattr(plain, key)), None)
    if other is not None or len(chosen.names) > 1:
        raise InputError(
            f"reward.model.{other or 'name'} beside the preference model {folder}",
            "it compares completions and gives no scores to be combined, weighed or cut",
            "Name this folder alone",
        )


def _gold_reward(name: str | JsonObject, task: Task) -> RewardFunction:
    """Return the reward that is measured and not paid, checked against the columns of the task's prompts."""
    reward = task.reward if name == OWN else load_reward(name)
    if isinstance(task, RowTask):
        task.check_columns(reward)
    else:
        _check_first(reward, task)
    return reward


def _open_measured(
    reward: MeasuredReward, settings: Reward, task: Task, verdicts: Path | None, pace: Path | None
) -> tuple[RewardFunction, list[str]]:
    paid, notes = open_reward(settings, task, reward.paid, verdicts, pace=pace)
    gold, note = in_workers(reward.gold, settings.workers, timeout=settings.timeout, memory_gb=settings.memory_gb)
    return MeasuredReward(paid, gold), [*notes, *([note] if note else [])]


def kept_in(cache: bool | str, own: Path | None) -> Path | None:
    """Return the folder of a judge's verdicts: the one that is named, or the run's own; None if they are not kept."""
    if isinstance(cache, str):
        return Path(cache).expanduser()
    return own if cache else None


def judge_of(settings: Judge) -> TrajectoryJudge | PairJudge:
    """Return the judge that a run's settings name.

    Raises:
        InputError: the address is not a URL.
    """
    names = (settings.url, settings.model, settings.key_env)
    client = JudgeClient(*names, settings.timeout, settings.tries, per_minute=settings.per_minute)
    if settings.compare:
        return PairJudge(
            client,
            settings.rubric or PAIR_RUBRIC,
            settings.samples,
            settings.both_orders,
            settings.tokens,
            settings.temperature,
            settings.at_once,
            settings.characters,
            settings.seed,
            knock_out=settings.compare == "tournament",
        )
    return TrajectoryJudge(
        client,
        settings.rubric or RUBRIC,
        settings.tokens,
        settings.temperature,
        settings.json_schema,
        settings.at_once,
        settings.characters,
        settings.seed,
    )


def _check_first(reward: RewardFunction, task: Task) -> None:
    """Check a function against the columns of the first prompt of each split."""
    for split in get_args(Split):
        if task.size(split) != 0:
            example = task.example(split, 0)
            for function in plain_rewards(reward):
                for name in inspect_reward(function).required:
                    if name not in example.columns:
                        raise missing_column(name, example.columns, function, f"prompt {example.id}")


def close_reward(reward: object) -> None:
    """End the worker processes of a reward, if it has any."""
    if isinstance(reward, MeasuredReward):
        close_reward(reward.gold)
    if isinstance(reward, RewardWorkers):
        reward.close()


@contextmanager
def opened_reward(settings: Reward, task: Task) -> Iterator[tuple[RewardFunction, list[str]]]:
    """Yield the result of `open_reward`, and close the reward at the end of the block."""
    reward, notes = open_reward(settings, task)
    try:
        yield reward, notes
    finally:
        close_reward(reward)
