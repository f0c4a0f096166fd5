"""Optimiser steps on shuffled actions, as in PPO for control: a rollout is cut without regard to rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import part
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.answering import Answering
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import Count
from grouprl.protocols import PolicyInputs, has_memory

BY_TURN = ("turn_reward_bs", "state_bs", "valid_bs", "parent_b", "edges")
"""Fields that have no meaning for a single action."""


@runtime_checkable
class SeparableInputs(Protocol, metaclass=Answering):
    """Inputs whose positions can be scored one by one (`grouprl.policy.ArrayInputs`)."""

    def positions(self) -> PolicyInputs:
        """Return every position as a row of its own, row after row."""


@part("update")
class Transitions(Update):
    """Each pass over the rollout takes its actions in random order, `size` at a time (Schulman et al. 2017,
    arXiv:1707.06347, algorithm 1).

    A row is then one action, so that optimiser steps have equal sizes however long episodes are; advantages, returns
    and their statistics are those of the whole rollout. `batch.epochs` counts the passes; `batch.minibatches` does not
    apply. *Differs from Stable-Baselines3*: the last, smaller set of a pass is spread over the others.
    """

    positions_alone = True
    cuts_rows = True
    size: Count = 64
    says = "take the rollout's actions in random order, {size} per optimiser step, whatever rows they are of"
    equation = "∇ over {size} actions drawn without replacement"

    @override
    def steps_of(self, epochs: int, minibatches: int, actions: int) -> int:
        return epochs * max(1, actions // self.size)

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps; yield the metrics of each."""
        for step in self.drawn(learner, actions_apart(prepared)):
            yield learner.take(step)

    def drawn(self, learner: UpdateSteps, apart: Batch) -> Iterator[Batch]:
        """Yield the weighted batch of each optimiser step, pass by pass; `apart` has a row for each action.

        Raises:
            InputError: the loss compares rows, or the policy remembers earlier ones.
        """
        if has_memory(learner.policy):
            raise InputError(
                f"the update '{self.name}' with a policy that remembers",
                "it scores each action by itself, and this policy's actions depend on what came before",
                "Take a method that keeps rows whole: ppo, grpo …",
            )
        count = apart.size[0]
        if learner.method.couples != "sequence":
            raise InputError(
                f"the update '{self.name}' with a loss that sees a whole {learner.method.couples}",
                "it cuts rows into their actions",
                "Leave out the part of the loss that compares rows, or the update",
            )
        for epoch in range(learner.epochs if count else 0):
            order = np.random.default_rng([learner.seed, epoch]).permutation(count)
            parts = count // self.size
            for chunk in np.array_split(order, parts) if parts > 1 else [order]:
                rows = apart.rows(torch.from_numpy(chunk)).replace(group_b=torch.arange(len(chunk)))
                yield learner.method.compute_loss_weights(rows)


def actions_apart(batch: Batch) -> Batch:
    """Return a batch with a row for each action that counts in the loss, in the order of rows and positions.

    Raises:
        InputError: the policy's inputs cannot be cut into actions.
    """
    if not isinstance(batch.inputs, SeparableInputs):
        raise InputError(
            f"the update 'transitions' on {type(batch.inputs).__name__}",
            "only policies over arrays score an action from its observation alone",
            "Leave it out: method: {name: ppo}",
        )
    row_n, step_n = batch.active_bt.nonzero(as_tuple=True)
    place_n = row_n * batch.size[1] + step_n
    kept_n = batch.active_bt[batch.mask_bt].nonzero()[:, 0]
    changes: dict[str, object] = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if field.name in BY_TURN:
            changes[field.name] = {} if field.name == "edges" else None
        elif isinstance(value, Tensor):
            changes[field.name] = _taken(value, field.name.endswith("_bt"), row_n, place_n)
        elif isinstance(value, Mapping):
            by_step = field.name in ("marks", "stats", "refs")
            changes[field.name] = {k: _taken(v, by_step, row_n, place_n) for k, v in value.items()}
    positions = batch.inputs.positions()
    inputs = positions if len(kept_n) == len(positions) else positions.rows(kept_n.tolist())
    group_b = torch.arange(len(row_n))
    return dataclasses.replace(batch, **{**changes, "inputs": inputs, "group_b": group_b})


def inputs_of(batch: Batch) -> PolicyInputs:
    """Return the inputs of a batch that has some, as every batch to update on does."""
    return cast("PolicyInputs", batch.inputs)


def _taken(value: Tensor, by_step: bool, row_n: Tensor, place_n: Tensor) -> Tensor:
    return value.reshape(-1, 1).index_select(0, place_n) if by_step else value.index_select(0, row_n)
