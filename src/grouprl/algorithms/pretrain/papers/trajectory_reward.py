"""A reward model of trajectories, from pairs of a better and a worse one (ARMAP)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import part
from grouprl.algorithms.pretrain.papers.second_model import PairSource, SecondModel, whole
from grouprl.core.batch import Batch
from grouprl.core.numbers import Count, Positive
from grouprl.core.outputs import VALUE
from grouprl.records.samples import ScoredSamples
from grouprl.records.text_samples import TextSamples, as_text
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy


@part("pretrain")
class TrajectoryReward(SecondModel):
    """A copy of the initial policy with a scalar head, fitted to pairs of trajectories; then frozen (ARMAP).

    The loss of a pair is -log σ(r(x, h⁺) - r(x, h⁻)) (Bradley and Terry); r is read after the last token, observations
    included. It gives `stats.trajectory_reward`, the same on all tokens, which `learned_reward` makes the reward.

    Differs: a model writes the paper's pairs, an intent that a random walk fulfils and a walk that misses it; here a
    pair is a right and a wrong episode of the initial policy to one prompt. Steps, rate and passes are ours.
    """

    valued: ClassVar[bool] = True

    steps: Count = 20
    lr: Positive = 1e-4
    epochs: Count = 1
    chosen: PairSource = "completions"
    equation = "-log σ(r(x, h⁺) - r(x, h⁻))"
    fills: ClassVar[tuple[str, ...]] = ("stats.trajectory_reward",)

    def targets(self, model: CausalPolicy, pairs: TextSamples, context: RunContext) -> Tensor:
        """Return nothing: the loss has no targets."""
        return torch.zeros(0)

    def learn(self, model: CausalPolicy, pairs: TextSamples, context: RunContext, targets: Tensor) -> dict[str, float]:
        """Add the gradient of the mean loss of pairs; return metrics."""
        tokens = whole(pairs.tokens, context.text.policy)
        reward_b, end_bt = rewards_of(model, tokens)
        loss, slope_b = bradley_terry(reward_b)
        model.backward(tokens, {VALUE: torch.where(end_bt, slope_b[:, None], 0)})
        half = len(reward_b) // 2
        right = float((reward_b[:half] > reward_b[half:]).double().mean())
        return {"preference_loss": loss, "preference_accuracy": right}

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `stats.trajectory_reward`."""
        tokens = whole(as_text(samples).tokens, context.text.policy)
        reward_b, _ = rewards_of(self.model(context), tokens)
        reward_bt = batch.broadcast(reward_b.to(batch.dtype))
        return batch.replace(stats={**batch.stats, "trajectory_reward": reward_bt})

    @override
    def words(self) -> str:
        return f"train a reward model of trajectories on {self._where()}; then it is frozen"


def rewards_of(model: CausalPolicy, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Return ([B] the value after the last token of rows with one more token, [B,T] bool: where it stands)."""
    value_bt = model.evaluate(tokens, (VALUE,))[VALUE].cpu()
    last_b = tokens.present_bt().sum(1) - 1
    end_bt = torch.arange(value_bt.shape[1])[None, :] == last_b[:, None]
    return torch.where(end_bt, value_bt, 0).sum(1), end_bt


def bradley_terry(reward_b: Tensor) -> tuple[float, Tensor]:
    """Return the mean of -log σ(r⁺ - r⁻) over pairs, and its gradient [B]; the first half of `reward_b` is better."""
    half = len(reward_b) // 2
    margin_n = reward_b[:half] - reward_b[half:]
    slope_n = -torch.sigmoid(-margin_n) / half
    return float(-torch.nn.functional.logsigmoid(margin_n).mean()), torch.cat([slope_n, -slope_n])
