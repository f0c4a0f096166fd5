"""Resolution of a configuration: the only place where its names become a task, a method and a reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from grouprl.algorithms.data_part import alphabet_of
from grouprl.algorithms.method import Method
from grouprl.algorithms.references import reads_frozen
from grouprl.config.paths import OWN_REFERENCES
from grouprl.config.run import Config
from grouprl.core.late_import import is_late
from grouprl.core.outputs import DRAWN_SCORE, HEAD, PREFERENCE, SCORE, count_of
from grouprl.core.plugins import load_plugins
from grouprl.methods.compose import Resolved, compose
from grouprl.orchestrator.agents import model_names
from grouprl.orchestrator.reward import chosen_reward
from grouprl.policy.devices import device_name, dtype_name, exact_in
from grouprl.policy.kinds import policy_kind
from grouprl.policy.language.columns.score_columns import Columns
from grouprl.rollout.engines import LOCAL, ChosenEngine, chosen_engine
from grouprl.rollout.kinds.row_kinds import RowKind, row_kind
from grouprl.tasks import Task, load_task


@dataclass(frozen=True)
class ResolvedRun:
    """The objects that a configuration names. A command resolves it once and passes it on, so that all its steps use
    the same objects.

    `resolved` is the method, with the source of each of its numbers. `chat_decided` says that prompts are messages
    because the model has a chat template.
    """

    config: Config
    task: Task
    resolved: Resolved
    chat_decided: bool = False

    @property
    def method(self) -> Method:
        """The method of the run."""
        return self.resolved.method

    def with_precision(self, precision: str) -> ResolvedRun:
        """Return the run with the precision that `auto` selected, so that it resumes with it on any machine."""
        if self.config.model.precision != "auto":
            return self
        model = self.config.model.model_copy(update={"precision": precision})
        return replace(self, config=self.config.model_copy(update={"model": model}))

    @property
    def max_new_tokens(self) -> int:
        """The token budget of a completion: the configured one, otherwise the task's."""
        return self.config.sampling.max_new_tokens or self.task.max_new_tokens

    @property
    def updates_per_rollout(self) -> int:
        """The number of optimiser steps per rollout; the largest possible one if it depends on what is played."""
        batch, acts = self.config.batch, self.task.actions_per_step or self.task.max_turns * self.max_new_tokens
        return self.method.steps_of(batch.epochs, batch.minibatches, batch.prompts * batch.group_size * acts)

    @property
    def needs_reference(self) -> bool:
        """True if a frozen reference policy is needed."""
        chosen = self.config.model.reference
        return chosen not in ("auto", "none") or (chosen == "auto" and reads_frozen([*self.method.parts()]))

    @property
    def guides(self) -> Mapping[str, float]:
        """The share of each model in the average of weights that is the reference, by folder; `initial` is the policy
        as it began, and the result is empty if the reference is that alone.
        """
        chosen = self.config.model.reference
        if isinstance(chosen, dict):
            return {} if set(chosen) == {"initial"} else chosen
        return {} if chosen in OWN_REFERENCES else {chosen: 1.0}

    @property
    def needs_values(self) -> bool:
        """True if the policy needs a value head, because the method has a critic."""
        return self.method.critic is not None

    @property
    def scores(self) -> bool:
        """True if a reward model is trained, because the method reads scores of whole rows."""
        return SCORE in self.method.outputs or self.of_users or self.columns is not None

    @property
    def columns(self) -> Columns | None:
        """The names of the numbers that a reward model of several gives; None: it has one score, or none is trained."""
        attributes = count_of(self.method.outputs, HEAD)
        if attributes:
            from grouprl.algorithms.objective.score_error import AttributeErrors  # loads torch, other plans need none

            return Columns(next(p.attributes for p in self.method.parts() if isinstance(p, AttributeErrors)))
        coordinates = count_of(self.method.outputs, PREFERENCE)
        if not coordinates:
            return None
        from grouprl.algorithms.link.link import Link, slope_of

        names = tuple(f"preference_{number}" for number in range(1, coordinates + 1))
        return Columns(names, 1 / slope_of(next(p for p in self.method.parts() if isinstance(p, Link))))

    @property
    def of_users(self) -> bool:
        """True if the reward model is one whose score depends on its user."""
        return DRAWN_SCORE in self.method.outputs

    @cached_property
    def alphabet(self) -> str:
        """The characters that a character-level policy must know; "" if the task does not list any."""
        return alphabet_of(self.task, self.method.parts())

    @cached_property
    def engine(self) -> ChosenEngine:
        """The engine that makes the sampler of a policy.

        Raises:
            InputError: there is no such engine, or its settings do not fit it.
        """
        return chosen_engine(self.config.sampling.engine, self.config.sampling.arguments)

    @property
    def exact(self) -> bool:
        """True if the engine's log-probs are known beforehand to equal the trainer's."""
        if self.config.sampling.engine != LOCAL:
            return self.engine.exact
        return not self.rounded

    @property
    def rounded(self) -> bool:
        """True if the policy's weights or their products have half precision."""
        return not exact_in(self.dtype, self.config.model.precision)

    @property
    def dtype(self) -> str:
        """The name of the type of the policy's weights."""
        model, names = self.config.model, set(model_names(self.config, self.task).values())
        pretrained = policy_kind(model.name) is None and names != {"tiny"}
        return dtype_name(model.dtype, device_name(model.device), model.precision, pretrained=pretrained)

    @cached_property
    def row_kind(self) -> RowKind:
        """The class of the source of the run's rows.

        Raises:
            InputError: the task's environment does not have the methods of one.
        """
        return row_kind(self.task)

    @cached_property
    def reward(self) -> Callable[..., object]:
        """The function that scores completions in this process; it is loaded on first use, since an export needs none.

        Raises:
            InputError: it cannot be found, or needs a column that prompts lack.
        """
        return chosen_reward(self.config.reward, self.task)


def resolve(config: Config | ResolvedRun) -> ResolvedRun:
    """Return the objects that `config` names; a resolved run is returned unchanged.

    Raises:
        InputError: a plugin, method or task does not exist, or its options do not fit it.
    """
    if isinstance(config, ResolvedRun):
        return config
    load_plugins(config.plugins)
    return ResolvedRun(config, task_of(config), compose(config.method))


def task_of(config: Config) -> Task:
    """Return the task of `config`, for callers that need nothing else.

    A user's task may draw torch's random numbers while it is made: they are drawn with the run's seed, and the global
    state is restored.
    """
    if is_late("torch"):
        task = _task_of(config)
        if is_late("torch"):
            return task  # nothing was drawn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return _task_of(config)


def _task_of(config: Config) -> Task:
    return load_task(config.task, config.seed)
