"""Mixed precision: products in bfloat16 with float32 sums, everything else in float32.

Weights, optimiser, norms, softmax, log-probs and losses stay in float32 (Micikevicius et al. 2018, arXiv:1710.03740,
section 3.1; bfloat16 needs no scaling of the loss: Kalamkar et al. 2019, arXiv:1905.12322). Weights are rounded anew
for each pass, so that an update far below bfloat16's steps of 1/256 is not lost. The output layer's sums are not
rounded to bfloat16 on a CPU: logits of 20 would be off by 0.06.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable

from grouprl.core.errors import InputError, suggest
from grouprl.policy.autograd import Ctx

Precision = Literal["float32", "mixed"]
PRECISIONS = ("auto", "float32", "mixed")
FASTER = 1.25
"""How much faster products must be in bfloat16 for `auto` to take them: the rounding should be worth it."""
WIDE = 256
"""Hidden size from which products are most of a step; below, `auto` keeps float32, whatever the machine."""
ROWS = 512
"""Rows of the products that are tried: about what a pass through a model of a hundred million parameters holds."""
SERIES = 15
SETTABLE = hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision")
"""Whether this torch lets float32 products be computed otherwise (since 2.9); before, those that need it are not."""


def times(a: torch.Tensor, b: torch.Tensor, mixed: bool) -> torch.Tensor:
    """Return a @ b of float32 matrices, [M,K] and [K,N]; with `mixed` both are rounded to bfloat16 first."""
    return (a.bfloat16() @ b.bfloat16()).float() if mixed else a @ b


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x @ weight.T of float32 x [S,K] and weight [N,K], multiplied in bfloat16, and so are its gradients."""
    return _Product.apply(x, weight)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Ctx, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rounded = x.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(*rounded)
        return (rounded[0] @ rounded[1].T).float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grad.bfloat16()
        grad_x = (grad @ weight).float() if ctx.needs_input_grad[0] else None
        return grad_x, (grad.T @ x).float() if ctx.needs_input_grad[1] else None


@contextmanager
def wide_sums(mixed: bool, device: torch.device) -> Iterator[None]:
    """Let float32 products on a CPU be multiplied in bfloat16 where it can, their sums staying in float32.

    oneDNN rounds the inputs in registers; where a CPU has no such unit it multiplies in float32.
    """
    if not mixed or device.type != "cpu" or not SETTABLE:
        yield
        return
    mkldnn: Any = torch.backends.mkldnn
    setting = mkldnn.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


@dataclass(frozen=True)
class Probe:
    """Operations per second of a float32 product and of the same in bfloat16, rounding included."""

    float32: float
    bfloat16: float

    @property
    def ratio(self) -> float:
        """How many times faster bfloat16 is."""
        return self.bfloat16 / self.float32


def probe(hidden: int, intermediate: int) -> Probe:
    """Measure both on this machine's CPU with torch's threads, in a fraction of a second; once per shape."""
    return _probe(hidden, intermediate, torch.get_num_threads())


@cache
def _probe(hidden: int, intermediate: int, threads: int) -> Probe:
    """The best of a few series each, taken in turn; another process that takes the core spoils some, not all."""
    width = min(intermediate, 4096)
    x, weight = torch.ones(ROWS, hidden), torch.ones(hidden, width)
    rounded, work = weight.bfloat16(), 2.0 * ROWS * hidden * width
    runs: dict[str, Callable[[], torch.Tensor]] = {
        "float32": lambda: x @ weight,
        "bfloat16": lambda: (x.bfloat16() @ rounded).float(),
    }
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()  # kernels are chosen
    for _ in range(SERIES):
        for name, run in runs.items():
            best[name] = min(best[name], _seconds(run))
    return Probe(**{name: work / seconds for name, seconds in best.items()})


def _seconds(run: Callable[[], torch.Tensor]) -> float:
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    begun = clock()
    run()
    return clock() - begun


@dataclass(frozen=True)
class PrecisionChoice:
    """The precision of products, and why, in words."""

    precision: Precision
    why: str


def choose_precision(
    requested: str, dtype: torch.dtype, device: torch.device, hidden: int, intermediate: int, obstacle: str | None
) -> PrecisionChoice:
    """Return the precision of a model's products.

    Args:
        requested: "auto" (mixed where products are at least `FASTER` times as fast so), "float32" (products in the
            type of the weights) or "mixed".
        dtype: of the weights.
        device: where they lie.
        hidden: width of the residual stream.
        intermediate: width of the feed-forward layers.
        obstacle: why the lean engine, which alone multiplies so, does not run the model; None where it does.

    Raises:
        InputError: an unknown name, or mixed products that cannot be: weights in another type than float32, or another
            engine.
    """
    if requested not in PRECISIONS:
        raise InputError(f"precision={requested!r}", "It is not a known precision", suggest(str(requested), PRECISIONS))
    named = str(dtype).removeprefix("torch.")
    impossible = f"the weights are {named}" if dtype != torch.float32 else obstacle
    if requested == "mixed" and impossible is not None:
        rule = "Mixed precision keeps float32 weights and is computed by the lean engine"
        remedy = "Set dtype: float32" if dtype != torch.float32 else "Use precision: float32"
        raise InputError(f"precision='mixed', but {impossible}", rule, remedy)
    if requested == "mixed":
        return PrecisionChoice("mixed", "requested")
    if requested == "float32" or impossible is not None:
        return PrecisionChoice("float32", f"products are in the type of the weights, {named}")
    return _probed(device, hidden, intermediate)


def _probed(device: torch.device, hidden: int, intermediate: int) -> PrecisionChoice:
    if device.type != "cpu":
        return PrecisionChoice("float32", "on a GPU mixed precision is taken where it is requested")
    if hidden < WIDE:
        return PrecisionChoice("float32", f"hidden {hidden} is below {WIDE}: products are a small part of a step")
    found = probe(hidden, intermediate)
    if found.ratio >= FASTER:
        return PrecisionChoice("mixed", f"bfloat16 products are {_measured(found)}")
    return PrecisionChoice("float32", f"bfloat16 products are {_measured(found)}: not worth their rounding")


def told(
    requested: str, dtype: torch.dtype, device: torch.device, hidden: int, intermediate: int, lean: bool
) -> Iterator[str]:
    """Say what a plan should know: what `auto` came to, a choice that costs time, and one that would save it.

    `lean` is whether the lean engine runs the model, which alone has mixed precision.
    """
    if dtype in (torch.bfloat16, torch.float16):
        named = str(dtype).removeprefix("torch.")
        what = f"weights in {named} are stepped as float32 copies, so that small updates are not lost"
        if lean:
            what += "; precision: mixed keeps float32 weights alone"
        if device.type == "cpu" and dtype == torch.bfloat16:
            what += f". Its products are {_measured(probe(hidden, intermediate))}"
        yield what
    elif requested == "auto":
        chosen = choose_precision(requested, dtype, device, hidden, intermediate, None if lean else "another engine")
        yield f"precision auto is {chosen.precision}: {chosen.why}"
    elif device.type == "cpu" and lean and hidden >= WIDE and dtype == torch.float32:
        found = probe(hidden, intermediate)
        if requested == "mixed" and found.ratio < 1:
            yield f"precision mixed slows this run down: bfloat16 products are {_measured(found)}"
        elif requested == "float32" and found.ratio >= FASTER:
            yield f"bfloat16 products are {_measured(found)}: model.precision mixed (or auto) takes them"


def _measured(found: Probe) -> str:
    return (
        f"{found.ratio:.2g} times as fast here ({found.bfloat16 / 1e9:.0f} against {found.float32 / 1e9:.0f} GFLOP/s)"
    )
