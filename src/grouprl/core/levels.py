"""Arithmetic over segments: sums, means, spreads and ranks of values that share an id.

A *level* is a list of ids, one per value (`id_n`, int64, any order, any numbering). Every function returns one
number per value, so results of nested levels combine without bookkeeping. `weight_n` restricts or weights
the values that enter a statistic (0 leaves a value out); the result is still returned at every position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from grouprl.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Center = Literal["mean", "leave_one_out", "none"]
Scale = Literal["none", "sample_std", "population_std", "leave_one_out_std"]
Alone = Literal["zero", "raw", "refuse"]


def compact(id_n: Tensor) -> tuple[Tensor, int]:
    """Renumber ids to 0..K-1 and return (index_n [N] int64, K)."""
    if id_n.ndim != 1 or id_n.dtype != torch.int64:
        raise InputError(f"ids have shape {list(id_n.shape)} and type {id_n.dtype}", "they must be [N] int64")
    if numbered(id_n):  # as many segments as values, which is much quicker to see than to sort
        return id_n, len(id_n)
    unique, index_n = torch.unique(id_n, return_inverse=True)
    return index_n, len(unique)


def numbered(id_n: Tensor) -> bool:
    """Return whether the ids are 0, 1, 2 … in order, so that every value is a segment of its own."""
    return torch.equal(id_n, torch.arange(len(id_n), device=id_n.device))


def cross(*id_n: Tensor) -> Tensor:
    """[N] int64 ids of the product of several levels: equal iff all their ids are equal (group x turn)."""
    stacked = torch.stack(id_n, 1)
    return torch.unique(stacked, dim=0, return_inverse=True)[1]


def total(value_n: Tensor, id_n: Tensor, weight_n: Tensor | None = None) -> Tensor:
    """[N] sum of `value_n * weight_n` over the segment of each element."""
    _check(value_n, id_n)
    index_n, k = compact(id_n)
    term_n = value_n if weight_n is None else value_n * weight_n.to(value_n.dtype)
    if k == len(id_n):  # every value is a segment of its own
        return value_n.new_zeros(k) + term_n
    return value_n.new_zeros(k).index_add_(0, index_n, term_n)[index_n]


def count(id_n: Tensor, weight_n: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """[N] number of elements (or sum of weights) in the segment of each element."""
    return total(torch.ones_like(id_n, dtype=dtype or torch.float64), id_n, weight_n)


def mean(value_n: Tensor, id_n: Tensor, weight_n: Tensor | None = None) -> Tensor:
    """[N] (weighted) mean over the segment of each element; 0 where the weights sum to 0."""
    weights_n = count(id_n, weight_n, value_n.dtype)
    return total(value_n, id_n, weight_n) / torch.where(weights_n == 0, 1, weights_n)


def std(value_n: Tensor, id_n: Tensor, weight_n: Tensor | None = None, *, sample: bool) -> Tensor:
    """[N] standard deviation over each segment: `sample=True` divides by n-1 (0 for a single element), else by n.

    A segment whose values are all equal has standard deviation exactly 0, also in floating point.
    """
    deviation_n = value_n - mean(value_n, id_n, weight_n)
    n = count(id_n, weight_n, value_n.dtype)
    dof_n = (n - 1 if sample else n).clamp(min=1)
    variance_n = total(deviation_n.square(), id_n, weight_n) / dof_n
    return torch.where(differs(value_n, id_n, weight_n), variance_n.sqrt(), 0)


def leave_one_out_mean(value_n: Tensor, id_n: Tensor, weight_n: Tensor | None = None) -> Tensor:
    """[N] mean of the *other* elements of each segment; 0 if there is no other."""
    own_n = torch.ones_like(value_n) if weight_n is None else weight_n.to(value_n.dtype)
    others_n = count(id_n, weight_n, value_n.dtype) - own_n
    rest_n = total(value_n, id_n, weight_n) - value_n * own_n
    # `where` computes both sides, and the gradient through a division by 0 would be NaN in spite of it.
    return torch.where(others_n > 0, rest_n / others_n.clamp(min=1e-30), 0)


def leave_one_out_std(value_n: Tensor, id_n: Tensor, weight_n: Tensor | None = None) -> Tensor:
    """[N] standard deviation of the *other* elements; exactly 0 where they are all equal or fewer than two."""
    index_n, _ = compact(id_n)
    keep_n = torch.ones_like(value_n, dtype=torch.bool) if weight_n is None else weight_n > 0
    own_nn = torch.eye(len(index_n), dtype=torch.bool, device=index_n.device)
    # By pairs, because sums from which an element's own share is subtracted lose digits where values hardly differ.
    other_nn = (index_n[:, None] == index_n[None]) & keep_n[None] & ~own_nn
    m_n = other_nn.sum(1).to(value_n.dtype)
    mean_n = (other_nn * value_n).sum(1) / m_n.clamp(min=1)
    square_n = ((value_n[None] - mean_n[:, None]).square() * other_nn).sum(1)
    std_n = (square_n / (m_n - 1).clamp(min=1)).sqrt()
    largest_n = torch.where(other_nn, value_n, -torch.inf).amax(1)
    smallest_n = torch.where(other_nn, value_n, torch.inf).amin(1)
    return torch.where(largest_n > smallest_n, std_n, 0)


def extreme(value_n: Tensor, id_n: Tensor, weight_n: Tensor | None = None, *, largest: bool) -> Tensor:
    """[N] largest (or smallest) value of each segment; elements of weight 0 do not count. 0 if none counts."""
    index_n, k = compact(id_n)
    worst = -torch.inf if largest else torch.inf
    entered_n = value_n if weight_n is None else torch.where(weight_n > 0, value_n, worst)
    how = "amax" if largest else "amin"
    out_n = value_n.new_full((k,), worst).scatter_reduce_(0, index_n, entered_n, how)[index_n]
    return torch.where(torch.isinf(out_n), torch.zeros_like(out_n), out_n)


def differs(value_n: Tensor, id_n: Tensor, weight_n: Tensor | None = None) -> Tensor:
    """[N] bool: whether the values of a segment differ (exact, no tolerance; weight 0 does not count)."""
    return extreme(value_n, id_n, weight_n, largest=True) > extreme(value_n, id_n, weight_n, largest=False)


def rank(value_n: Tensor, id_n: Tensor) -> Tensor:
    """[N] int64 rank within each segment: 0 for the smallest; ties keep their order of appearance."""
    index_n, k = compact(id_n)
    # Sorted by value first: the second sort keeps that order within each segment, because it is stable.
    by_value_n = torch.argsort(value_n, stable=True)
    order_n = by_value_n[torch.argsort(index_n[by_value_n], stable=True)]
    sizes_k = torch.bincount(index_n, minlength=k)
    start_k = sizes_k.cumsum(0) - sizes_k
    rank_n = torch.empty_like(order_n)
    rank_n[order_n] = torch.arange(len(order_n), device=order_n.device) - start_k[index_n[order_n]]
    return rank_n


def softmax(value_n: Tensor, id_n: Tensor) -> Tensor:
    """[N] softmax within each segment."""
    shifted_n = (value_n - extreme(value_n, id_n, largest=True)).exp()
    return shifted_n / total(shifted_n, id_n)


def log_softmax(value_n: Tensor, id_n: Tensor, weight_n: Tensor) -> Tensor:
    """[N] log of the softmax among the elements of each segment whose weight is not 0; 0 at the others."""
    known_n = weight_n > 0
    # Any constant may be subtracted, so the gradient need not pass through the choice of the largest.
    top_n = extreme(value_n.detach(), id_n, weight_n, largest=True)
    shifted_n = torch.where(known_n, value_n - top_n, 0)
    sum_n = total(shifted_n.exp(), id_n, known_n)
    return torch.where(known_n, shifted_n - torch.where(sum_n > 0, sum_n, 1).log(), 0)


def relative(
    value_n: Tensor,
    id_n: Tensor,
    *,
    center: Center = "mean",
    scale: Scale = "sample_std",
    eps: float = 1e-6,
    alone: Alone = "zero",
    weight_n: Tensor | None = None,
) -> Tensor:
    """Compare each value with its segment: (value - center) / (spread + eps). Returns [N].

    `alone` states the result for a segment of one: zero, its raw value, or a refusal (InputError). A segment without
    spread gets exactly zero (nothing to tell apart), except a lone element under `alone="raw"`. Elements of weight 0
    get zero. With center "none" and scale "none" nothing is compared and every value stays, also a lone one. With
    "leave_one_out_std" an element whose others do not differ stays unscaled (NeMo-RL's rule).
    """
    _check(value_n, id_n)
    lone_n = (count(id_n, weight_n) <= 1) & (center != "none" or scale != "none")
    if alone == "refuse" and bool(lone_n.any()):
        bad = int(id_n[lone_n][0])
        raise InputError(
            f"group {bad} has one member",
            "a group baseline compares several completions",
            "Sample at least two per prompt",
        )
    centered_n = value_n - _center(value_n, id_n, weight_n, center)
    out_n = centered_n / _divisor(value_n, id_n, weight_n, scale, eps)
    if center != "none":
        out_n = torch.where(differs(value_n, id_n, weight_n), out_n, 0)
    out_n = torch.where(lone_n, value_n if alone == "raw" else torch.zeros_like(value_n), out_n)
    return out_n if weight_n is None else torch.where(weight_n > 0, out_n, 0)


def _center(value_n: Tensor, id_n: Tensor, weight_n: Tensor | None, center: Center) -> Tensor:
    if center == "mean":
        return mean(value_n, id_n, weight_n)
    if center == "leave_one_out":
        return leave_one_out_mean(value_n, id_n, weight_n)
    return torch.zeros_like(value_n)


def _divisor(value_n: Tensor, id_n: Tensor, weight_n: Tensor | None, scale: Scale, eps: float) -> Tensor:
    if scale == "none":
        return torch.ones_like(value_n)
    if scale == "leave_one_out_std":
        std_n = leave_one_out_std(value_n, id_n, weight_n)
        return torch.where(std_n > 0, std_n + eps, 1)
    std_n = std(value_n, id_n, weight_n, sample=scale == "sample_std")
    return torch.where(std_n + eps > 0, std_n + eps, 1)


def _check(value_n: Tensor, id_n: Tensor) -> None:
    if value_n.ndim != 1 or value_n.shape != id_n.shape:
        raise InputError(
            f"values have shape {list(value_n.shape)}, ids {list(id_n.shape)}", "both must be [N], one id per value"
        )
