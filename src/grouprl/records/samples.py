"""Scored rows of any policy on their way to becoming a Batch; rows of text are in `grouprl.records.text_samples`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from grouprl.core.batch import SOURCES, Batch
from grouprl.core.edges import Edges
from grouprl.core.errors import InputError
from grouprl.protocols import PolicyInputs
from grouprl.records.episode_records import Record
from grouprl.records.examples import Example, prompt_text
from grouprl.records.rollout import Rollout
from grouprl.records.scores import Scores

if TYPE_CHECKING:
    from torch import Tensor

Rows = TypeVar("Rows", bound="ScoredSamples")


@dataclass(frozen=True)
class ScoredSamples:
    """B scored rows of any policy; `valid_b` marks those that may be trained on."""

    examples: tuple[Example, ...]
    """[B] the prompt of each row."""
    group_b: np.ndarray
    """[B] number of the group: the ordinal of the prompt in this run; one number per (prompt, agent) where the
    task has several agents."""
    index_b: np.ndarray
    """[B] number of the prompt in the task's training split."""
    sample_b: np.ndarray
    """[B] number of the completion among those of its prompt; all rows of an episode have the same."""
    rollout: Rollout
    scores: Scores
    valid_b: np.ndarray
    source_b: np.ndarray
    """[B] int64 code of `grouprl.core.batch.SOURCES`."""
    foreign_b: np.ndarray
    """[B] bool: the log-probs of the rollout are not those of the policy at its own temperature."""
    greedy_reward_b: np.ndarray | None = None
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Further Batch fields, [B, ...] by name: `keys.budget`, `past.advantage`, `turn_bt`, `turn_reward_bs` …"""
    records: tuple[Record | None, ...] | None = None
    """[B] for episodes, the turns of the row and the agent that acted; None if no row belongs to an episode."""
    edges: Mapping[str, Edges] = field(default_factory=dict)
    """Relations between the rows by name: a preference matrix, a tree. They become `Batch.edges`."""

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def inputs(self) -> PolicyInputs:
        """Inputs from which the policy scores the rows."""
        return self.rollout.inputs

    def openings(self) -> tuple[str, ...]:
        """Return [B] what the policy was shown first, for readers."""
        return tuple(prompt_text(example.prompt) for example in self.examples)

    def transcripts(self) -> tuple[str, ...]:
        """Return [B] what the policy did, for readers."""
        return tuple(map(self.transcript, range(len(self))))

    def transcript(self, row: int) -> str:
        """Return what the policy did in a row, for readers: the turns of an episode; '' without a record."""
        record = None if self.records is None else self.records[row]
        return "" if record is None else record.transcript()

    @property
    def ordinal_b(self) -> np.ndarray:
        """[B] ordinal of the prompt in this run, the same for all agents."""
        return self.extras.get("keys.prompt", self.group_b)

    @property
    def context_b(self) -> np.ndarray:
        """[B] number of the row within its episode, from 0."""
        return self.extras.get("keys.context", np.zeros(len(self), dtype=np.int64))

    @cached_property
    def row_keys(self) -> list[tuple[int, int, int]]:
        """A unique key of each row: (ordinal of the prompt, number of the completion, number of the row within it)."""
        return list(zip(self.ordinal_b.tolist(), self.sample_b.tolist(), self.context_b.tolist(), strict=True))

    @cached_property
    def first_b(self) -> np.ndarray:
        """[B] bool: True for one row of each completion or episode, the one that began first."""
        if "keys.episode" not in self.extras:
            return np.ones(len(self), dtype=bool)
        order = np.lexsort((np.arange(len(self)), self.context_b))
        _, places = np.unique(self.extras["keys.episode"][order], return_index=True)
        first_b = np.zeros(len(self), dtype=bool)
        first_b[order[places]] = True
        return first_b

    @cached_property
    def acted_bt(self) -> np.ndarray:
        """[B,T] bool: True for tokens that the policy wrote, False for those that an environment wrote between them."""
        acted_bt = self.rollout.inputs.present_bt().numpy()
        given_bt = self.extras.get("mask_bt")
        return acted_bt if given_bt is None else acted_bt & given_bt[:, : acted_bt.shape[1]]

    @cached_property
    def length_b(self) -> np.ndarray:
        """[B] int64: number of tokens that the policy wrote."""
        return self.acted_bt.sum(1)

    def with_extras(self: Rows, **extras: np.ndarray) -> Rows:
        """Return the rows with further columns; `__` in a name stands for its dot (`keys__budget`)."""
        named = {name.replace("__", "."): values for name, values in extras.items()}
        return replace(self, extras={**self.extras, **named})

    def with_edges(self: Rows, **edges: Edges) -> Rows:
        """Return the rows with further relations between them.

        Raises:
            InputError: an edge to a row that does not exist.
        """
        for name, own in edges.items():
            if bool(((own.index_e2 < 0) | (own.index_e2 >= len(self))).any()):
                what = f"edges['{name}'] joins rows up to {int(own.index_e2.max())}"
                raise InputError(what, f"the rows are numbered 0 to {len(self) - 1}", "Leave out other edges")
        return replace(self, edges={**self.edges, **edges})

    def with_source(self: Rows, name: str) -> Rows:
        """Return the rows with every source set to `name`."""
        return replace(self, source_b=np.full(len(self), SOURCES[name], dtype=np.int64))

    def own_rows(self, index: np.ndarray) -> dict[str, object]:
        """Return the columns of the rows `index` [N] that only this kind of rows has."""
        return {}

    def own_joined(self: Rows, others: Sequence[Rows]) -> dict[str, object]:
        """Return the columns that only this kind of rows has, followed by those of `others`."""
        return {}


def subset(samples: Rows, rows: np.ndarray) -> Rows:
    """Return the rows `rows` ([N] int or [B] bool); `samples` itself if these are all its rows in order."""
    index = np.flatnonzero(rows) if rows.dtype == bool else rows
    if np.array_equal(index, np.arange(len(samples))):
        return samples
    rollout, scores, where = samples.rollout, samples.scores, torch.from_numpy(index)
    return replace(
        samples,
        examples=tuple(samples.examples[i] for i in index),
        group_b=samples.group_b[index],
        index_b=samples.index_b[index],
        sample_b=samples.sample_b[index],
        rollout=Rollout(
            inputs=rollout.inputs.rows(index.tolist()),
            logp_bt=rollout.logp_bt[where],
            entropy_bt=rollout.entropy_bt[where],
            truncated_b=rollout.truncated_b[where],
            exact=rollout.exact,
            version_bt=None if rollout.version_bt is None else rollout.version_bt[where],
        ),
        scores=subset_scores(scores, index),
        valid_b=samples.valid_b[index],
        source_b=samples.source_b[index],
        foreign_b=samples.foreign_b[index],
        greedy_reward_b=None if samples.greedy_reward_b is None else samples.greedy_reward_b[index],
        extras={name: values[index] for name, values in samples.extras.items()},
        records=None if samples.records is None else tuple(samples.records[i] for i in index),
        edges={name: edges.rows(where, len(samples)) for name, edges in samples.edges.items()},
        **samples.own_rows(index),
    )


def subset_scores(scores: Scores, index: np.ndarray) -> Scores:
    """Return the scores of the rows `index` [N]."""
    return Scores(
        reward_b=scores.reward_b[index],
        components={name: values[index] for name, values in scores.components.items()},
        correct_b=scores.correct_b[index],
        status_b=scores.status_b[index],
        problems=scores.problems,
        graded=scores.graded,
        lost_b=None if scores.lost_b is None else scores.lost_b[index],
    )


def sort_by_group(samples: Rows) -> Rows:
    """Bring the rows of each group together, groups in the order of their numbers, rows in their order."""
    return subset(samples, np.argsort(samples.group_b, kind="stable"))


def to_batch(samples: ScoredSamples, *, max_length: int) -> Batch:
    """Arrange scored rows as a Batch of B rows and T positions, the length of the longest completion.

    All tokens count as the policy's own, in one turn, unless the extras `mask_bt` and `turn_bt` say otherwise. If
    log-probs are foreign, the policy still has to compute `old_bt`.
    """
    rollout, scores = samples.rollout, samples.scores
    width = rollout.inputs.width
    mask_bt = torch.from_numpy(samples.acted_bt)
    reward_b = torch.from_numpy(scores.reward_b).to(rollout.logp_bt.dtype)
    behavior_bt = rollout.logp_bt[:, :width]
    batch = Batch(
        mask_bt=mask_bt,
        group_b=torch.from_numpy(samples.group_b),
        reward_b=reward_b,
        rewards={name: torch.from_numpy(x).to(reward_b.dtype) for name, x in scores.components.items()},
        behavior_bt=behavior_bt,
        old_bt=behavior_bt,
        entropy_bt=rollout.entropy_bt[:, :width],
        greedy_reward_b=_optional(samples.greedy_reward_b, reward_b.dtype),
        truncated_b=rollout.truncated_b,
        correct_b=torch.from_numpy(scores.correct_b),
        source_b=torch.from_numpy(samples.source_b),
        token_bt=_action_ids(rollout),
        turn_bt=torch.where(mask_bt, 0, -1),
        edges=samples.edges,
        max_length=max_length,
        inputs=samples.inputs,
    )
    extras = {name: values for name, values in samples.extras.items() if name != "mask_bt"}
    batch = batch.replace(**_extra_fields(batch, extras)) if extras else batch
    if "keys.caller" in extras:
        batch = batch.replace(parent_b=_callers(batch))
    return batch if len(extras) == len(samples.extras) else _without_empty_turns(batch)


def _callers(batch: Batch) -> Tensor:
    """Return [B] the row of each row's caller; -1 if it has none or the caller is not in the batch."""
    episodes, contexts, callers = (batch.keys[name].tolist() for name in ("episode", "context", "caller"))
    row_of = {key: row for row, key in enumerate(zip(episodes, contexts, strict=True))}
    found = [row_of.get(key, -1) for key in zip(episodes, callers, strict=True)]
    return torch.tensor(found, dtype=torch.int64)


def _without_empty_turns(batch: Batch) -> Batch:
    """Set turn and state to -1 beyond an episode's turns, where joining it with longer rows has put zeros."""
    assert batch.turn_bt is not None
    turn_bt = torch.where(batch.mask_bt, batch.turn_bt, -1)
    if batch.state_bs is None:
        return batch.replace(turn_bt=turn_bt)
    there_bs = torch.arange(batch.state_bs.shape[1]) <= turn_bt.amax(1, keepdim=True)
    return batch.replace(turn_bt=turn_bt, state_bs=torch.where(there_bs, batch.state_bs, -1))


def _extra_fields(batch: Batch, extras: Mapping[str, np.ndarray]) -> dict[str, object]:
    """Return the Batch fields of the extra columns: dotted names go into their mapping, token columns are cut to T."""
    fields: dict[str, Any] = {}
    for name, values in extras.items():
        whole, _, key = name.partition(".")
        tensor = torch.from_numpy(values)
        tensor = tensor.to(batch.dtype) if tensor.is_floating_point() else tensor
        tensor = _fit(tensor, batch.size[1]) if whole.endswith("_bt") or whole in ("marks", "stats") else tensor
        fields[whole] = {**fields.get(whole, getattr(batch, whole)), key: tensor} if key else tensor
    return fields


def _fit(tensor: Tensor, width: int) -> Tensor:
    """Cut or pad [B, T'] to [B, width]."""
    return torch.nn.functional.pad(tensor, (0, max(0, width - tensor.shape[1])))[:, :width]


def _action_ids(rollout: Rollout) -> Tensor:
    """Return the number of each action or token, [B,T] int64, -1 where there is none."""
    present_bt = rollout.inputs.present_bt()
    token_bt = torch.full(present_bt.shape, -1)
    flat = np.fromiter((number for ids in rollout.action_ids for number in ids), dtype=np.int64)
    token_bt[present_bt] = torch.from_numpy(flat)
    return token_bt


def _optional(values: np.ndarray | None, dtype: torch.dtype) -> Tensor | None:
    return None if values is None else torch.from_numpy(values).to(dtype)
