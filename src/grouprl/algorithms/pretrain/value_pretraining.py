"""Value pre-training: the critic learns what the frozen policy earns before the policy moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.returns import discounted, token_rewards
from grouprl.algorithms.data_part import Pretraining, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import InputError
from grouprl.core.numbers import Count, Positive, Share

if TYPE_CHECKING:
    from grouprl.core.batch import Batch
    from grouprl.policy.language.causal_lm import CausalPolicy
    from grouprl.records.tokens import Tokens


@part("pretrain")
class ValuePretraining(Pretraining):
    """Fit the value head to whole outcomes (λ = 1) of the frozen policy's completions (VC-PPO arXiv:2503.01491, VAPO).

    The value is linear in the last hidden state and nothing but the head is fitted, so the best head has a closed form:
    after each of `steps` rollouts it is the ridge regression of all returns so far on their hidden states. `ridge` is
    the penalty on its weights (not on the bias) in units of the mean sum of squares of a hidden dimension. Before the
    fit, the returns of each rollout are predicted with the current head: `value_loss` and `explained_variance`.
    """

    one_policy: ClassVar[bool] = True
    in_parts: ClassVar[bool] = True

    steps: Count = 50
    ridge: Positive = 1e-4
    gamma: Share = 1.0
    says = "before the first step, fit the value head alone to the returns of {steps} rollouts of the frozen policy"

    def count(self, context: RunContext) -> int:
        """Return the number of pieces, one for each rollout."""
        return self.steps

    def piece(self, number: int, context: RunContext) -> dict[str, float]:
        """Sample a rollout of the run's size, predict its returns, and fit the head to all rollouts so far."""
        rows = context.sample(context.take(context.prompts))
        batch = context.batch(rows).rows(torch.from_numpy(rows.valid_b))
        ones_b = torch.full_like(batch.reward_b, self.gamma)
        return_m = discounted(token_rewards(batch), batch.mask_bt, ones_b)[batch.mask_bt].double()
        policy = _with_head(context.text.policy)
        state_md = _own_states(policy, batch)
        with torch.no_grad():
            weight_1d, bias_1 = policy.value_weights()
            value_m = torch.nn.functional.linear(state_md.to(weight_1d), weight_1d, bias_1)[:, 0]
            metrics = foreseen(value_m.cpu().double(), return_m)
        self.fit(context, torch.cat([state_md, torch.ones(len(state_md), 1, dtype=torch.float64)], 1), return_m)
        if number + 1 == self.steps:
            context.state_of(self).clear()
        return metrics

    @torch.no_grad()
    def fit(self, context: RunContext, state_md: Tensor, return_m: Tensor) -> None:
        """Add observations (states end with a 1 for the bias) and set the head to the best fit of all so far."""
        store = context.state_of(self)
        store["gram"] = state_md.T @ state_md + store.get("gram", 0.0)
        store["moment"] = state_md.T @ return_m + store.get("moment", 0.0)
        penalty_d = torch.full_like(return_m[:1].expand(state_md.shape[1]), self.ridge)
        penalty_d = penalty_d * store["gram"].diagonal()[:-1].mean().clamp(min=1e-12)
        penalty_d[-1] = 0.0
        weight_d = torch.linalg.solve(store["gram"] + penalty_d.diag(), store["moment"])
        _with_head(context.text.policy).set_value_weights(weight_d[None, :-1], weight_d[-1:])

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled before the first step."""
        completions = run.prompts * run.group_size
        return f"{self.steps} × {completions} = {self.steps * completions:,} completions before the first step"

    @override
    def formula(self) -> str:
        return (
            "V = argmin Σ_t (V(s_t) - G_t)² + ridge,  G_t = Σ_{k≥t} r_k" if self.gamma == 1 else "V = argmin (V - G)²"
        )


def foreseen(value_m: Tensor, return_m: Tensor) -> dict[str, float]:
    """Return half the squared error and the explained variance of values [M] before they are fitted to returns [M]."""
    error_m, spread = return_m - value_m, float(return_m.var(correction=0))
    explained = 1 - float(error_m.var(correction=0)) / spread if spread > 0 else 0.0
    return {"value_loss": float(0.5 * error_m.square().mean()), "explained_variance": explained}


def _own_states(policy: CausalPolicy, batch: Batch) -> Tensor:
    """Return the hidden states [M,H] that predicted the policy's own tokens: those of an environment have no return."""
    states = policy.hidden(cast("Tokens", batch.inputs))
    return torch.cat([each[mask[: len(each)]] for each, mask in zip(states, batch.mask_bt, strict=True)]).double()


def _with_head(policy: CausalPolicy) -> CausalPolicy:
    if getattr(policy, "value_head", None) is None:
        raise InputError(
            "value_pretraining without a value head", "It fits a critic", "Give the method a critic: critic: value_loss"
        )
    return policy
