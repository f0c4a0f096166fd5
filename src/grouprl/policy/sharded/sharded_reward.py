"""A reward model whose weights and optimiser are divided among several ranks, as rank 0 sees it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from grouprl.policy.language.columns.score_columns import Columns
from grouprl.policy.language.columns.several_scores import AttributeModel, GeneralPreferenceModel
from grouprl.policy.language.reward_model import RewardModel
from grouprl.policy.sharded.rank_work import Builders
from grouprl.policy.sharded.ranks import Ranks
from grouprl.policy.sharded.sharded_model import ShardedModel
from grouprl.policy.sharded.sharded_weights import save_weights
from grouprl.records.tokens import Tokens


class ShardedRewardModel(ShardedModel, RewardModel):
    """A reward model, sharded over ranks by FSDP2; see `ShardedModel`."""

    def __init__(self, ranks: Ranks, builders: Builders) -> None:
        ShardedModel.__init__(self, ranks, builders)
        self.outputs = cast("RewardModel", self._part).outputs

    def _joined(self, tokens: Tokens, passes: Sequence[Sequence[int]], parts: Sequence[Tensor]) -> Tensor:
        """Return the numbers of all rows, [B]."""
        if not parts:
            return torch.zeros(len(tokens))
        return torch.cat(list(parts))[torch.tensor([row for rows in passes for row in rows]).argsort()]

    def copied(self, *, trainable: bool = True) -> RewardModel:
        """Return a full copy of the current model, only on rank 0."""
        found = cast("RewardModel", self._builders.whole(self.ranks.station))
        found.load_trainable_state(self.trainable_state())
        if not trainable:
            found.model.requires_grad_(False)
        return found

    def save(self, folder: str | Path) -> None:
        """Write a folder for `AutoModelForSequenceClassification`, tensor by tensor; see `RewardModel.save`."""
        save_weights(self, Path(folder))
        self.tokenizer.save_pretrained(folder)


class ShardedAttributeModel(ShardedRewardModel, AttributeModel):
    """An `AttributeModel`, sharded over ranks."""


class ShardedPreferenceModel(ShardedRewardModel, GeneralPreferenceModel):
    """A `GeneralPreferenceModel`, sharded over ranks."""


def sharded_reward_class(columns: Columns | None) -> type[ShardedRewardModel]:
    """Return the class of a sharded reward model whose layer gives these numbers."""
    if columns is None:
        return ShardedRewardModel
    return ShardedAttributeModel if columns.tau is None else ShardedPreferenceModel
