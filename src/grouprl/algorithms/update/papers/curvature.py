"""Token masks from a model of the next optimiser step on the output layer (CAPO, arXiv:2510.00819)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError

if TYPE_CHECKING:
    from grouprl.policy.engine import Head, Readout
    from grouprl.records.tokens import Tokens

Threshold = Annotated[float, Field(ge=0)]
Direction = Callable[[Tensor, Tensor], Tensor]
"""(token ids [N,K], gradients [N,K,H] of the objective) -> steps [N,K,H] per learning rate."""
HELD = 2**22
"""Largest number of entries of candidate steps held in memory at a time."""


@part("update")
class CurvatureMask(Update):
    """CAPO: leave out tokens whose own step would change objective or policy too much (arXiv:2510.00819).

    Only the output layer is modelled. With v = e_a - π, g = A·v·hᵀ and a candidate step lr·G, u = G·h:
    m_H = lr·⟨g,G⟩ + ½lr²·A·[(v·u)² - uᵀ(diag π - ππᵀ)u] and m_F = ½lr²·(v·u)². A token stays when
    -`objective` < m_H < `objective` (not `symmetric`: 0 ≤ m_H < `objective`) and m_F < `policy`; a threshold of 0 is
    off. G is g itself ("sgd") or what AdamW would make of it with its own moments ("adam"). The vocabulary is reduced
    to the sampled token and the `top` likeliest.
    """

    one_policy: ClassVar[bool] = True

    objective: Threshold = 1e-2
    policy: Threshold = 1e-4
    symmetric: bool = True
    model: Literal["adam", "sgd"] = "adam"
    top: Annotated[int, Field(ge=1)] = 64

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the optimiser steps without the tokens that are rejected."""
        for step in learner.steps(prepared):
            objective_bt, policy_bt = self.foresee(learner, step)
            active_bt, count = step.active_bt, max(1, int(step.active_bt.sum()))
            keep_bt = active_bt & self.keeps(objective_bt, policy_bt)
            metrics = learner.take(learner.method.compute_loss_weights(step.replace(loss_mask_bt=keep_bt)))
            yield {
                **metrics,
                "tokens_rejected": int((active_bt & ~keep_bt).sum()) / count,
                "objective_shift": float(objective_bt[active_bt].abs().sum()) / count,
                "policy_shift": float(policy_bt[active_bt].sum()) / count,
            }

    def keeps(self, objective: Tensor, policy: Tensor) -> Tensor:
        """Return whether shifts m_H and m_F, of any shape, are within the thresholds (bool, the same shape)."""
        keep = torch.ones_like(policy, dtype=torch.bool)
        if self.objective > 0:
            above = objective > -self.objective if self.symmetric else objective >= 0
            keep &= above & (objective < self.objective)
        return keep & (policy < self.policy) if self.policy > 0 else keep

    @torch.no_grad()
    def foresee(self, learner: UpdateSteps, step: Batch) -> tuple[Tensor, Tensor]:
        """Return m_H and m_F of each token, [B,T], under the current policy."""
        a_bt = step.need("advantage_bt", self.name)
        a_bt = a_bt if step.multiplier_bt is None else a_bt * step.multiplier_bt
        inputs = cast("Tokens", step.inputs)
        length_b, found_bt = inputs.response_lengths, torch.zeros(2, *a_bt.shape, dtype=a_bt.dtype)
        for rows, readout in learner.policy.readouts(inputs):
            a_m = torch.cat([a_bt[row, : length_b[row]] for row in rows])
            values_m = self._foresee_pass(learner, readout, a_m.to(readout.hidden_md)).to(a_bt)
            for row, piece in zip(rows, values_m.split([length_b[row] for row in rows], dim=1), strict=True):
                found_bt[:, row, : length_b[row]] = piece
        return found_bt[0], found_bt[1]

    def _foresee_pass(self, learner: UpdateSteps, readout: Readout, a_m: Tensor) -> Tensor:
        """Return [2,M] m_H and m_F of the tokens of one pass through the model."""
        weight_vh, group = trained_head(readout.head, learner.optimizer)
        direction = adam(learner.optimizer, group, weight_vh) if self.model == "adam" else plain
        temperature, pieces = learner.policy.temperature, []
        for part_m, logits_cv in readout.chunks():
            a_c, hidden_ch, target_c = a_m[part_m], readout.hidden_md[part_m], readout.target_m[part_m]
            id_ck, p_ck = reduced((logits_cv / temperature).log_softmax(-1), target_c, self.top)
            size = max(1, HELD // (id_ck.shape[1] * hidden_ch.shape[1]))
            columns = zip(a_c.split(size), hidden_ch.split(size), id_ck.split(size), p_ck.split(size), strict=True)
            pieces += [shifts(a, h, ids, p, group["lr"], direction, temperature) for a, h, ids, p in columns]
        return torch.cat(pieces, dim=1)

    @override
    def words(self) -> str:
        low = f"{-self.objective:g}" if self.symmetric else "0"
        bounds = [f"the objective within {low} and {self.objective:g}"] if self.objective > 0 else []
        bounds += [f"the policy by less than {self.policy:g} nats"] if self.policy > 0 else []
        return (
            f"before every optimiser step, leave out tokens whose own {self.model} step on the output layer would not "
            f"change {' and '.join(bounds) or 'anything'} (the {self.top} likeliest tokens stand for the vocabulary)"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if both thresholds are 0."""
        off = self.objective == 0 and self.policy == 0
        return ["curvature_mask has no effect: both thresholds are 0, which turns them off"] if off else []


def reduced(logp_nv: Tensor, target_n: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return ids and probabilities [N,1+K] of the sampled token, which comes first, and the `top` likeliest others.

    If the sampled token is one of the likeliest, its second entry has probability 0.
    """
    logp_nk, id_nk = logp_nv.topk(min(top, logp_nv.shape[1]))
    p_nk = torch.where(id_nk == target_n[:, None], 0, logp_nk.exp())
    return torch.cat([target_n[:, None], id_nk], 1), torch.cat([logp_nv.gather(1, target_n[:, None]).exp(), p_nk], 1)


def shifts(
    a_n: Tensor, hidden_nh: Tensor, id_nk: Tensor, p_nk: Tensor, lr: float, direction: Direction, temperature: float
) -> Tensor:
    """Return [2,N] m_H and m_F of tokens with advantages `a_n`; `id_nk` and `p_nk` as `reduced` gives them.

    m_H is the second-order change of A·(ρ - 1), m_F half the square of the first-order change of log π in nats
    (arXiv:2510.00819, section 4).
    """
    v_nk = -p_nk
    v_nk[:, 0] += 1
    g_nkh = (a_n[:, None] * v_nk)[:, :, None] * hidden_nh[:, None, :] / temperature
    u_nk = (direction(id_nk, g_nkh) * hidden_nh[:, None, :]).sum(-1) / temperature
    slope_n = (v_nk * u_nk).sum(-1)
    fisher_n = (p_nk * u_nk.square()).sum(-1) - (p_nk * u_nk).sum(-1).square()
    objective_n = lr * a_n * slope_n + 0.5 * lr**2 * a_n * (slope_n.square() - fisher_n)
    return torch.stack([objective_n, 0.5 * (lr * slope_n).square()])


def plain(id_nk: Tensor, g_nkh: Tensor) -> Tensor:
    """Return the step of gradient ascent, which is the gradient."""
    return g_nkh


def adam(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], weight_vh: Tensor) -> Direction:
    """Return Adam's step if one token's gradient were that of the whole batch, from its moments of `weight_vh`.

    The moments are those of the loss, so their sign is reversed. Raises InputError unless the optimiser is Adam.
    """
    if "betas" not in group:
        raise InputError(
            f"curvature_mask.model = adam with the optimiser {type(optimizer).__name__}",
            "it models the next step of Adam",
            "Set curvature_mask.model: sgd",
        )
    state = optimizer.state.get(weight_vh, {})
    mean_vh, square_vh = (state.get(name, torch.zeros_like(weight_vh)) for name in ("exp_avg", "exp_avg_sq"))
    (b1, b2), count = group["betas"], float(state.get("step", 0)) + 1

    def direction(id_nk: Tensor, g_nkh: Tensor) -> Tensor:
        mean_nkh = (1 - b1) * g_nkh - b1 * mean_vh[id_nk]
        square_nkh = (1 - b2) * g_nkh.square() + b2 * square_vh[id_nk]
        return mean_nkh / (1 - b1**count) / ((square_nkh / (1 - b2**count)).sqrt() + group["eps"])

    return direction


def trained_head(head: Head | None, optimizer: torch.optim.Optimizer) -> tuple[Tensor, Mapping[str, Any]]:
    """Return the weight [V,H] of the output layer and its group in the optimiser.

    Raises InputError if the logits do not come from a linear layer, or that layer is not trained directly.
    """
    if head is None:
        raise InputError(
            "curvature_mask with a model that changes its logits after the output layer",
            "its shifts are those of a plain linear layer",
            "Use a model without capped or scaled logits, or leave the part learn out",
        )
    for group in optimizer.param_groups:
        if any(weight is head.weight_vd for weight in group["params"]):
            return head.weight_vd, group
    raise InputError(
        "curvature_mask with an output layer that is not trained itself",
        "it models the optimiser's step on that layer's weight, and adapters leave it as it is",
        "Set model.lora to null, or leave the part learn out",
    )
