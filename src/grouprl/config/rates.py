"""Learning rates: the default for each kind of model, and how far a rate can move a policy.

A step of Adam changes each weight by about its learning rate, and the output of a layer by that times its
inputs (Yang et al., arXiv:2203.03466, derive their transfer of learning rates from this rule). Summed over the
layers, `lr × hidden × layers` estimates by how many nats one optimiser step can move a log-prob. Adapters (Hu et
al. 2021) begin with B = 0 and entries of A of size 1 / sqrt(3 hidden): while Adam changes those of B by its rate, the
weight (alpha / r) B A changes by `alpha / sqrt(3 r hidden)` times that rate (`gain_of_adapters`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grouprl.config.sections import Lora, Model, Optim

if TYPE_CHECKING:
    import torch

PIECE = 2**20
"""Number of elements of a weight whose last step is measured at a time."""
LOOKED_AT = 10_000
"""Largest number of steps at which the schedule is evaluated to sum the rates of a whole run."""
STILL = 0.1
"""Nats; if a whole run can move a log-prob by less, evaluation sees no difference from the initial policy.

`nim` of docs/environments.md: 0.004 changes about one completion in a hundred, 1.1 gives measurable learning. Four
tasks of docs/findings.md: evaluations stay the same at 0.005, and the first task that learns does so at 0.5."""
FAST, FAST_TINY = 3.0, 0.4
"""Nats above which one optimiser step destroys the policy rather than improves it. Tiny models: in
docs/findings.md those that learn do so at 0.22 or less, with all weights trained or with adapters of any rank, and
those that lose most of what they knew within twenty steps at 0.44 or more. Others: the pretrained model of docs/real.md
learns at 0.17, and no rate was raised until training broke, so that this bound is a guess."""
SMALL = 128
"""Largest hidden width of a model to which the bounds of tiny models apply."""


@dataclass(frozen=True)
class Rate:
    """A learning rate and its source."""

    lr: float
    source: str


RATES = {
    "tiny": Rate(1e-3, "tiny model trained from scratch: most recipes of its size here learn at 3e-4 to 1e-3"),
    "other": Rate(1e-3, "a policy that is not a language model, trained from scratch as the tiny model is"),
    "full": Rate(1e-6, "full training of a pretrained model: DAPO, arXiv:2503.14476, section 4.1; TRL's default, too"),
    "lora": Rate(
        1e-5,
        "LoRA: ten times that of full training (Schulman et al. 2025, LoRA Without Regret, for supervised and RL)",
    ),
}
"""Default learning rate of each kind of model."""


def kind_of_model(model: Model) -> str:
    """Return "lora", "tiny", "other" or "full".

    Adapters of the tiny model are "tiny", a team with one big model is "full".
    """
    names = model.agents.values() if isinstance(model.agents, dict) else (model.name,)
    if all(name == "tiny" for name in names):
        return "tiny"
    from grouprl.policy.kinds import is_named

    if ":" in model.name or is_named(model.name):
        return "other"
    return "full" if model.lora is None else "lora"


def default_rate(model: Model) -> Rate:
    """Return a model's learning rate if `optim.lr` is not given."""
    return RATES[kind_of_model(model)]


def gain_of_adapters(lora: Lora | None, hidden: int) -> float:
    """Return the change of a weight per unit of Adam's change of the trained parameters; 1 without adapters."""
    return 1.0 if lora is None else lora.alpha / math.sqrt(3 * lora.r * hidden)


def reach_of_step(lr: float, hidden: int, layers: int, lora: Lora | None = None) -> float:
    """Estimate by how many nats one optimiser step at `lr` can move a log-prob."""
    return lr * gain_of_adapters(lora, hidden) * hidden * layers


def fastest(hidden: int) -> float:
    """Return the number of nats above which one optimiser step is reported as too fast."""
    return FAST_TINY if hidden <= SMALL else FAST


def rate_warnings(
    model: Model, optim: Optim, steps: int, hidden: int, layers: int, updates_per_rollout: int
) -> Iterator[str]:
    """Warn if a run of `steps` is expected to stand still or to move too fast at its learning rate."""
    if steps == 0:
        return
    stride = 1 + steps // LOOKED_AT
    rates = [learning_rate(optim, step, steps) for step in range(0, steps, stride)]
    whole = reach_of_step(sum(rates) * stride, hidden, layers, model.lora) * updates_per_rollout
    most = reach_of_step(max(rates), hidden, layers, model.lora)
    usual = default_rate(model)
    said = f" ({usual.lr:g} is usual for this kind of model)"
    if whole < STILL:
        more = optim.lr * STILL / whole
        yield (
            f"the policy will stand still: {len(rates) * updates_per_rollout:,} optimiser steps at optim.lr "
            f"{optim.lr:g} can move a log-prob of this model by about {whole:.1g} nats. Raise optim.lr above "
            f"{more:.1g}{said if usual.lr >= more else ''}, or train longer"
        )
    elif most > (fast := fastest(hidden)):
        less = optim.lr * fast / most
        yield (
            f"the policy may move too fast: one optimiser step at optim.lr {optim.lr:g} can move a log-prob of "
            f"this model by about {most:.1g} nats. Lower optim.lr below {less:.1g}{said if usual.lr <= less else ''}"
        )


Squares = tuple[float, float]
"""Squared norms of an optimiser step and of the weights it moved."""


def ratio_of_squares(found: Sequence[Squares]) -> float | None:
    """Return the ratio of step to weights of several weights; None if nothing was stepped."""
    moved, size = (sum(column) for column in zip(*found, strict=True)) if found else (0.0, 0.0)
    return math.sqrt(moved / size) if size > 0 else None


def summed_squares(pieces: Sequence[Sequence[Squares]]) -> list[Squares]:
    """Return the squares of each weight from those of its pieces, which several optimisers step."""
    return [(sum(moved), sum(size)) for moved, size in (zip(*each, strict=True) for each in zip(*pieces, strict=True))]


def update_squares(optimizer: torch.optim.Optimizer) -> list[Squares] | None:
    """Return the squares of Adam's last step for each weight, (0, 0) for one without a step; None for other
    optimisers.
    """
    if any("betas" not in group for group in optimizer.param_groups):
        return None
    return [
        _squares_of(weight, optimizer.state.get(weight) or {}, group)
        for group in optimizer.param_groups
        for weight in group["params"]
    ]


def _squares_of(weight: torch.Tensor, state: Mapping[str, Any], group: Mapping[str, Any]) -> Squares:
    import torch

    if "exp_avg_sq" not in state or "exp_avg" not in state:
        return 0.0, 0.0
    beta1, beta2 = group["betas"]
    count = float(state["step"])
    scale = math.sqrt(1 - beta2**count) / (1 - beta1**count)
    wide = torch.promote_types(weight.dtype, torch.float32)
    least = group["eps"] * math.sqrt(1 - beta2**count)
    columns = (weight.detach(), state["exp_avg"], state["exp_avg_sq"])
    moved = size = 0.0
    # Piece by piece, so that intermediate results of a large weight stay in the cache and take no memory.
    for own, first, second in zip(*(x.reshape(-1).split(PIECE) for x in columns), strict=True):
        spread = second.to(wide).sqrt().add_(least)
        moved += float((first.to(wide) / spread).square_().sum()) * (group["lr"] * scale) ** 2
        size += float(own.to(wide).square().sum())
    return moved, size


def learning_rate(optim: Optim, step: int, steps: int) -> float:
    """Return the learning rate of rollout `step` (from 0) of `steps`.

    It warms up linearly, then follows the schedule to `min_lr_ratio * lr`.
    """
    if step < optim.warmup_steps:
        return optim.lr * (step + 1) / optim.warmup_steps
    if optim.schedule == "constant":
        return optim.lr
    done = (step - optim.warmup_steps) / max(1, steps - optim.warmup_steps)
    share = 1 - done if optim.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return optim.lr * (optim.min_lr_ratio + (1 - optim.min_lr_ratio) * share)
