"""One optimiser step of any model: its outputs by name, a loss on them, cotangents back, a step of the optimiser.

Micro-batches only bound memory. Rows whose gradient is exactly zero are not passed through the model; they change
nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from grouprl.algorithms.method import Loss
from grouprl.core.batch import Batch
from grouprl.core.edges import OF_TOKENS
from grouprl.core.errors import InputError, RunError
from grouprl.core.spans import span, spanned
from grouprl.policy.state import pull_back
from grouprl.protocols import PassHelpers, PolicyInputs, Trainable, distributed, pass_helpers
from grouprl.training.measures.step_record import ROW, StepRecord, numbered

Owners: TypeAlias = Sequence[list[nn.Parameter]]
"""The trainable parameters of a model by owner (`Trainable.owners`). Looking them up takes longer than a small layer,
so callers that take many steps do it once."""


class OutputLoss(ABC):
    """A loss on a model's outputs; values and metrics add up over the passes of one optimiser step."""

    couples: str = "sequence"
    """'sequence' if a row's loss depends on that row alone; otherwise the loss sees the whole step together."""

    record: StepRecord | None = None
    """Keeps what the loss sees of each row."""

    def with_record(self, record: StepRecord | None) -> OutputLoss:
        """Return the loss with another record; called only if it has one."""
        raise NotImplementedError

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs that the loss reads."""

    def live_rows(self, step: Batch) -> Tensor:
        """Return the rows whose gradient may be non-zero, [B] bool; called only if rows are not coupled."""
        return torch.ones_like(step.group_b, dtype=torch.bool)

    @abstractmethod
    def __call__(self, found: Mapping[str, Tensor], batch: Batch) -> Loss:
        """Return the loss of some rows, or of the step, differentiable in the outputs `found`.

        The metric `_gap_max` is a maximum over the passes; all others are sums.
        """


def take_step(
    model: Trainable, optimizer: torch.optim.Optimizer, loss: OutputLoss, step: Batch, *, grad_clip: float = 1.0
) -> dict[str, float]:
    """Take one optimiser step; return its metrics. Raises RunError if the gradient is not finite."""
    owners = model.owners()
    found = accumulate(model, loss, step, owners)
    return {**found, "grad_norm": apply_gradient(model, optimizer, grad_clip, owners)}


def accumulate(model: Trainable, loss: OutputLoss, step: Batch, owners: Owners) -> dict[str, float]:
    """Add the gradient of one optimiser step to the `.grad` of the parameters of `owners`; return its metrics.

    These are the metrics of the loss, summed over the step, and its value as `loss`; `rows_trained` is the share of
    rows passed through the model with gradients.
    """
    found = (_one_pass if loss.couples == "sequence" else _coupled)(model, loss, step)
    for parameter in chain.from_iterable(owners) if distributed(model) is None else ():
        if parameter.grad is None:  # an optimiser would skip it, including weight decay and momentum
            parameter.grad = torch.zeros_like(parameter)
    return found


@spanned("optimiser")
def apply_gradient(model: Trainable, optimizer: torch.optim.Optimizer, grad_clip: float, owners: Owners) -> float:
    """Clip the gradient, take the optimiser's step, zero the gradient; return the norm before clipping.

    Raises RunError when the gradient is not finite (no step is taken then).
    """
    norm = _clipped_norm(model, owners, grad_clip)
    _let_idle_rest(owners)
    optimizer.step()
    optimizer.zero_grad()  # not to zeros, so that gradients take no memory during the next first pass
    return norm


@spanned("forward")
def outputs_of(model: Trainable, names: Sequence[str], batch: Batch, *, grad: bool = False) -> dict[str, Tensor]:
    """Return the outputs on the batch's device, the CPU, regardless of the device of the model."""
    found, place = model.evaluate(inputs_of(batch), names, grad=grad), batch.mask_bt.device
    return {name: x.to(place) for name, x in found.items()}


def columns(batch: Batch) -> Batch:
    """Return the batch cut to the columns that its rows use, which the model will return."""
    width = inputs_of(batch).width
    return batch if width == batch.size[1] else batch.trim(width)


def inputs_of(batch: Batch) -> PolicyInputs:
    """Return the model inputs of the batch; raises InputError if it has none."""
    if type(batch.inputs) not in _KINDS:
        if not isinstance(batch.inputs, PolicyInputs):
            raise InputError(
                f"batch.inputs is {type(batch.inputs).__name__}",
                "a batch to update on holds the inputs that its policy scores (grouprl.protocols.PolicyInputs)",
                "Pass inputs=…, for instance grouprl.policy.Tokens",
            )
        _KINDS.add(type(batch.inputs))
    return cast("PolicyInputs", batch.inputs)


_KINDS: set[type] = set()
"""Classes that were seen to be inputs: looking up the members of a protocol takes longer than a small step."""


def _one_pass(model: Trainable, loss: OutputLoss, step: Batch) -> dict[str, float]:
    """Go forward and backward micro-batch by micro-batch, since each row's loss depends on that row alone."""
    alive_b = loss.live_rows(step)
    sums: dict[str, float] = defaultdict(float)
    alive = list(range(len(alive_b))) if bool(alive_b.all()) else alive_b.nonzero()[:, 0].tolist()
    for found in _each_pass(model, loss, step, alive):
        _add(sums, found)
    return {**sums, "rows_trained": len(alive) / max(len(alive_b), 1)}


def _share(alive_b: Tensor) -> float:
    return int(alive_b.sum()) / max(len(alive_b), 1)


def _each_pass(model: Trainable, loss: OutputLoss, step: Batch, rows: list[int]) -> Iterator[Mapping[str, float]]:
    """Process `rows` of a step pass by pass, here or on the ranks of the model; yield the sums of each pass."""

    every = list(range(step.size[0])) if step.mask_bt.is_contiguous() else None  # sums run through memory as it lies

    def piece(own: list[int]) -> Batch:
        return columns(step if own == every else step.rows(torch.tensor(own)))

    if (spread := pass_helpers(model)) is not None:
        yield from _spread_passes(spread, loss, step, rows, piece)
        return
    for own in model.passes(inputs_of(step), rows):
        yield _pass(model, loss, piece(own))


def _spread_passes(
    spread: PassHelpers[PolicyInputs],
    loss: OutputLoss,
    step: Batch,
    rows: list[int],
    piece: Callable[[list[int]], Batch],
) -> Iterator[Mapping[str, float]]:
    """Process `rows` of a step on the ranks of the model; what they see of rows is brought together here."""
    record = loss.record
    if record is None:
        yield from spread.run_passes(_pass, loss, inputs_of(step), rows, piece, loss.outputs)
        return

    def recorded(own: list[int]) -> tuple[Batch, StepRecord]:
        return (part := piece(own)), record.of(part)

    plain = loss.with_record(None)
    for found, numbers, seen in spread.run_passes(_recorded_pass, plain, inputs_of(step), rows, recorded, loss.outputs):
        record.take(numbers, seen)
        yield found


def _recorded_pass(
    model: Trainable, loss: OutputLoss, piece: tuple[Batch, StepRecord]
) -> tuple[dict[str, float], Tensor, StepRecord]:
    """Go forward and backward once; also return the numbers of the rows, and the record of what was seen of them."""
    part, record = piece
    found = _pass(model, loss.with_record(record), numbered(part))
    return found, part.keys[ROW], record


def _pass(model: Trainable, loss: OutputLoss, part: Batch) -> dict[str, float]:
    """Go forward and backward once; return the summed loss and metrics."""
    out = _lost(loss, outputs_of(model, loss.outputs, part, grad=True), part)
    with span("backward"):
        out.value.backward()
    return {name: float(value) for name, value in {**out.metrics, "loss": out.value.detach()}.items()}


def _coupled(model: Trainable, loss: OutputLoss, step: Batch) -> dict[str, float]:
    """Compute all outputs of a step, the loss on them as leaves, then pass the cotangents back through the model.

    Where one pass of the model takes the whole step, its graph is kept. Otherwise the rows go through the model
    twice: no graph of the whole step would fit.
    """
    step = columns(step)
    whole = pass_helpers(model) is None and len(model.passes(inputs_of(step), range(len(step.mask_bt)))) == 1
    outputs = outputs_of(model, loss.outputs, step, grad=whole)
    leaves = {name: x.detach().requires_grad_() for name, x in outputs.items()}
    out = _lost(loss, leaves, step)
    cotangents = _cotangents(out.value, leaves)
    if not whole:
        model.backward(inputs_of(step), cotangents)
    elif out.value.requires_grad:
        pull_back(outputs, cotangents)
    alive_b = torch.stack([sloping(x) for x in cotangents.values()]).any(0)
    sums: dict[str, float] = defaultdict(float)
    _add(sums, {**out.metrics, "loss": out.value.detach()})
    return {**sums, "rows_trained": _share(alive_b)}


def sloping(x: Tensor) -> Tensor:
    """Return which rows [B] of a loss's derivatives [B,…] have one beyond rounding of the step's largest.

    Where a row's terms cancel, the last bits, which depend on the order of sums, decide whether they are exactly 0.
    """
    size_b = x.abs().reshape(len(x), -1).amax(1)
    return size_b > OF_TOKENS * torch.finfo(x.dtype).eps * size_b.max()


def _cotangents(value: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradient of a loss in each of its leaves that it depends on."""
    if not value.requires_grad:  # no row has a gradient, for instance if there are no pairs: all rewards are equal
        return {name: torch.zeros_like(x) for name, x in leaves.items()}
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {name: x for name, x in zip(leaves, found, strict=True) if x is not None}


@spanned("loss")
def _lost(loss: OutputLoss, found: Mapping[str, Tensor], batch: Batch) -> Loss:
    return loss(found, batch)


def _add(sums: dict[str, float], metrics: Mapping[str, Tensor | float]) -> None:
    for name, value in metrics.items():
        number = float(value)
        sums[name] = max(sums[name], number) if name == "_gap_max" else sums[name] + number


def _let_idle_rest(owners: Owners) -> None:
    """If there are several owners of parameters, drop gradients that are exactly zero, so that these take no step."""
    for owned in owners if len(owners) > 1 else []:
        if not any(bool(p.grad.any()) for p in owned if p.grad is not None):
            for parameter in owned:
                parameter.grad = None


def _clipped_norm(model: Trainable, owners: Owners, grad_clip: float) -> float:
    """Clip the gradient to `grad_clip` (0: no clipping), and return its norm before."""
    limit = grad_clip if grad_clip > 0 else math.inf
    if (spread := distributed(model)) is not None:
        norm = spread.clip(limit)
    else:
        # Each agent's gradient is clipped by itself, so that a large one does not shrink those of the others.
        norm = math.hypot(*(float(torch.nn.utils.clip_grad_norm_(owned, limit)) for owned in owners))
    if not math.isfinite(norm):
        raise RunError(
            f"the gradient is not finite (norm {norm}); no step was taken. Lower optim.lr, look at the last rollouts "
            "for absurd rewards, or set optim.grad_clip"
        )
    return norm
