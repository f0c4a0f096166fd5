"""The data model: B scored sequences of T positions, in groups.

Suffixes name the shape: `_b` is [B], `_bt` is [B, T], `_bs` is [B, S] (S turns).
This module knows tensors only: nothing of text, models or methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Protocol

import torch

from grouprl.core.batch_rules import B_MAPPINGS, BT, BT_MAPPINGS, check
from grouprl.core.edges import Edges, moved
from grouprl.core.errors import InputError, suggest

if TYPE_CHECKING:
    from torch import Tensor

SOURCES = {
    "sampled": 0,
    "guided": 1,
    "demonstration": 2,
    "replay": 3,
    "reference": 4,
    "verification": 5,
    "extra": 6,
    "review": 7,
}
"""Sources of a row and their codes: sampled for this step, sampled with a hint, written by the task, sampled in an
earlier step, sampled by the initial policy, a prompt that asks whether a completion is correct, sampled in addition to
the group, the policy's review of an episode."""


class Rows(Protocol):
    """Anything that can be indexed by rows, such as the token ids a policy needs."""

    def rows(self, index: Tensor) -> Rows:
        """Return the rows of `index` ([N] int64)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """B sequences of T positions with their rewards, log-probs and groupings.

    Given by the caller: `mask_bt`, `group_b`, `reward_b` and whatever a method needs.
    Written by `Method.prepare`: `advantage_bt`, `loss_mask_bt`, `multiplier_bt`, `weight_bt`, `share_bt`,
    `share_b`, `group_share_b`, `edges['pairs']`, `step_row_b`, `step_group_b`, `step_size_b`, and of labels
    `step_liked_b`, `step_disliked_b`.
    """

    mask_bt: Tensor
    """[B,T] bool: positions that the policy itself wrote."""
    group_b: Tensor
    """[B] int64: which prompt a sequence completes. Rows of one group need not be adjacent."""
    reward_b: Tensor
    """[B] float: the scalar reward of each sequence."""
    rewards: Mapping[str, Tensor] = field(default_factory=dict)
    """Components of the reward, each [B]."""
    old_bt: Tensor | None = None
    """[B,T]: log-prob under the policy at the start of this update (the proximal policy)."""
    behavior_bt: Tensor | None = None
    """[B,T]: log-prob under the distribution that the token was really sampled from."""
    ref_bt: Tensor | None = None
    """[B,T]: log-prob under the reference policy."""
    refs: Mapping[str, Tensor] = field(default_factory=dict)
    """Log-probs under further references, each [B,T], by the names that parts give them: 'iterates' …"""
    entropy_bt: Tensor | None = None
    """[B,T]: entropy of the policy's distribution at each position, in nats, no gradient."""
    token_bt: Tensor | None = None
    """[B,T] int64: id of each token, for methods that compare completions token by token; anything outside the mask."""
    value_bt: Tensor | None = None
    """[B,T]: critic's value of the state before each token, no gradient."""
    final_value_b: Tensor | None = None
    """[B]: critic's value of the observation after the last action, no gradient. It counts where a limit cut the row
    (`truncated_b`); None: nothing is bootstrapped."""
    greedy_reward_b: Tensor | None = None
    """[B]: reward of the greedy completion of the same prompt (ReMax)."""
    token_reward_bt: Tensor | None = None
    """[B,T]: rewards per token, added to the sequence reward that sits on the last action token."""
    version_bt: Tensor | None = None
    """[B,T] int64: number of training steps of the policy that sampled each token, -1 outside; None: the current
    number."""
    turn_bt: Tensor | None = None
    """[B,T] int64: turn of each token, -1 outside."""
    turn_reward_bs: Tensor | None = None
    """[B,S]: reward per turn."""
    state_bs: Tensor | None = None
    """[B,S] int64: key of the state in which each turn began."""
    valid_bs: Tensor | None = None
    """[B,S] bool: whether the action of each turn was understood and allowed."""
    agent_b: Tensor | None = None
    """[B] int64: which agent wrote the sequence."""
    parent_b: Tensor | None = None
    """[B] int64: row of the sequence that called this one, -1 for none."""
    edges: Mapping[str, Edges] = field(default_factory=dict)
    """Named relations between rows: 'preferred' (which of two is better, by a judge) … `Method.prepare` writes 'pairs',
    which the objective compares, each with its share of the step."""
    keys: Mapping[str, Tensor] = field(default_factory=dict)
    """Further named groupings, each [B] int64: 'answer' (equal final answers), 'form', 'variant', 'budget' …"""
    source_b: Tensor | None = None
    """[B] int64: where a row comes from, one of the codes of `SOURCES`; None means all sampled for this step."""
    marks: Mapping[str, Tensor] = field(default_factory=dict)
    """Named sets of tokens, each [B,T] bool: 'plan' (planning phrases) …"""
    stats: Mapping[str, Tensor] = field(default_factory=dict)
    """Statistics of the policy computed on demand, each [B,T], no gradient: 'certainty', 'logp@1.2', 'influence' …"""
    row_outputs: Mapping[str, Tensor] = field(default_factory=dict)
    """Outputs of the model that are one number for each row, each [B], in a loss with gradient: 'score'."""
    past: Mapping[str, Tensor] = field(default_factory=dict)
    """Statistics of the prompt from earlier steps, each [B]: 'visits', 'mean', 'std', 'baseline' …"""
    step: int | None = None
    """Number of this step of the run, from 0."""
    steps: int | None = None
    """Number of steps in the run."""
    last_entropy: float | None = None
    """Mean token entropy of the completions of the previous step, in nats; None in the first."""
    truncated_b: Tensor | None = None
    """[B] bool: the sequence hit a limit instead of ending by itself."""
    correct_b: Tensor | None = None
    """[B] bool: verified right, the raw outcome before any shaping."""
    max_length: int | None = None
    """The largest number of tokens that a completion may have; None for no limit."""
    inputs: Rows | None = None
    """The policy's private payload, row by row (token ids for a language model)."""

    raw_reward_b: Tensor | None = None
    """[B]: the reward before any shaping, written by `Method.prepare`."""
    stat_b: Tensor | None = None
    """[B] bool: rows that take part in group statistics; None means all."""
    loss_mask_bt: Tensor | None = None
    """[B,T] bool: tokens that count in the loss and its denominators; None means `mask_bt`."""
    multiplier_bt: Tensor | None = None
    """[B,T]: detached factors of the policy loss; they do not change denominators. None means one.
    Values given by the caller are multiplied by the method's own factors."""
    advantage_bt: Tensor | None = None
    """[B,T]: the advantage of each token, zero outside the loss mask."""
    return_bt: Tensor | None = None
    """[B,T]: the critic's regression target."""
    weight_bt: Tensor | None = None
    """[B,T]: aggregation weights of the whole optimiser step; the loss is sum(weight_bt * token_loss_bt)."""
    share_bt: Tensor | None = None
    """[B,T]: weights of metrics of tokens: equal on all active tokens of the optimiser step's rows that carry a
    gradient."""
    share_b: Tensor | None = None
    """[B]: weights of metrics of rows: equal on all rows of the optimiser step that carry a gradient."""
    group_share_b: Tensor | None = None
    """[B]: weights of metrics of groups: equal on all groups with such rows, divided among these."""

    step_row_b: Tensor | None = None
    """[B] int64: number of each row in its optimiser step."""
    step_group_b: Tensor | None = None
    """[B] int64: number of rows of its group in the optimiser step."""
    step_size_b: Tensor | None = None
    """[B] int64: number of rows in the optimiser step."""
    step_liked_b: Tensor | None = None
    """[B] int64: number of liked rows of the optimiser step that carry a gradient; None unless the objective is of
    labels."""
    step_disliked_b: Tensor | None = None
    """[B] int64: number of disliked rows of the optimiser step that carry a gradient."""

    def __post_init__(self) -> None:
        check(self, self.__dataclass_fields__)

    @property
    def size(self) -> tuple[int, int]:
        """(B, T)."""
        return self.mask_bt.shape[0], self.mask_bt.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the rewards, in which everything is computed."""
        return self.reward_b.dtype

    @property
    def active_bt(self) -> Tensor:
        """[B,T] bool: tokens that count in the loss."""
        return self.mask_bt if self.loss_mask_bt is None else self.loss_mask_bt

    @property
    def stats_b(self) -> Tensor:
        """[B] bool: rows that count in group statistics."""
        return torch.ones_like(self.group_b, dtype=torch.bool) if self.stat_b is None else self.stat_b

    @property
    def outcome_b(self) -> Tensor:
        """[B] reward before any shaping."""
        return self.reward_b if self.raw_reward_b is None else self.raw_reward_b

    @property
    def total_reward_b(self) -> Tensor:
        """[B] reward of each sequence: the scalar reward plus the sum of its token rewards."""
        return self.reward_b if self.token_reward_bt is None else self.reward_b + self.token_reward_bt.sum(1)

    @property
    def length_b(self) -> Tensor:
        """[B] int64: number of action tokens of each sequence."""
        return self.mask_bt.sum(1)

    def from_source(self, name: str, *more: str) -> Tensor:
        """[B] bool: rows that come from the source `name` or from one of `more` (see `SOURCES`)."""
        source_b = torch.zeros_like(self.group_b) if self.source_b is None else self.source_b
        return reduce(or_, (source_b == SOURCES[name] for name in (name, *more)))

    def need(self, name: str, reader: str) -> Any:
        """Return field `name` ('stats.certainty' for an entry of a mapping), or raise InputError naming `reader`."""
        whole, _, key = name.partition(".")
        value = getattr(self, whole).get(key) if key else getattr(self, whole)
        if value is None:
            remedy = _REMEDY.get(name, _REMEDY.get(whole, f"Pass {name}=…")).format(key=key)
            raise InputError(f"{reader} needs batch.{name}, which is None", remedy=remedy)
        return value

    def grouping(self, key: str) -> Tensor:
        """[B] int64 ids of the grouping `key`: 'group', 'agent', or a name of `keys`; 'batch' is one single group."""
        if key == "batch":
            return torch.zeros_like(self.group_b)
        if key == "group":
            return self.group_b
        if key == "agent":
            return self.need("agent_b", "the grouping 'agent'")
        if key in self.keys:
            return self.keys[key]
        known = ", ".join(["batch", "group", "agent", *self.keys])
        raise InputError(f"unknown grouping '{key}'", f"known groupings of this batch: {known}")

    def replace(self, **changes: object) -> Batch:
        """Return a copy with some fields changed; only these are checked. TypeError on an unknown field."""
        copied = self._with(changes)
        check(copied, self.__dataclass_fields__ if "mask_bt" in changes else changes)
        return copied

    def _with(self, changes: Mapping[str, object]) -> Batch:
        if unknown := changes.keys() - self.__dataclass_fields__.keys():
            wrong = sorted(unknown)
            raise TypeError(f"Batch has no field {', '.join(wrong)}. {suggest(wrong[0], self.__dataclass_fields__)}")
        # `dataclasses.replace` would check every field again, in every pass of every step.
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, **changes)
        return copied

    def rows(self, index: Tensor) -> Batch:
        """Return the rows of `index` ([N] int64 or [B] bool), with every field."""
        if index.dtype == torch.bool:
            index = index.nonzero()[:, 0]
        changes: dict[str, object] = {}
        for name, value in self.__dict__.items():
            if isinstance(value, torch.Tensor):
                changes[name] = value.index_select(0, index)
            elif name in B_MAPPINGS or name in BT_MAPPINGS:
                changes[name] = {k: v.index_select(0, index) for k, v in value.items()}
        changes["edges"] = {k: v.rows(index, self.size[0]) for k, v in self.edges.items()}
        if self.inputs is not None:
            changes["inputs"] = self.inputs.rows(index)
        if self.parent_b is not None:
            # A parent is named by its row, and rows get new numbers here.
            changes["parent_b"] = moved(self.parent_b[index], index, self.size[0])
        return self._with(changes)

    def trim(self, length: int) -> Batch:
        """Return the batch cut to its first `length` positions; raises InputError if action tokens follow them."""
        if bool(self.mask_bt[:, length:].any()):
            raise InputError(f"cannot trim to {length} positions", "action tokens lie beyond them")
        cut: dict[str, object] = {n: getattr(self, n)[:, :length] for n in BT if getattr(self, n) is not None}
        cut |= {n: {k: v[:, :length] for k, v in getattr(self, n).items()} for n in BT_MAPPINGS}
        return self._with({"mask_bt": self.mask_bt[:, :length], **cut})

    def last_token_bt(self) -> Tensor:
        """[B,T] bool: the last action token of each sequence (nothing for a row without any)."""
        position = torch.arange(self.size[1], device=self.mask_bt.device)
        last = torch.where(self.mask_bt, position, -1).amax(1, keepdim=True)
        return self.mask_bt & (position == last)

    def broadcast(self, value_b: Tensor) -> Tensor:
        """Spread [B] over the action tokens: [B,T], zero outside `mask_bt`."""
        return value_b[:, None] * self.mask_bt.to(value_b.dtype)


_REMEDY = {
    "ref_bt": "Give the run a reference model (model.reference: initial) or drop the term that needs it.",
    "value_bt": "Give the policy a value head: the method needs a critic.",
    "greedy_reward_b": "Pass greedy_reward_b, [B]: the reward of a greedy completion of the row's prompt.",
    "old_bt": "Pass old_bt, the log-probs under the policy at the start of the update.",
    "behavior_bt": "Pass behavior_bt, the log-probs under the sampler.",
    "entropy_bt": "Ask the policy for entropies (policy.evaluate(inputs, ['entropy'])).",
    "token_bt": "Pass token_bt, the id of each token, [B,T] int64.",
    "turn_bt": "Pass turn_bt, the number of each token's turn from 0, -1 outside, [B,T] int64.",
    "truncated_b": "Pass truncated_b, which sequences hit the length limit.",
    "correct_b": "Pass correct_b, the raw correctness of each sequence, [B] bool.",
    "max_length": "Pass max_length, the largest completion length.",
    "version_bt": "Pass version_bt, after how many training steps of the policy each token was sampled.",
    "step": "Pass step=…, the number of the step from 0.",
    "steps": "Pass steps=…, how many steps the run has.",
    "last_entropy": "Pass last_entropy=…, the mean token entropy of the previous step.",
    "source_b": "Pass source_b, where each row comes from (grouprl.core.batch.SOURCES).",
    "keys.twin": (
        "Pass keys={{'twin': …}}, [B] int64: k for a completion, -k for a further row with the same one after the "
        "changed prompt, and 0 for a completion without such a row."
    ),
    "keys.opponent": "Pass keys={{'opponent': …}}, [B] int64: 1 for rows of the opponent, 0 for the policy's own.",
    "refs.iterates": (
        "Pass refs={{'iterates': …}}, [B,T]: log-probs under the policy as the present round began; in the first round "
        "these are ref_bt."
    ),
    "stats.collision": (
        "Pass stats={{'collision': …}}, [B,T]: Σ_a π(a)² of the distribution that each token came from "
        "(policy.evaluate(inputs, ['collision']) gives it); wpo needs none with alignment: none."
    ),
    "edges.similar": (
        "Pass edges={{'similar': Edges(index_e2, value_e)}} (grouprl.core.edges): the cosine of the "
        "prompts of each two rows of different groups."
    ),
    "rewards.margin": "Pass rewards={{'margin': …}}, [B]: by how much each row must be ahead where it is better.",
    "past.group_weight": "Pass past={{'group_weight': …}}, [B]: a factor of each row's pairs; 1 in one group of data.",
    "row_outputs": "Pass outputs={{'{key}': …}} to method.loss, [B] (model.evaluate(inputs, ['{key}']) gives it).",
    "keys": "Pass keys={{'{key}': …}}, [B] int64: equal numbers belong together.",
    "edges": "Pass edges={{'{key}': Edges(index_e2, value_e)}} (grouprl.core.edges): which rows belong together.",
    "rewards": "Pass rewards={{'{key}': …}}, [B]: a component of the reward.",
    "marks": "Pass marks={{'{key}': …}}, [B,T] bool.",
    "refs": "Pass refs={{'{key}': …}}, [B,T]: log-probs under that reference.",
    "stats": "Pass stats={{'{key}': …}}, [B,T] (policy.evaluate(inputs, ['{key}']) gives it).",
    "past": "Pass past={{'{key}': …}}, [B]: what was known of the prompt before.",
}
