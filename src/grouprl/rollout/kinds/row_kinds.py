"""The choice of the source of rows that a task needs, made once when a run is resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.config.run import Config
from grouprl.envs.environment_pool import Stage
from grouprl.envs.environment_pool_choice import open_stage
from grouprl.protocols import RunSampler, Trainable
from grouprl.records.offline import StoredRows, samples_evaluations
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.completion_rows import CompletionRows
from grouprl.rollout.episode_rows import environments
from grouprl.rollout.kinds.text_episodes import TextEpisodes
from grouprl.rollout.offline_rows import OfflineRows
from grouprl.rollout.row_settings import RowSettings
from grouprl.rollout.row_source import ScoringSource
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.rewards.contract import Reward

RowKind = type[ScoringSource]
"""A class of sources, which describes its rows before a source is made."""


def row_kind(task: Task) -> RowKind:
    """Return the class whose sources give the rows of `task`.

    Raises:
        InputError: the task's environment lacks the methods of one.
    """
    if isinstance(task, StoredRows):
        return OfflineRows if task.spaces is None else _kind_of_arrays(task)
    if environments(task) is None:
        return CompletionRows
    return TextEpisodes if task.spaces is None else _kind_of_arrays(task)


def _kind_of_arrays(task: Task) -> RowKind:
    from grouprl.rollout.vectors.lane_rows import LaneRows
    from grouprl.rollout.vectors.stored_episodes import StoredEpisodes
    from grouprl.rollout.vectors.vector_episodes import VectorEpisodes

    if isinstance(task, StoredRows):
        return StoredEpisodes
    return VectorEpisodes if task.actions_per_step is None else LaneRows


def evaluation_kind(task: Task) -> RowKind:
    """Return the class whose sources an evaluation of `task` uses: of stored rows with a true reward, sampled ones."""
    return CompletionRows if samples_evaluations(task) else row_kind(task)


def open_rows(
    config: Config,
    task: Task,
    policy: Trainable,
    reward: Reward,
    max_new_tokens: int,
    errors: ErrorPolicy,
    *,
    kind: RowKind | None = None,
    sampler: RunSampler | None = None,
    stage: Stage | None = None,
) -> ScoringSource:
    """Return the source of a run's rows. Environments run in the pool `stage`; None: in a pool that is opened and
    closed with the source.

    `kind` is the class of the source; None: the one that the task needs.
    """
    kind = kind or row_kind(task)
    note = ""
    if kind.acts and stage is None:
        acting = config.environment
        stage, note = open_stage(task, acting.workers, timeout=acting.timeout, memory_gb=acting.memory_gb)
    settings = RowSettings.of(config, max_new_tokens)
    source = kind(task, policy, reward, settings, errors=errors, sampler=sampler, stage=stage)
    source.notes = (note,) if note else ()
    return source
