"""A rank's part of a sharded reward model."""

from __future__ import annotations

from torch import Tensor, nn

from grouprl.policy.language.columns.score_columns import Columns
from grouprl.policy.language.columns.several_scores import AttributeModel, GeneralPreferenceModel
from grouprl.policy.language.reward_model import RewardModel
from grouprl.policy.sharded.rank_model import RankModel
from grouprl.records.tokens import Tokens


class RankRewardModel(RankModel, RewardModel):
    """A reward model of which this process holds a part; see `RankModel`. Its layer `score` is never rounded."""

    def _in_full(self) -> nn.Module:
        return self.head

    def _values(self, tokens: Tokens) -> Tensor:
        """Return the numbers of the layer of each row's last token, [B,N].

        Ranks that share rows each have the states of some tokens: the layer is applied to them before they are brought
        together, so that each rank has the gradient of its own.
        """
        if self._context is None:
            return self.head(self._states(tokens).to(self.score_dtype))
        read, last_b = self._read_last(tokens)
        return read.each(self.head(read.hidden_nd.to(self.score_dtype)))[last_b]


class RankAttributeModel(RankRewardModel, AttributeModel):
    """An `AttributeModel` of which this process holds a part."""


class RankPreferenceModel(RankRewardModel, GeneralPreferenceModel):
    """A `GeneralPreferenceModel` of which this process holds a part."""


def rank_reward_class(columns: Columns | None) -> type[RankRewardModel]:
    """Return the class of a rank's part of a reward model whose layer gives these numbers."""
    if columns is None:
        return RankRewardModel
    return RankAttributeModel if columns.tau is None else RankPreferenceModel
