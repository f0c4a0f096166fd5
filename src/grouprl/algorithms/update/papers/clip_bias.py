"""Steps made smaller by the part of the gradient that the clip leaves out: the second half of ST-PPO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.filter.filter import unmasked
from grouprl.algorithms.objective.adaptive_clip import TurnClip, turn_log_ratio
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.objective.ratio import log_ratio
from grouprl.algorithms.part import Part, RunFacts, part
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.outputs import LOG_PROB


@part("update")
class ClipBias(Update):
    """Divide the policy's gradient by the norm of its clipping bias, max(‖C‖, `least`) (ST-PPO, arXiv:2511.20718).

    C is the gradient of the mean over completions of 1/|y|·Σ ρ_t·A_t over the clipped tokens (E[1/|y| Σ_t], whatever
    the aggregation of the loss): what the clip leaves out of the off-policy gradient. Steps whose tokens are mostly
    clipped, far off-policy, become smaller. The critic's gradient stays as it is. It takes a second backward pass
    wherever a token is clipped.
    """

    least: Annotated[float, Field(gt=0)] = 1.0
    says = "divide the policy's gradient by the norm of what the clip leaves out of it, where that is above {least:g}"
    equation = "g ← g / max(‖C‖, {least:g}),  C = ∇ 1/B Σ_i 1/|y_i| Σ_{{t clipped}} ρ_t A_t"
    reads = ("old_bt",)
    reads_gradients = True

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps; yield the metrics of each."""
        policy_only = learner.without_critic()
        for step in learner.steps(prepared):
            if not bool(step.active_bt.any()):
                continue
            norm = self.norm(policy_only, step)
            metrics = policy_only.accumulate(step)
            for parameter in learner.policy.parameters():
                parameter.grad.div_(max(norm, self.least))
            if learner.method.critic is not None:
                metrics |= learner.accumulate_values(step)
            yield {**metrics, "clip_bias": norm, "grad_norm": learner.apply()}

    def norm(self, learner: UpdateSteps, step: Batch) -> float:
        """Return ‖C‖ of a weighted step; 0 where nothing is clipped. No gradient is left in the parameters."""
        _, logp_bt = learner.evaluate(step)
        leaf_bt = logp_bt.clone().requires_grad_()
        with torch.enable_grad():
            clipped = clipped_terms(learner.method.objective, leaf_bt, step)
            if clipped is None:
                return 0.0
            (cotangent_bt,) = torch.autograd.grad(clipped, leaf_bt)
        parameters = list(learner.policy.parameters())
        learner.policy.backward(step.inputs, {LOG_PROB: cotangent_bt})
        norms = [parameter.grad.norm() for parameter in parameters if parameter.grad is not None]
        total = float(torch.stack([x.float().cpu() for x in norms]).norm())
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        return total

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect with one update per rollout, in which nothing is clipped."""
        if run.updates_per_rollout > 1:
            return []
        return ["clip_bias has no effect: with one update per rollout nothing is clipped"]


def clipped_terms(objective: Part, logp_bt: Tensor, batch: Batch) -> Tensor | None:
    """Return 1/B Σ_i 1/|y_i| Σ ρ_t·A_t over the tokens that `objective` clips, differentiable; None where it clips
    none.

    Raises InputError on an objective other than `clipped` and `turn_clip`.
    """
    if isinstance(objective, TurnClip):
        ratio_bt = turn_log_ratio(logp_bt, batch).exp()
    elif isinstance(objective, Clipped):
        ratio_bt = log_ratio(logp_bt, batch, objective.ratio, objective.against).exp()
    else:
        raise InputError(
            f"clip_bias with the objective {objective.name}", "it measures what a PPO clip leaves out",
            "Use the objective clipped or turn_clip",
        )  # fmt: skip
    adv_bt = batch.need("advantage_bt", "clip_bias")
    clipped_bt = (ratio_bt > 1 + objective.clip_high) & (adv_bt > 0) | (ratio_bt < 1 - objective.clip_low) & (
        adv_bt < 0
    )
    clipped_bt = clipped_bt & batch.active_bt
    if not bool(clipped_bt.any()):
        return None
    weight_bt = unmasked(SequenceMean()(batch), batch)
    if batch.multiplier_bt is not None:
        weight_bt = weight_bt * batch.multiplier_bt
    return (torch.where(clipped_bt, weight_bt * adv_bt, 0) * ratio_bt).sum()
