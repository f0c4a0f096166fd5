"""Weights of labelled groups of the data that rise where the loss of pairs is large."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.link.link import Link, Logistic
from grouprl.algorithms.losses import ordered_pairs
from grouprl.algorithms.pair_weight.papers.robust_groups import GROUP_WEIGHT
from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError, suggest
from grouprl.core.numbers import NonNegative
from grouprl.records.samples import ScoredSamples


@part("augment")
class RobustGroups(Augmentation):
    """Give `past.group_weight`: q_g·N/n_g for the rows of data group g, of which n_g of the step's N rows are.

    q is a distribution over the values of column `by` (or the levels) that have come so far, even at first. Before each
    update q_g ← q_g·exp(step·L_g), normalised, with L_g the mean loss of the group's pairs under the policy as it is
    then, 0 for a group that the step lacks (arXiv:2405.20304). The logarithms are remembered. The rows are unchanged.

    Raises:
        InputError: a prompt without the column.
    """

    by: str = "level"
    link: Link = Logistic()
    score: Score = LogRatio()
    step: NonNegative = 0.01
    reads_old = True
    says = "weigh the data's groups, told apart by '{by}', by their losses so far, at step size {step:g}"
    equation = "q_g ∝ q_g·exp({step:g}·L_g),  L_g = mean loss of the pairs of data group g"
    fills = (GROUP_WEIGHT,)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows unchanged."""
        return samples

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `past.group_weight` to the weights after one step on the pairs of this rollout."""
        name_b, memory = self._names(samples), context.state_of(self)
        log = {name: float(value) for name, value in memory.get("log", {}).items()}
        log, weight_b = self.after(log, name_b, batch)
        memory["log"] = log
        if log:
            context.note("largest_group_weight", max(_shares(log).values()), "mean")
        return batch.replace(past={**batch.past, GROUP_WEIGHT.partition(".")[2]: weight_b})

    def after(self, log: dict[str, float], name_b: list[str], batch: Batch) -> tuple[dict[str, float], Tensor]:
        """Return log q up to a constant after a step on the pairs of a batch, and the weight of each row [B]."""
        loss_e, share_e, index_e2 = self._losses(batch)
        name_e = [name_b[i] for i in index_e2[:, 0].tolist()]
        log, part_of = dict.fromkeys(sorted(set(name_e)), 0.0) | log, {}
        for name in sorted(set(name_e)):
            of_e = torch.tensor([other == name for other in name_e], device=share_e.device)
            part_of[name] = float(share_e[of_e].sum() / share_e.sum())
            log[name] += self.step * float((share_e * loss_e)[of_e].sum() / share_e[of_e].sum())
        q = _shares(log)
        weight_b = [q[name] / part_of[name] if name in part_of else 0.0 for name in name_b]
        return log, torch.tensor(weight_b, dtype=batch.dtype, device=batch.reward_b.device)

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses of the pairs under the old policy and their weights in the mean, [E], and their rows."""
        index_e2 = ordered_pairs(batch.total_reward_b, batch)
        score_b = self.score(batch.need("old_bt", self.name), batch).double()
        better_e, worse_e = score_b[index_e2].unbind(1)
        group_e = batch.group_b[index_e2[:, 0]]
        pairs_e = (group_e[:, None] == group_e).sum(1)
        rows_e = (batch.group_b[index_e2.flatten().unique()] == group_e[:, None]).sum(1)
        loss_e = self.link.of_scores(better_e, worse_e, torch.zeros_like(better_e))
        return loss_e, rows_e.double() / pairs_e, index_e2

    def _names(self, samples: ScoredSamples) -> list[str]:
        """Return [B] the data group of each row."""
        if self.by == "level":
            return [str(example.level) for example in samples.examples]
        for example in samples.examples:
            if self.by not in example.columns:
                raise InputError(
                    f"{self.name}.by = '{self.by}', but prompt {example.id} has no such column",
                    "by is 'level' or a column that every prompt has",
                    suggest(self.by, ["level", *example.columns]),
                )
        return [str(example.columns[self.by]) for example in samples.examples]


def _shares(log: dict[str, float]) -> dict[str, float]:
    """Return the distribution whose logarithms are `log` up to a constant."""
    values = torch.tensor(list(log.values()), dtype=torch.float64).softmax(0)
    return dict(zip(log, values.tolist(), strict=True))
