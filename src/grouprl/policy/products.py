"""Products of float32 matrices by torch, by oneDNN, or in bfloat16 ("mixed precision"), with their gradients.

Which of them a model takes is decided in `grouprl.policy.precision`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from grouprl.policy.autograd import Ctx
from grouprl.policy.devices import Precision

KEPT_KERNELS = 64
"""Kernels that are kept for products, each for one shape; a pass needs about thirty.

A kernel takes 0.6 MiB and is made within a millisecond. By default 1024 are kept, and rows of all lengths bring new
shapes with nearly every pass: memory grew by 20 to 40 MiB with each step.
"""
CACHES = (("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"), ("LRU_CACHE_CAPACITY",))
"""Environment variables for this number, each with its older name: of oneDNN, and of torch's layer above it, which
keeps what describes each kernel.
"""
SETTABLE = hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision")
"""Whether this torch has a setting for the precision of float32 products (since 2.9)."""


def keep_few_kernels() -> None:
    """Have `KEPT_KERNELS` kernels kept, unless the environment says how many.

    The libraries read these numbers before their first product in the process, and never again.
    """
    for names in CACHES:
        if not any(name in os.environ for name in names):
            os.environ[names[0]] = str(KEPT_KERNELS)


keep_few_kernels()  # here, as whatever multiplies matrices imports this module first


def has_onednn() -> bool:
    """Return whether this torch can be told to use oneDNN's float32 product."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def times(a: torch.Tensor, b: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Return a @ b of float32 matrices, [M,K] and [K,N], in float32; in mixed precision both are rounded to bfloat16
    first.
    """
    if precision == "mixed":
        return (a.bfloat16() @ b.bfloat16()).float()
    return _onednn(a, b) if precision == "onednn" else a @ b


def wide_times(a: torch.Tensor, b: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Return the same as `times`, but with sums that are never rounded to bfloat16."""
    if precision == "onednn":
        return _onednn(a, b)
    with wide_sums(precision == "mixed", a.device):
        return a @ b


def add_wide_times(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, precision: Precision) -> None:
    """Add `wide_times(a, b)` to `out` in place."""
    if precision == "onednn":
        out.add_(_onednn(a, b))
        return
    with wide_sums(precision == "mixed", a.device):
        out.addmm_(a, b)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, precision: Precision) -> torch.Tensor:
    """Return x @ weight.T + bias as `wide_times` does, without a gradient."""
    if precision == "onednn":
        out = _onednn(x, weight.T)
        return out if bias is None else out.add_(bias)
    with wide_sums(precision == "mixed", x.device):
        return F.linear(x, weight, bias)


class LinearGradients:
    """Gradients of `linear` in its inputs, added up piece by piece.

    Args:
        hidden_md: all rows [M,D].
        weight_vd: the weights [V,D]; those of a bias [V] have their type.
        wanted: whether the gradients of rows, weights and bias are asked for.
        precision: the precision of products.
    """

    def __init__(
        self, hidden_md: torch.Tensor, weight_vd: torch.Tensor, wanted: tuple[bool, bool, bool], precision: Precision
    ) -> None:
        self._hidden_md, self._weight_vd, self._precision = hidden_md, weight_vd, precision
        self._of_hidden = torch.empty_like(hidden_md) if wanted[0] else None
        self._of_weight = torch.zeros_like(weight_vd) if wanted[1] else None
        self._of_bias = torch.zeros_like(weight_vd[:, 0]) if wanted[2] else None

    def add(self, part: slice, grad_cv: torch.Tensor) -> None:
        """Add the contribution of the gradients [C,V] of some consecutive rows' products."""
        grad_cv = grad_cv.to(self._weight_vd.dtype)
        if self._of_hidden is not None:
            self._of_hidden[part] = wide_times(grad_cv, self._weight_vd, self._precision)
        if self._of_weight is not None:
            add_wide_times(self._of_weight, grad_cv.T, self._hidden_md[part], self._precision)
        if self._of_bias is not None:
            self._of_bias += grad_cv.sum(0)

    def found(self) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Return the gradients of rows, weights and bias; None where none is asked for."""
        return self._of_hidden, self._of_weight, self._of_bias


def _onednn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b.T, None, "none", [], "")
    return found


def product(x: torch.Tensor, weight: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Return x @ weight.T of float32 x [S,K] and weight [N,K] computed as `times` does, as are its gradients."""
    return _Product.apply(x, weight, precision)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Ctx, x: torch.Tensor, weight: torch.Tensor, precision: Precision) -> torch.Tensor:
        if precision == "mixed":  # the rounded tensor is kept: half the memory
            x, weight = x.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(x, weight)
        ctx.precision = precision
        return (x @ weight.T).float() if precision == "mixed" else times(x, weight.T, precision)

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad = grad.bfloat16() if ctx.precision == "mixed" else grad

        def of(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return (a @ b).float() if ctx.precision == "mixed" else times(a, b, ctx.precision)

        grad_x = of(grad, weight) if ctx.needs_input_grad[0] else None
        return grad_x, of(grad.T, x) if ctx.needs_input_grad[1] else None, None


@contextmanager
def wide_sums(mixed: bool, device: torch.device) -> Iterator[None]:
    """Round the inputs of float32 products if `mixed`, and sum in float32: to bfloat16 on a CPU, to TF32 on a GPU.

    Inputs are rounded in registers; a device without such a unit multiplies in float32.
    """
    found = _rounding(device) if mixed else None
    if found is None:
        yield
        return
    place, name, value = found
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


def _rounding(device: torch.device) -> tuple[object, str, object] | None:
    """Return torch's setting of the precision of float32 products on a device, and the value that it has to have."""
    if device.type == "cuda":
        matmul = torch.backends.cuda.matmul
        return (matmul, "fp32_precision", "tf32") if SETTABLE else (matmul, "allow_tf32", True)
    mkldnn: Any = torch.backends.mkldnn
    return (mkldnn.matmul, "fp32_precision", "bf16") if device.type == "cpu" and SETTABLE else None
