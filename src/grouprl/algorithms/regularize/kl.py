"""Estimators of KL(π || π_ref) from the tokens that π sampled, and the meaning of their gradients.

With d = log π(y) - log π_ref(y):  k1 = d,  k2 = d²/2,  k3 = exp(-d) - 1 + d  (Schulman 2020, "Approximating KL
divergence"). As a *value* k1 and k3 are unbiased. As a *loss* on fixed samples their gradients differ: see `GRADIENT`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch

from grouprl.algorithms.objective.ratio import held
from grouprl.core.edges import beyond_rounding, beyond_rounding_code, flat_within_rounding

if TYPE_CHECKING:
    from torch import Tensor

ValueEstimator = Literal["k1", "k2", "k3", "abs"]
Estimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+", "abs+", "weighted_k3"]

GRADIENT: dict[str, str] = {
    "k1": "gradient zero on average over the policy's own samples: it only adds noise as a loss",
    "k2": "gradient of the reverse KL(π || anchor)",
    "k3": "gradient of the forward KL(anchor || π), though its value estimates the reverse KL",
    "abs": "gradient ±∇log π by the sign of the log-ratio: a total-variation-like pull",
    "k1+": "value of k1, gradient of k2: the reverse KL(π || anchor)",
    "k3+": "value of k3, gradient of k2: the reverse KL(π || anchor)",
    "abs+": "value |d|, gradient of k2: the reverse KL(π || anchor)",
    "weighted_k3": "k3 times π/π_old with gradient: exactly the gradient of the reverse KL(π || anchor)",
}

FORMULA: dict[str, str] = {
    "k1": "d",
    "k2": "d²/2",
    "k3": "exp(-d) - 1 + d",
    "abs": "|d|",
    "k1+": "d (gradient of d²/2)",
    "k3+": "exp(-d) - 1 + d (gradient of d²/2)",
    "abs+": "|d| (gradient of d²/2)",
    "weighted_k3": "π/π_old · (exp(-d) - 1 + d)",
}


CODE: dict[str, str] = {
    "k1": "d_bt",
    "k2": "d_bt.square() / 2",
    "k3": "torch.expm1(held(-d_bt)) + d_bt",
    "abs": f"({beyond_rounding_code('d_bt')}).abs()",
}
"""Estimates in plain torch; those whose gradient is another estimate's have none."""


_VALUE: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda log_bt: log_bt,
    "k2": lambda log_bt: log_bt.square() / 2,
    "k3": lambda log_bt: torch.expm1(held(-log_bt)) + log_bt,
    "abs": lambda log_bt: beyond_rounding(log_bt).abs(),
}


def estimate(log_bt: Tensor, estimator: str, limit: float | None = None) -> Tensor:
    """Return [B,T] estimate of the KL from d = log π - log π_ref ([B,T]).

    With `limit` the estimate is clamped to ±limit and has no slope beyond, as in verl; the gradient of an estimator
    with '+' is always that of the whole d²/2. A |d| as small as rounding (`beyond_rounding`) has no slope, and is 0
    for `abs`; only the slope of `k1` is the same at any distance.
    """
    log_bt = log_bt if estimator == "k1" else flat_within_rounding(log_bt)
    value_bt = _VALUE[estimator.removesuffix("+")](log_bt)
    if limit is not None:
        value_bt = value_bt.clamp(-limit, limit)
    if not estimator.endswith("+"):
        return value_bt
    slope_bt = log_bt.square() / 2
    return value_bt.detach() + (slope_bt - slope_bt.detach())
