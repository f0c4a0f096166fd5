"""Functions of tensors alone that the lines of parts call. A printed method carries their source."""

from __future__ import annotations

import torch
from torch import Tensor


def mean(value_n: Tensor, of_nn: Tensor) -> Tensor:
    """[N]: mean of the values that each row of `of_nn` [N,N] marks or weighs, 0 where there are none."""
    size_n = of_nn.sum(1)
    return (of_nn * value_n).sum(1) / torch.where(size_n == 0, 1, size_n)


def differs(value_n: Tensor, of_nn: Tensor) -> Tensor:
    """[N] bool: whether the values that each row of `of_nn` [N,N] marks or weighs differ."""
    highest_n = torch.where(of_nn > 0, value_n, -torch.inf).amax(1)
    return highest_n > torch.where(of_nn > 0, value_n, torch.inf).amin(1)


def spread(value_n: Tensor, of_nn: Tensor, less: int = 1) -> Tensor:
    """[N]: standard deviation of the values that each row of `of_nn` [N,N] marks or weighs, over n - `less`."""
    square_n = (of_nn * (value_n - mean(value_n, of_nn)[:, None]).square()).sum(1)
    std_n = (square_n / (of_nn.sum(1) - less).clamp(min=1)).sqrt()
    return torch.where(differs(value_n, of_nn), std_n, 0)


def centered(value_n: Tensor, of_nn: Tensor) -> Tensor:
    """[N]: values minus the mean of those that each row of `of_nn` [N,N] marks or weighs, 0 where these are equal."""
    return torch.where(differs(value_n, of_nn), value_n - mean(value_n, of_nn), 0)


def standardised(value_n: Tensor, of_nn: Tensor, eps: float, less: int = 1) -> Tensor:
    """[N]: (value - mean) / (standard deviation + eps) among those that each row marks or weighs, 0 where equal."""
    return centered(value_n, of_nn) / (spread(value_n, of_nn, less) + eps).clamp(min=1e-30)


def rank(value_n: Tensor, of_nn: Tensor) -> Tensor:
    """[N]: how many of those that each row of `of_nn` marks have a lower value, or the same and an earlier place."""
    earlier_nn = torch.ones_like(of_nn).tril(-1)
    lower_nn = (value_n < value_n[:, None]) | ((value_n == value_n[:, None]) & earlier_nn)
    return (of_nn & lower_nn).sum(1)


def sum_by_place(value_bt: Tensor, mask_bt: Tensor, group_b: Tensor) -> Tensor:
    """[B,T]: sum of the values of the group's tokens with the same number, counted among the tokens of the mask."""
    place_bt = torch.where(mask_bt, mask_bt.cumsum(1), 0)
    zero_bp = value_bt.new_zeros(len(value_bt), mask_bt.shape[1] + 1)
    same_bb = (group_b[:, None] == group_b).to(value_bt.dtype)
    return (same_bb @ zero_bp.scatter_add(1, place_bt, value_bt)).gather(1, place_bt)


def same_prefix(token_bt: Tensor, active_bt: Tensor, group_b: Tensor) -> Tensor:
    """[B,B,T] bool: rows of one group whose tokens are the same up to this one, included."""
    equal_bbt = (token_bt[:, None] == token_bt) | ~active_bt
    equal_bbt = equal_bbt & (active_bt[:, None] == active_bt) & (group_b[:, None] == group_b)[..., None]
    return equal_bbt.int().cumprod(2).bool()


def shared_start(token_bt: Tensor, sign_bt: Tensor, active_bt: Tensor, group_b: Tensor) -> Tensor:
    """[B,T] bool: first tokens of a row, as far as good and bad rows of its group have the same token at that
    position.
    """
    order_bp = (~active_bt).int().argsort(dim=1, stable=True)  # active tokens first
    token_bp, sign_bp = token_bt.gather(1, order_bp), torch.where(active_bt, sign_bt, 0).gather(1, order_bp)
    same_bbp = (token_bp[:, None] == token_bp) & (group_b[:, None] == group_b)[..., None]
    both_bp = (same_bbp & (sign_bp > 0)).any(1) & (same_bbp & (sign_bp < 0)).any(1) & (sign_bp != 0)
    return torch.zeros_like(active_bt).scatter(1, order_bp, both_bp.int().cumprod(1).bool())


def pairs_to_rows(loss_e: Tensor, index_2e: Tensor, group_b: Tensor, known_b: Tensor) -> Tensor:
    """[B]: losses of pairs at their two rows; a group whose rows weigh the same has the mean over its pairs."""
    from_e, to_e = index_2e
    zero_b, same_bb = loss_e.new_zeros(len(group_b)), group_b[:, None] == group_b
    pairs_b = (same_bb * zero_b.index_add(0, from_e, torch.ones_like(loss_e))).sum(1)
    share_b = (same_bb & known_b).sum(1) / (2 * pairs_b.clamp(min=1))
    return share_b * zero_b.index_add(0, from_e, loss_e).index_add(0, to_e, loss_e)
