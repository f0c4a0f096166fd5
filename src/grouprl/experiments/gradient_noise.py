"""Signal and noise of a gradient: those of a pilot's groups, compared with their mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping
from grouprl.core.outputs import LOG_PROB
from grouprl.evaluation.pass_at_k import t_quantile
from grouprl.experiments.power import Floats
from grouprl.protocols import Policy
from grouprl.records.tokens import Tokens
from grouprl.storage.run_folder import RunFolder
from grouprl.training.export import load_trained


@dataclass(frozen=True)
class GradientNoise:
    """The gradients of single groups: |mean|² and the variance around it, summed over parameters, both without bias."""

    step: int
    groups: int
    """Groups of the step, those without a gradient included."""
    signal: float
    noise: float
    low: float
    high: float
    """95 % interval of the signal, by the jackknife over groups."""

    @property
    def scale(self) -> float | None:
        """Groups at which signal and noise of their mean gradient are equal: noise / signal.

        It is the simple noise scale tr(Σ)/|G|² of McCandlish et al. 2018 (arXiv:1812.06162, section 2.2) with groups
        for examples. None where the signal is not above 0, so that it cannot be told from noise.
        """
        return self.noise / self.signal if self.signal > 0 else None

    def ratio(self, groups: int) -> float:
        """Return the signal-to-noise ratio of the mean gradient of so many groups: |G|/√(tr(Σ)/groups)."""
        return math.sqrt(max(0.0, self.signal) * groups / self.noise) if self.noise > 0 else math.inf


def parted(square_g: Floats, along_g: Floats) -> tuple[float, float, float, float]:
    """Return signal, noise and the ends of the signal's interval from [G] groups.

    Args:
        square_g: |g|² of each group's gradient g.
        along_g: the product of each with the sum of all.

    The signal is the mean of g_i·g_j over pairs i ≠ j, which has no bias for |E g|².

    Raises:
        InputError: there are fewer than three groups.
    """
    count = len(square_g)
    if count < 3:
        raise InputError(f"gradients of {count} groups", "an interval needs at least three", "Store larger steps")
    total, squares = float(along_g.sum()), float(square_g.sum())
    signal = (total - squares) / (count * (count - 1))
    without_g = (total - 2 * along_g + square_g - (squares - square_g)) / ((count - 1) * (count - 2))
    deviation = math.sqrt((count - 1) / count * float(((without_g - without_g.mean()) ** 2).sum()))
    half = t_quantile(count - 1) * deviation
    return signal, squares / count - signal, signal - half, signal + half


def gradient_noise(folder: Path) -> GradientNoise:
    """Measure the gradients of the groups of a run's last stored step, with the policy that it has now.

    A group's gradient is that of -Σ A·log π over its trained tokens, with the stored advantages and divided by the mean
    number of tokens of a group: GRPO's first update, before clips, weights of tokens and regularisers. Groups that the
    method dropped are not among them; groups of equal rewards that it kept count, without a gradient. For DAPO, which
    samples until groups differ, the noise is thus that of groups that teach.

    Raises:
        InputError: it is not a run of a language model, or stores no advantages.
    """
    path = max(RunFolder.open(folder).rollouts.glob("step-*.parquet"), default=None)
    rows = pq.read_table(path).to_pylist() if path is not None else []
    used = [row for row in rows if row.get("used") and isinstance(row.get("advantage"), list) and row.get("prompt_ids")]
    if path is None or not used:
        raise InputError(f"{folder} stores no tokens with advantages", "gradients are those of a language model's rows")
    policy = load_trained(folder).policy
    square, along = _products(policy, used)
    return GradientNoise(int(path.stem.partition("-")[2]), len(square), *parted(square, along))


def _products(policy: Policy, rows: Sequence[JsonMapping]) -> tuple[Floats, Floats]:
    """Return [G] each group's squared gradient, and its product with the sum of all."""
    groups: dict[int, list[JsonMapping]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    tokens = sum(sum(row["mask"]) for row in rows) / len(groups)
    whole: torch.Tensor | None = None
    for gradient in _gradients(policy, groups.values(), tokens):
        whole = gradient if whole is None else whole + gradient
    assert whole is not None
    # Computed again, so that one gradient is held at a time: each is as large as the model.
    found = [(float(g @ g), float(g @ whole)) for g in _gradients(policy, groups.values(), tokens)]
    return np.array([square for square, _ in found]), np.array([along for _, along in found])


def _gradients(policy: Policy, groups: Iterable[Sequence[JsonMapping]], tokens: float) -> Iterator[torch.Tensor]:
    """Yield the gradient of each group, all parameters in one vector."""
    parameters = policy.parameters()
    for rows in groups:
        for each in parameters:
            each.grad = None
        inputs = Tokens.of((row["prompt_ids"] for row in rows), (row["completion_ids"] for row in rows))
        weight_bt = torch.zeros(len(rows), inputs.width, dtype=policy.score_dtype, device=policy.device)
        for b, row in enumerate(rows):
            pushed = np.array(row["advantage"]) * np.array(row["mask"])
            weight_bt[b, : len(pushed)] = torch.as_tensor(-pushed / tokens)
        policy.backward(inputs, {LOG_PROB: weight_bt})
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        # In double precision: the signal is a small difference of sums of as many squares as there are parameters.
        yield torch.cat([part.detach().reshape(-1).to("cpu", torch.float64) for part in parts])
    for each in parameters:
        each.grad = None
