"""Pairs that tell the policy's output layer the most are labelled next: greedy D-optimal design (ADPO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from grouprl.algorithms.curriculum.papers.curriculum import Chooser, pool_size
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.json_types import State
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, Positive
from grouprl.records.text_samples import as_text


@part("curriculum")
class InformativePairs(Chooser):
    """Choose stored pairs by greedy D-optimality of the DPO logit z = β·Δ(log π/π_ref), linear in the output layer.

    φ = β·(∂ log π(y_1)/∂W - ∂ log π(y_2)/∂W), sketched to `size` numbers, and w = σ'(z), both of the policy as it is.
    Of `among` pairs not chosen yet the one with the largest w·φ'H⁻¹φ is taken, and H ← H + w·φφ', until the step is
    full; H = ridge·I at first and is remembered. No verdict is read: swapping the two completions changes nothing.
    Once every pair was chosen, all come back. Source: Kveton et al. 2025 (arXiv:2503.01076).

    *Differs from the paper*: gradients are sketched, as those of an output layer have as many numbers as its weights;
    the policy is trained as pairs come, where the paper fits it anew to all labels so far.
    """

    needs_text: ClassVar[bool] = True
    one_policy: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("ref_bt",)
    metrics: ClassVar = {
        "information": Metric(words="log det H/ridge: the information of all pairs chosen so far", group="groups"),
        "information_gain": Metric(words="how much the pairs of this step add to log det H", group="groups"),
    }

    beta: Positive = 0.1
    among: Count = 256
    size: Count = 128
    ridge: Positive = 1.0
    says = (
        "of {among} pairs that were not chosen yet those that add most to log det of the information about the output "
        "layer, by gradients of {size} numbers"
    )
    equation = "argmax_i σ'(z_i)·φ_i'H⁻¹φ_i,  H ← H + σ'(z_i)·φ_iφ_i',  z = {beta:g}·Δ,  φ = {beta:g}·∂Δ/∂W"

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Choose the pairs one after the other."""
        store, picked = context.state_of(self), list[int]()
        if "inverse" not in store:
            store |= {
                "inverse": torch.eye(self.size, dtype=torch.float64) / self.ridge,
                "taken": [],
                "information": 0.0,
            }
        while len(picked) < count:
            left = np.setdiff1d(np.arange(pool_size(context)), store["taken"])
            if not len(left):
                store["taken"] = []
                continue
            few = rng.permutation(left)[: max(self.among, count - len(picked))].tolist()
            picked += self._best(few, count - len(picked), store, context)
        return picked

    def _best(self, among: list[int], count: int, store: State, context: RunContext) -> list[int]:
        """Return the `count` best of the pairs `among`, and remember them."""
        feature_nd, weight_n = self.read(among, context)
        order, store["inverse"], gain = d_optimal(store["inverse"], feature_nd, weight_n, count)
        picked = [among[place] for place in order]
        store["taken"], store["information"] = [*store["taken"], *picked], store["information"] + gain
        context.note("information_gain", gain)
        context.note("information", store["information"], "most")
        return picked

    def read(self, among: Sequence[int], context: RunContext) -> tuple[Tensor, Tensor]:
        """Return φ [N,size] and σ'(z) [N] of the pairs `among`, float64; both are 0 where a row of it is too long."""
        rows = as_text(context.sample([context.request(int(index)) for index in among]))
        acted_bt, valid_b = torch.from_numpy(rows.acted_bt), torch.from_numpy(rows.valid_b)
        policy, present_bt = context.text.policy, rows.tokens.present_bt()
        gradient_bd = policy.head_gradients(rows.tokens, self.size, acted_bt).double()
        ratio_bt = policy.logp(rows.tokens).cpu().double() - context.reference_logp(rows).double()
        ratio_b = torch.where(acted_bt & present_bt, ratio_bt, 0).sum(1)
        place = {ordinal: number for number, ordinal in enumerate(dict.fromkeys(rows.ordinal_b.tolist()))}
        pair_b = torch.tensor([place[ordinal] for ordinal in rows.ordinal_b.tolist()])
        return of_pairs(self.beta * gradient_bd, self.beta * ratio_b, torch.where(valid_b, pair_b, -1), len(among))

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse completions that are not stored, and groups that are not pairs."""
        found = super().refuse(run)
        if not run.stored:
            found.append(f"{self.name} chooses among stored pairs. Use the task pairs:FILE or preferences")
        if run.group_size != 2:
            found.append(f"{self.name} chooses pairs, but batch.group_size is {run.group_size}. Set it to 2")
        return found

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if it takes all pairs that it looks at."""
        if min(self.among, run.examples or self.among) <= run.prompts:
            return [f"{self.name} has no effect: it takes every pair that it looks at"]
        return []


def of_pairs(feature_bd: Tensor, logit_b: Tensor, pair_b: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """Return the differences of features [N,D] and σ'(difference of logits) [N] of the two rows of each of N pairs.

    `pair_b` numbers the rows' pairs, -1 for none. Both are 0 for a pair without exactly two rows.
    """
    feature_nd, weight_n = feature_bd.new_zeros(pairs, feature_bd.shape[1]), logit_b.new_zeros(pairs)
    for pair in range(pairs):
        rows = (pair_b == pair).nonzero()[:, 0].tolist()
        if len(rows) == 2:
            feature_nd[pair] = feature_bd[rows[0]] - feature_bd[rows[1]]
            z = logit_b[rows[0]] - logit_b[rows[1]]
            weight_n[pair] = torch.sigmoid(z) * torch.sigmoid(-z)
    return feature_nd, weight_n


def d_optimal(inverse_dd: Tensor, feature_nd: Tensor, weight_n: Tensor, count: int) -> tuple[list[int], Tensor, float]:
    """Choose `count` of N features one after the other, each the one that adds most to log det H.

    Return their positions in the order of choice, H⁻¹ after it (`inverse_dd` is H⁻¹ before, [D,D]), and the gain of log
    det H. H grows by w·φφ' for each; of equal ones the first is chosen (Sherman and Morrison 1950).
    """
    order, gained, open_n = list[int](), 0.0, torch.ones(len(feature_nd), dtype=torch.bool)
    for _ in range(min(count, len(feature_nd))):
        gain_n = weight_n * ((feature_nd @ inverse_dd) * feature_nd).sum(1)
        best = int(torch.where(open_n, gain_n, -1).argmax())
        along_d = inverse_dd @ feature_nd[best]
        inverse_dd = inverse_dd - weight_n[best] * torch.outer(along_d, along_d) / (1 + gain_n[best])
        order, gained, open_n[best] = [*order, best], gained + float(gain_n[best].log1p()), False
    return order, inverse_dd, gained
