"""Small batches from plain lists, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grouprl.algorithms.aggregate.aggregate import TokenSum
from grouprl.algorithms.losses import at_tokens, paired
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.part import Part
from grouprl.core.batch import Batch


def f64(*values: Any) -> Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=torch.float64)


def ragged(rows: Sequence[Sequence[float]], fill: float = 0.0) -> Tensor:
    width = max(len(r) for r in rows)
    return f64([[*r, *[fill] * (width - len(r))] for r in rows])


def small(
    rewards: Sequence[float], lengths: Sequence[int] | None = None, groups: Sequence[int] | None = None, **fields: Any
) -> Batch:
    """A batch with one token per row unless `lengths` says otherwise; all in one group; old log-probs -1.

    Lists in `fields` become tensors of the right type; ragged [B,T] lists are padded.
    """
    lengths = lengths or [1] * len(rewards)
    mask_bt = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    made: dict[str, Any] = {"old_bt": torch.full(mask_bt.shape, -1.0, dtype=torch.float64)}
    for name, value in fields.items():
        if isinstance(value, list) and name.endswith("_bt"):
            made[name] = torch.tensor(value) if isinstance(value[0][0], bool) else ragged(value)
        elif isinstance(value, list):
            tensor = torch.tensor(value)
            made[name] = tensor.double() if tensor.is_floating_point() else tensor
        else:
            made[name] = value
    mask_bt = made.pop("mask_bt", mask_bt)
    made["old_bt"] = made["old_bt"].expand(mask_bt.shape) if made["old_bt"] is not None else None
    group_b = torch.tensor(groups if groups is not None else [0] * len(rewards))
    return Batch(mask_bt=mask_bt, group_b=group_b, reward_b=f64(list(rewards)), **made)


def prepared(advantages: Sequence[Sequence[float]], **fields: Any) -> Batch:
    """A batch that already has the token advantages given (ragged), ready for an objective."""
    lengths = [len(row) for row in advantages]
    return small([0.0] * len(lengths), lengths, **fields).replace(advantage_bt=ragged(advantages))


def slopes(objective: Objective, log_ratio: Sequence[Sequence[float]], batch: Batch) -> tuple[Tensor, Tensor]:
    """Token losses [B,T] and the gradient of their sum, at log-probs `old + log_ratio`."""
    assert batch.old_bt is not None
    logp_bt = (batch.old_bt + ragged(log_ratio)).requires_grad_()
    if (index_e2 := objective.pairs(batch)) is not None:
        batch = paired(batch, index_e2)
    loss_bt = torch.where(batch.active_bt, at_tokens(objective(logp_bt, batch), batch), 0)
    (grad_bt,) = torch.autograd.grad(loss_bt.sum(), logp_bt)
    return loss_bt.detach(), grad_bt


def gradient(method: Method, batch: Batch, logp_bt: Tensor, entropy_bt: Tensor | None = None) -> Tensor:
    """Gradient of the method's loss on the whole batch with respect to the log-probs."""
    logp_bt = logp_bt.clone().requires_grad_()
    (grad_bt,) = torch.autograd.grad(method.loss(logp_bt, method.prepare(batch), entropy_bt).value, logp_bt)
    return grad_bt


def summed(advantage: Any, objective: Objective, **parts: Part | tuple[Part, ...]) -> Method:
    """A method that sums token losses, so that gradients are those of single tokens."""
    return Method(advantage=advantage, objective=objective, aggregate=TokenSum(), **parts)  # type: ignore[arg-type]


def near(actual: Tensor, expected: Any, atol: float = 1e-9) -> None:
    """Assert that a tensor equals plain numbers."""
    expected = expected if isinstance(expected, Tensor) else f64(expected)
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=0, atol=atol)
