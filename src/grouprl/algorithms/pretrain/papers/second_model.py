"""Second models that are trained once, before the policy: a value model (DVPO) and a preference model (RTO).

Each begins as a copy of the initial policy and learns from pairs of a right and a wrong completion of the same prompt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.returns import GAE
from grouprl.algorithms.augment.guidance import writes_solutions
from grouprl.algorithms.augment.resampling import again, groups
from grouprl.algorithms.auxiliary_models import second_policy
from grouprl.algorithms.data_part import Pretraining, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.pretrain.value_pretraining import foreseen
from grouprl.core.batch import Batch
from grouprl.core.numbers import Count, Positive, Share
from grouprl.core.outputs import LOG_PROB, VALUE
from grouprl.records.joining import join
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.text_samples import TextSamples, as_text
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy

PairSource = Literal["completions", "solutions"]
GRAD_CLIP = 1.0
EPS = 1e-8


class SecondModel(Pretraining):
    """Base: a copy of the initial policy, trained on pairs for `steps` rollouts of the run's size, then frozen.

    Right and wrong completions come from the policy itself; with `chosen="solutions"` the right one is the task's.
    Weights and optimiser are in the part's store, the model itself in memory.
    """

    needs_text = True

    valued: ClassVar[bool] = False
    """Whether the model has a value head."""
    steps: int
    lr: float
    epochs: int
    chosen: PairSource

    def second_models(self) -> int:
        """Return how many copies of the policy, with weights of their own, the part keeps in memory."""
        return 1

    def targets(self, model: CausalPolicy, pairs: TextSamples, context: RunContext) -> Tensor:
        """Return the targets that stay fixed over the epochs of a rollout."""
        raise NotImplementedError

    def learn(self, model: CausalPolicy, pairs: TextSamples, context: RunContext, targets: Tensor) -> dict[str, float]:
        """Add the gradient of N pairs to the model's parameters and return metrics.

        Rows are the N correct completions, then the N wrong ones.
        """
        raise NotImplementedError

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        completions = run.prompts * run.group_size
        return f"{self.steps} × {completions} = {self.steps * completions:,} completions before the first step"

    def count(self, context: RunContext) -> int:
        """Return the number of pieces, one for each rollout."""
        return self.steps

    def piece(self, number: int, context: RunContext) -> dict[str, float]:
        """Sample a rollout, make pairs of it, train on them; the metrics are those before the model sees them."""
        pairs = self.pairs(as_text(context.sample(context.take(context.prompts))), context)
        model, metrics = self.model(context), {"pairs": 0.0 if pairs is None else len(pairs) / 2}
        optimizer, store = self._optimizer(model, context), context.state_of(self)
        if pairs is not None:
            metrics |= self._update(model, optimizer, pairs, context)
        store["weights"], store["optimizer"] = model.trainable_state(), optimizer.state_dict()
        if number + 1 == self.steps:
            optimizer.zero_grad(set_to_none=True)
            del store["optimizer"], context.cache_of(self)["optimizer"]
        return metrics

    def _update(
        self, model: CausalPolicy, optimizer: torch.optim.Optimizer, pairs: TextSamples, context: RunContext
    ) -> dict[str, float]:
        """Take `epochs` optimiser steps on the same pairs; return the metrics of the first."""
        targets, found = self.targets(model, pairs, context), []
        for _ in range(self.epochs):
            optimizer.zero_grad()
            found.append(self.learn(model, pairs, context, targets))
            torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
            optimizer.step()
        return found[0]

    def pairs(self, rows: TextSamples, context: RunContext) -> TextSamples | None:
        """Return correct completions, then the wrong ones they are paired with; None where no prompt has both."""
        right: list[int] = []
        wrong: list[int] = []
        for own in groups(rows, rows.valid_b):
            good, bad = (own[rows.scores.correct_b[own] == truth] for truth in (True, False))
            if self.chosen == "solutions":
                good = bad[:1]
            size = min(len(good), len(bad))
            right, wrong = [*right, *good[:size]], [*wrong, *bad[:size]]
        if not wrong:
            return None
        first = subset(rows, np.array(right))
        if self.chosen == "solutions":
            solutions = [context.task.solution(example) or "" for example in first.examples]
            first = context.text.rows_of_texts([again(rows, row) for row in right], solutions)
        return join([first, subset(rows, np.array(wrong))])

    def model(self, context: RunContext) -> CausalPolicy:
        """Return the model with its training so far."""
        held = context.cache_of(self)
        if "model" not in held:
            held["model"] = second_policy(context.text.policy, value_head=self.valued)
            if "weights" in context.state_of(self):
                held["model"].load_trainable_state(context.state_of(self)["weights"])
        return held["model"]

    def _optimizer(self, model: CausalPolicy, context: RunContext) -> torch.optim.Optimizer:
        held, store = context.cache_of(self), context.state_of(self)
        if "optimizer" not in held:
            held["optimizer"] = torch.optim.AdamW(model.parameters(), lr=self.lr, weight_decay=0.0)
            if "optimizer" in store:
                held["optimizer"].load_state_dict(store["optimizer"])
        return held["optimizer"]

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without pairs: groups of one completion, or a task without the solutions asked for."""
        if self.chosen == "completions" and run.group_size == 1:
            return [
                f"{self.name} learns from right and wrong completions of one prompt. Use batch.group_size of 2 or more"
            ]
        return writes_solutions(self.name, run) if self.chosen == "solutions" else []

    def _where(self) -> str:
        right = "the task's solutions" if self.chosen == "solutions" else "its own correct completions"
        return f"{self.steps} rollouts of the initial policy, {right} against its wrong ones"


@part("pretrain")
class GlobalValue(SecondModel):
    """A value model for all of training, from preferences: +1 for correct completions, -1 for wrong (DVPO,
    arXiv:2502.16944).

    The reward comes when the completion is whole; the values of all its states, the whole completion's included, are
    fitted to TD(λ) returns, A_GAE(λ) + V with the model's own values before the update, `epochs` times. Then the model
    is frozen and gives `value_bt` of every completion and `stats.value_after`, the value of the state after each token;
    both are whitened over the tokens of the step with `whiten`. It reads one position more than a completion has.
    """

    valued: ClassVar[bool] = True

    steps: Count = 50
    lr: Positive = 1e-4
    epochs: Count = 2
    lam: Share = 0.95
    gamma: Share = 1.0
    chosen: PairSource = "completions"
    whiten: bool = True
    equation = "½(V - G)²,  G = A_GAE({lam:g}) + V,  r = ±1 at the end"
    fills = ("value_bt", "stats.value_after")

    def targets(self, model: CausalPolicy, pairs: TextSamples, context: RunContext) -> Tensor:
        """Return [B,T+1] TD(λ) returns of ±1 at the end."""
        tokens, outcome_b = whole(pairs.tokens, context.text.policy), labels(pairs)
        value_bt = _values(model, tokens)
        group_b = torch.from_numpy(pairs.group_b)
        batch = Batch(mask_bt=tokens.present_bt(), group_b=group_b, reward_b=outcome_b.to(value_bt), value_bt=value_bt)
        return GAE(gamma=self.gamma, lam=self.lam)(batch) + value_bt

    def learn(self, model: CausalPolicy, pairs: TextSamples, context: RunContext, targets: Tensor) -> dict[str, float]:
        """Add the gradient of the mean of ½(V - G)² over states; return metrics."""
        tokens = whole(pairs.tokens, context.text.policy)
        mask_bt, value_bt = tokens.present_bt(), _values(model, tokens)
        error_bt = torch.where(mask_bt, value_bt - targets, 0)
        model.backward(tokens, {VALUE: error_bt / mask_bt.sum()})
        outcome_bt = labels(pairs)[:, None].expand_as(value_bt)
        explained = foreseen(value_bt[mask_bt], outcome_bt[mask_bt])["explained_variance"]
        return {"value_loss": float(0.5 * error_bt[mask_bt].square().mean()), "explained_variance": explained}

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `value_bt` and `stats.value_after`."""
        tokens = whole(as_text(samples).tokens, context.text.policy)
        value_bt = _values(self.model(context), tokens).to(batch.dtype)
        before_bt, after_bt = value_bt[:, :-1], value_bt[:, 1:]
        if self.whiten:
            value_m = before_bt[batch.mask_bt]
            scale = (value_m.var() + EPS).rsqrt() if len(value_m) > 1 else 1.0
            before_bt, after_bt = ((x - value_m.mean()) * scale for x in (before_bt, after_bt))
        return batch.replace(value_bt=before_bt, stats={**batch.stats, "value_after": after_bt})

    @override
    def words(self) -> str:
        whiten = ", whitened" if self.whiten else ""
        return f"train a value model of its own on {self._where()}; then it is frozen and gives every value{whiten}"


def _values(model: CausalPolicy, tokens: Tokens) -> Tensor:
    """Return [B,T] the model's values, on the CPU."""
    return model.evaluate(tokens, (VALUE,))[VALUE].cpu()


def whole(tokens: Tokens, policy: CausalPolicy) -> Tokens:
    """Return rows with one more token, so that its state is that of the whole completion."""
    end = policy.eos_ids[0]
    return replace(tokens, response_ids=tuple((*ids, end) for ids in tokens.response_ids))


def labels(pairs: TextSamples) -> Tensor:
    """Return [B] 1 for the first half of the rows, -1 for the others."""
    half = len(pairs) // 2
    return torch.tensor([1.0] * half + [-1.0] * half, dtype=torch.float64)


@part("pretrain")
class PreferenceModel(SecondModel):
    """A copy of the initial policy trained by DPO; then it gives `stats.expert`, its log-prob of each token (RTO).

    The loss of a pair is -log σ(β[(log π(y_w) - log π_0(y_w)) - (log π(y_l) - log π_0(y_l))]), log-probs summed over a
    completion, π_0 the initial policy (arXiv:2305.18290; RTO arXiv:2404.18922).
    """

    steps: Count = 50
    lr: Positive = 1e-4
    epochs: Count = 1
    beta: Positive = 0.1
    chosen: PairSource = "completions"
    equation = "-log σ({beta:g}·[log π/π_0(y_w) - log π/π_0(y_l)])"
    fills = ("stats.expert",)

    def targets(self, model: CausalPolicy, pairs: TextSamples, context: RunContext) -> Tensor:
        """Return [B] log-probs of the completions under the initial policy, which is the policy before training."""
        return context.text.policy.logp(pairs.tokens).sum(1)

    def learn(self, model: CausalPolicy, pairs: TextSamples, context: RunContext, targets: Tensor) -> dict[str, float]:
        """Add the gradient of the mean of -log σ over pairs; return metrics."""
        half, logp_bt = len(pairs) // 2, model.logp(pairs.tokens)
        implied_b = self.beta * (logp_bt.sum(1) - targets)
        margin_n = implied_b[:half] - implied_b[half:]
        slope_n = -self.beta * torch.sigmoid(-margin_n) / half
        slope_bt = torch.cat([slope_n, -slope_n])[:, None].expand_as(logp_bt).contiguous()
        model.backward(pairs.tokens, {LOG_PROB: slope_bt})
        loss = float(-torch.nn.functional.logsigmoid(margin_n).mean())
        return {"preference_loss": loss, "preference_accuracy": float((margin_n > 0).double().mean())}

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `stats.expert`."""
        expert_bt = self.model(context).logp(as_text(samples).tokens).cpu().to(batch.dtype)
        return batch.replace(stats={**batch.stats, "expert": expert_bt})

    @override
    def words(self) -> str:
        return f"train a preference model by DPO (β = {self.beta:g}) on {self._where()}; then it is frozen"
