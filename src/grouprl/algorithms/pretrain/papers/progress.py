"""The contribution of each turn to the outcome, by a model fitted to outcomes alone (SPA)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.auxiliary_models import second_policy
from grouprl.algorithms.data_part import Pretraining, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.pretrain.papers.second_model import whole
from grouprl.algorithms.pretrain.value_pretraining import foreseen
from grouprl.algorithms.turn_returns import last_tokens, on_tokens, turns_of
from grouprl.core.batch import Batch
from grouprl.core.json_types import State
from grouprl.core.numbers import Count, Positive
from grouprl.records.samples import ScoredSamples

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy


@part("pretrain")
class ProgressModel(Pretraining):
    """Estimate the progress of each turn, c_k = w·h_k + b, so that Σ_k c_k is near the outcome (arXiv:2505.20732).

    h_k is the last hidden state of the initial policy once it has read turn k (`at="turn"`, the paper's), or also the
    observation that follows (`at="observation"`, which lets a small frozen model see the result of the turn). Outcomes
    of `steps` rollouts of the initial policy are explained by the sums of their turns' states: (Σ_k c_k - R)² is least
    in closed form, with `ridge` as penalty on w in units of the mean square of a dimension. Then the model is frozen
    and gives `stats.progress` of every turn. It reads one position more than an episode has.
    """

    needs_text = True

    steps: Count = 20
    ridge: Positive = 1e-3
    at: Literal["turn", "observation"] = "turn"
    equation = "stats.progress = c_k = w·h_k + b,  (w, b) = argmin (Σ_k c_k - R)² + ridge"
    fills = ("stats.progress",)

    def count(self, context: RunContext) -> int:
        """Return the number of pieces, one for each rollout."""
        return self.steps

    def piece(self, number: int, context: RunContext) -> dict[str, float]:
        """Sample a rollout of the run's size, predict its outcomes, and fit the model to all rollouts so far."""
        store = context.state_of(self)
        if number == 0:
            own = context.text.policy.trainable_state().items()
            store["weights"] = {name: x.clone() for name, x in own if not name.startswith("value_head.")}
        rows = context.sample(context.take(context.prompts))
        batch = context.batch(rows).rows(torch.from_numpy(rows.valid_b))
        sum_bd = self._states(batch, context).sum(1)
        outcome_b = batch.total_reward_b.double()
        metrics = foreseen(sum_bd @ store["head"] if "head" in store else torch.zeros_like(outcome_b), outcome_b)
        self._fit(store, sum_bd, outcome_b)
        if number + 1 == self.steps:
            del store["gram"], store["moment"]
        return metrics

    def _fit(self, store: State, sum_bd: Tensor, outcome_b: Tensor) -> None:
        """Add observations and set the head to the best fit of all so far; the last dimension counts turns."""
        store["gram"] = sum_bd.T @ sum_bd + store.get("gram", 0.0)
        store["moment"] = sum_bd.T @ outcome_b + store.get("moment", 0.0)
        scale = store["gram"].diagonal()[:-1].mean().clamp(min=1e-12)
        penalty_d = torch.full_like(store["moment"], self.ridge) * scale
        penalty_d[-1] = self.ridge * 1e-6
        store["head"] = torch.linalg.solve(store["gram"] + penalty_d.diag(), store["moment"])

    def _states(self, batch: Batch, context: RunContext) -> Tensor:
        """Return [B,S,H+1] state where each turn is judged, and a 1; zeros where a row has no such turn."""
        there_bs, tokens = turns_of(batch, self.name), batch.need("inputs", self.name)
        end_bt = last_tokens(batch, there_bs, self.name)
        states = self._model(context).hidden(whole(tokens, context.text.policy))
        out_bsd = torch.zeros(*there_bs.shape, states[0].shape[1] + 1, dtype=torch.float64)
        row_n, place_n = end_bt.nonzero(as_tuple=True)
        turn_n = batch.need("turn_bt", self.name)[row_n, place_n]
        for b, place, turn in zip(row_n.tolist(), place_n.tolist(), turn_n.tolist(), strict=True):
            out_bsd[b, turn, :-1] = states[b][self._read(batch.mask_bt[b], place)].double()
            out_bsd[b, turn, -1] = 1.0
        return out_bsd

    def _read(self, mask_t: Tensor, place: int) -> int:
        """Return how many positions are read to judge the turn that ends at `place`."""
        return place + 1 if self.at == "turn" else completed(mask_t, place)

    def _model(self, context: RunContext) -> CausalPolicy:
        """Return the policy as it was before training."""
        held = context.cache_of(self)
        if "model" not in held:
            held["model"] = second_policy(context.text.policy)
            held["model"].load_trainable_state(context.state_of(self)["weights"])
        return held["model"]

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `stats.progress`, the same on all tokens of a turn."""
        progress_bs = (self._states(batch, context) @ context.state_of(self)["head"]).to(batch.dtype)
        return batch.replace(stats={**batch.stats, "progress": on_tokens(progress_bs, batch, self.name)})

    def second_models(self) -> int:
        """Return how many copies of the policy, with weights of their own, the part keeps in memory."""
        return 1

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many episodes are sampled besides those of the run."""
        completions = run.prompts * run.group_size
        return f"{self.steps} × {completions} = {self.steps * completions:,} completions before the first step"

    @override
    def words(self) -> str:
        return (
            f"before the first step, explain the outcomes of {self.steps} rollouts of the initial policy by its states "
            f"{'at the end of' if self.at == 'turn' else 'after the observation that follows'} each turn; "
            f"later each turn has its share"
        )


def completed(mask_t: Tensor, place: int) -> int:
    """Return how many positions are read when the next turn begins; up to `place`, where the turn ends, if no turn
    follows.
    """
    later = mask_t[place + 1 :].nonzero()
    return place + 1 + (int(later[0]) if len(later) else 0)
