"""The exchange between ranks that share rows: keys and values, their gradients, and outputs of columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from grouprl.policy.autograd import Ctx

_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Under the names of torch 2.13, or those of earlier versions."""


@dataclass(frozen=True)
class ContextGroup:
    """The ranks that share rows with this one, itself included."""

    members: dist.ProcessGroup
    rank: int
    """The number of this process among them."""
    count: int

    def gathered(self, x: Tensor) -> Tensor:
        """Return the tensors of all ranks, which have one shape: [N, *x.shape]."""
        found = x.new_empty(self.count * x.numel())
        _GATHER(found, x.contiguous().view(-1), group=self.members)
        return found.view(self.count, *x.shape)

    def summed(self, x_n: Tensor) -> Tensor:
        """Return this rank's share, `x_n[rank]`, of the sum over all ranks' tensors [N,…]."""
        found = x_n.new_empty(x_n[0].numel())
        _SCATTER(found, x_n.contiguous().view(-1), group=self.members)
        return found.view(x_n.shape[1:])

    def any(self, found: bool) -> bool:
        """Return whether `found` is true on any of the ranks."""
        some = torch.tensor([float(found)])
        dist.all_reduce(some, op=dist.ReduceOp.MAX, group=self.members)
        return bool(some)

    def together(self, own_n: Tensor, owner_m: Tensor) -> Tensor:
        """Return the outputs of all ranks as those of a pass, [M,…]: `own_n` are this rank's, in order.

        All ranks then compute the same loss of all outputs, so the gradient of an output comes back to its owner alone.
        """
        found: Tensor = _JoinedOutputs.apply(own_n, owner_m, self)
        return found


class _JoinedOutputs(torch.autograd.Function):
    """Outputs [M] of all ranks; each takes the gradient of its own."""

    @staticmethod
    def forward(ctx: Ctx, own_n: Tensor, owner_m: Tensor, group: ContextGroup) -> Tensor:
        ctx.mine_m = (owner_m == group.rank).to(own_n.device)
        count_r = torch.bincount(owner_m, minlength=group.count)
        most = int(count_r.max())
        if not most:
            return own_n.new_empty(0, *own_n.shape[1:])
        # A gathering takes one size from all ranks, and ranks have unlike numbers of predictions.
        filled = torch.cat([own_n, own_n.new_zeros(most - len(own_n), *own_n.shape[1:])])
        all_rn = group.gathered(filled)
        found_m = own_n.new_empty(len(owner_m), *own_n.shape[1:])
        for rank, count in enumerate(count_r.tolist()):
            found_m[(owner_m == rank).to(own_n.device)] = all_rn[rank, :count]
        return found_m

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad_m: Tensor) -> tuple[Tensor | None, ...]:
        return grad_m[ctx.mine_m], None, None
