"""The rules of a `Batch`: the shapes, types and values of its fields, and the messages for broken ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from grouprl.core.edges import Edges
from grouprl.core.errors import InputError
from grouprl.core.levels import compact

if TYPE_CHECKING:
    from torch import Tensor

BT = {
    *("old_bt", "behavior_bt", "ref_bt", "entropy_bt", "value_bt", "token_reward_bt", "turn_bt"),
    *("version_bt", "token_bt", "loss_mask_bt", "multiplier_bt", "advantage_bt", "return_bt", "weight_bt", "share_bt"),
}
BT_MAPPINGS = ("marks", "stats", "refs")
B_MAPPINGS = ("rewards", "keys", "past", "row_outputs")
MAPPINGS = {*BT_MAPPINGS, *B_MAPPINGS}
B = {
    *("group_b", "reward_b", "final_value_b", "greedy_reward_b", "agent_b", "parent_b", "truncated_b", "correct_b"),
    *("stat_b", "raw_reward_b", "source_b", "step_row_b", "step_group_b", "step_size_b", "share_b", "group_share_b"),
    *("step_liked_b", "step_disliked_b"),
}
FLOATS = (
    *("reward_b", "old_bt", "behavior_bt", "ref_bt", "entropy_bt", "value_bt", "token_reward_bt"),
    *("final_value_b", "greedy_reward_b", "turn_reward_bs", "raw_reward_b"),
    *("multiplier_bt", "advantage_bt", "return_bt", "weight_bt"),
)
FLOAT_MAPPINGS = ("stats", "refs")
"""Mappings whose entries must be finite on action tokens."""
SHAPED = ("_b", "_bt", "_bs")
REQUIRED = ("mask_bt", "group_b", "reward_b")
BOOLS = ("valid_bs", "loss_mask_bt", "truncated_b", "correct_b", "stat_b")


class WrongField(InputError):
    """A field has the wrong shape or type, regardless of its values."""


class Checked(Protocol):
    """The attributes of a `Batch` on which the rules rely; they read the fields that they check by name."""

    @property
    def mask_bt(self) -> Tensor:
        """[B,T] bool: positions that the policy itself wrote."""

    @property
    def group_b(self) -> Tensor:
        """[B] int64: which prompt a sequence completes."""

    @property
    def reward_b(self) -> Tensor:
        """[B] float: the scalar reward of each sequence."""

    @property
    def token_bt(self) -> Tensor | None:
        """[B,T] int64: id of each token."""

    @property
    def edges(self) -> Mapping[str, Edges]:
        """Named relations between rows."""

    @property
    def size(self) -> tuple[int, int]:
        """(B, T)."""

    def need(self, name: str, reader: str) -> Any:
        """Return a field, or raise InputError naming `reader`."""


def check(batch: Checked, names: Collection[str]) -> None:
    """Check the fields `names`; if the mask is among them, all others must be, too."""
    _check_kinds(batch, names)
    if "edges" in names:
        _check_edges(batch)
    if "mask_bt" in names:
        _check_mask(batch.mask_bt)
    _check_shapes(batch, names)
    _check_types(batch, names)
    _check_values(batch, names)


def check_whole(batch: Checked, couples: str, name: str) -> None:
    """Check that the batch has every row of a step that a loss couples, each exactly once.

    Raises:
        InputError: `couples` is 'group' and a group is incomplete, or it is 'batch' and the step is incomplete.
    """
    if couples == "sequence":
        return
    row_b, reader = batch.need("step_row_b", f"the loss of '{name}' (call method.prepare first)"), f"'{name}'"
    step_b, group_b = batch.need("step_size_b", reader), batch.need("step_group_b", reader)
    present = len(torch.unique(row_b))
    if present < len(row_b):
        raise InputError(
            f"{len(row_b) - present} rows of the step are in the batch more than once",
            f"the loss of '{name}' compares the rows of a {couples}, each once",
            "Give method.loss every row once",
        )
    short = step_b != len(row_b) if couples == "batch" else group_b != _together(batch.group_b)
    if bool(short.any()):
        row = int(short.nonzero()[0, 0])
        whole = int(step_b[row]) if couples == "batch" else int(group_b[row])
        here = len(row_b) if couples == "batch" else int((batch.group_b == batch.group_b[row]).sum())
        what = "the step" if couples == "batch" else f"group {int(batch.group_b[row])}"
        raise InputError(
            f"{here} of the {whole} rows of {what} are here",
            f"the loss of '{name}' compares the rows of a {couples} (couples = '{couples}'), so it needs them all; the "
            "losses of its pieces do not add up to its loss",
            _REMEDY[couples],
        )


_REMEDY = {
    "group": "Cut a step by whole groups, or take the loss of the whole step on log-probs as leaves and pass their "
    "gradients back through the model piece by piece",
    "batch": "Take the loss of the whole step on log-probs as leaves, and pass their gradients back through the model "
    "piece by piece",
}


def _together(group_b: Tensor) -> Tensor:
    """Return the number of rows in the group of each row, [B] int64."""
    index_b, groups = compact(group_b)
    return torch.ones_like(index_b) if groups == len(index_b) else torch.bincount(index_b, minlength=groups)[index_b]


def numbered(group_b: Tensor) -> dict[str, Tensor]:
    """Return three [B] int64 tensors: each row's number in the step, the size of its group, the size of the step.

    From these, `check_whole` sees which rows a caller left out.
    """
    row_b = torch.arange(len(group_b), device=group_b.device)
    return {
        "step_row_b": row_b,
        "step_group_b": _together(group_b),
        "step_size_b": torch.full_like(row_b, len(group_b)),
    }


def _check_kinds(batch: Checked, names: Collection[str]) -> None:
    """Refuse fields that are not tensors, or not mappings of tensors, although they must be."""
    for name in names:
        value = getattr(batch, name)
        if name in MAPPINGS:
            if not isinstance(value, Mapping):
                raise WrongField(f"{name} is of type {type(value).__name__}", "it must be a mapping of tensors by name")
            for key, column in value.items():
                if not isinstance(column, torch.Tensor):
                    raise WrongField(f"{name}['{key}'] is of type {type(column).__name__}", "it must be a tensor")
        elif not isinstance(value, torch.Tensor) and (
            name in REQUIRED or (name.endswith(SHAPED) and value is not None)
        ):
            raise WrongField(f"{name} is of type {type(value).__name__}", "it must be a tensor")


def _check_mask(mask_bt: Tensor) -> None:
    if mask_bt.ndim != 2 or mask_bt.dtype != torch.bool:
        raise WrongField(
            f"mask_bt has shape {list(mask_bt.shape)} and type {mask_bt.dtype}", "it must be [B,T] and bool"
        )
    if len(mask_bt) and not bool(mask_bt.any()):
        raise InputError(
            f"mask_bt has no action token in any of its {len(mask_bt)} rows",
            "a batch needs a token that the policy wrote; single rows without one may stay: their rewards count in "
            "group statistics",
            "Mark the completion's tokens in mask_bt",
        )


def _check_shapes(batch: Checked, names: Collection[str]) -> None:
    b, t = batch.size
    for name in names:
        value = getattr(batch, name)
        if name in BT:
            _expect(name, value, (b, t))
        elif name in B:
            _expect(name, value, (b,))
        elif name in MAPPINGS:
            for key, column in value.items():
                _expect(f"{name}['{key}']", column, (b,) if name in B_MAPPINGS else (b, t))
        elif name.endswith("_bs") and value is not None and (value.ndim != 2 or value.shape[0] != b):
            raise WrongField(f"{name} has shape {list(value.shape)}", f"it must be [B={b}, S]")


def _check_types(batch: Checked, names: Collection[str]) -> None:
    group_b, reward_b = batch.group_b, batch.reward_b
    if "group_b" in names and group_b.dtype != torch.int64:
        raise WrongField(f"group_b has type {group_b.dtype}", "it must be int64 group ids", "Use group_b.long()")
    if "group_b" in names and len(group_b) and int(group_b.min()) < 0:
        row = int(group_b.argmin())
        raise InputError(f"group_b[{row}] = {int(group_b[row])}", "every sequence must belong to a group (id >= 0)")
    if "token_bt" in names and batch.token_bt is not None and batch.token_bt.dtype != torch.int64:
        raise WrongField(f"token_bt has type {batch.token_bt.dtype}", "it must be int64 token ids", "Use .long()")
    if "reward_b" in names and not reward_b.is_floating_point():
        raise WrongField(f"reward_b has type {reward_b.dtype}", "it must be a float type", "Use reward_b.float()")
    for name in (n for n in BOOLS if n in names):
        value = getattr(batch, name)
        if value is not None and value.dtype != torch.bool:
            raise WrongField(f"{name} has type {value.dtype}", "it must be bool", f"Use {name}.bool()")


def _check_edges(batch: Checked) -> None:
    """Refuse values that are not `Edges`, and edges to rows that do not exist."""
    if not isinstance(batch.edges, Mapping):
        raise WrongField(f"edges is of type {type(batch.edges).__name__}", "it must be a mapping of Edges by name")
    for name, edges in batch.edges.items():
        if not isinstance(edges, Edges):
            what = f"edges['{name}'] is of type {type(edges).__name__}"
            raise WrongField(what, "it must be grouprl.core.edges.Edges", "Use Edges(index_e2, value_e)")
        outside_e = (edges.index_e2 < 0).any(1) | (edges.index_e2 >= batch.size[0]).any(1)
        if bool(outside_e.any()):
            number = int(outside_e.nonzero()[0, 0])
            what = f"edges['{name}'] joins the rows {edges.index_e2[number].tolist()}"
            raise InputError(
                what, f"the rows of the batch are numbered 0 to {batch.size[0] - 1}", "Leave out other edges"
            )
        if not bool(torch.isfinite(edges.value_e).all()):
            raise InputError(f"edges['{name}'] has values that are not finite", "every value must be finite")


def _expect(name: str, value: Tensor | None, shape: tuple[int, ...]) -> None:
    if value is not None and tuple(value.shape) != shape:
        rule = f"it must be {'[B,T]' if len(shape) == 2 else '[B]'} = {list(shape)} like mask_bt"
        raise WrongField(f"{name} has shape {list(value.shape)}", rule)


def _check_values(batch: Checked, names: Collection[str]) -> None:
    given = {name: getattr(batch, name) for name in FLOATS if name in names}
    for name in (n for n in FLOAT_MAPPINGS if n in names):
        given |= {f"{name}['{key}']": value for key, value in getattr(batch, name).items()}
    for name, value in given.items():
        if value is None or not value.is_floating_point() or sums_up(value):
            continue
        finite = torch.isfinite(value)
        by_token = value.shape == batch.mask_bt.shape and not name.endswith("_bs")
        if not bool((finite | ~batch.mask_bt if by_token else finite).all()):
            row = _first_bad_row(value, batch.mask_bt)
            raise InputError(
                f"{name} is not finite in row {row} (group {int(batch.group_b[row])})",
                "every value on an action token must be finite",
                "Drop the row or fix what produced it; a failed reward is not a number to train on",
            )


def sums_up(value: Tensor) -> bool:
    """Return True only if every number is finite, since their sum is: much quicker to see, but large ones may not."""
    return math.isfinite(float(value.detach().sum()))


def _first_bad_row(value: Tensor, mask_bt: Tensor) -> int:
    bad = ~torch.isfinite(value)
    if value.ndim == 2:
        bad = (bad & mask_bt).any(1) if value.shape == mask_bt.shape else bad.any(1)
    return int(bad.nonzero()[0, 0])
