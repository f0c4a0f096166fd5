"""Reward models whose layer gives several numbers: one score for each attribute, or a vector of preference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from grouprl.core.edges import preference_scores
from grouprl.core.errors import InputError
from grouprl.core.outputs import HEAD, PREFERENCE, SCORE, numbered, parameter
from grouprl.core.spans import spanned
from grouprl.policy.language.columns.score_columns import Columns, columns_of
from grouprl.policy.language.reward_model import RewardModel
from grouprl.policy.passes import AUTO, PassSettings
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grouprl.policy.language.text import Message


class ColumnsModel(RewardModel):
    """Base: a reward model whose layer gives several numbers, each an output whose name ends in its number, from 1.

    Args:
        model: a model for sequence classification whose configuration says what the numbers are.
        tokenizer, engine, passes, token_budget, precision: those of `RewardModel`.
    """

    base: ClassVar[str]
    """Beginning of the names of its outputs."""
    others: ClassVar[tuple[str, ...]] = ()
    """Outputs that are made of all numbers."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        engine: str = "auto",
        passes: PassSettings = AUTO,
        token_budget: int | None = None,
        precision: str = "float32",
    ) -> None:
        super().__init__(model, tokenizer, engine=engine, passes=passes, token_budget=token_budget, precision=precision)
        self.outputs = (*self.others, *numbered(self.base, self.head.out_features))

    @property
    def columns(self) -> Columns:
        """The names of the numbers, and the temperature of preferences."""
        found = columns_of(self.model.config)
        assert found is not None
        return found

    def column_values(self, tokens: Tokens) -> Tensor:
        """Return all numbers of each row, [B,N], without a graph."""
        names = numbered(self.base, self.head.out_features)
        found = self.evaluate(tokens, names)
        return torch.stack([found[name] for name in names], 1)

    @spanned("forward")
    def _run(self, tokens: Tokens, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the outputs `names` of one pass, [B]."""
        value_bn = self._values(tokens).to(self.score_dtype)
        return {name: value_bn.mean(1) if name == SCORE else value_bn[:, int(parameter(name)) - 1] for name in names}


class AttributeModel(ColumnsModel):
    """A reward model with a score for each of several attributes, `score@1` and so on; `score` is their mean.

    The names of the attributes are the labels of the model's configuration. The arguments are those of `RewardModel`.
    """

    base = HEAD
    others = (SCORE,)

    def attributes_of(
        self, prompts: Sequence[str | Sequence[Message]], completions: Sequence[str]
    ) -> Mapping[str, Tensor]:
        """Return the scores [B] of each attribute, by its name; raises InputError as `tokens_of` does."""
        value_bn = self.column_values(self.tokens_of(prompts, completions))
        return dict(zip(self.columns.names, value_bn.unbind(1), strict=True))


class GeneralPreferenceModel(ColumnsModel):
    """A general preference model (GPM, arXiv:2410.02197): a vector for each completion, by which it is preferred.

    Its outputs `preference@1` and so on are the coordinates of the vectors v. The score of w against l is the sum over
    blocks of two coordinates of w₁·l₂ - w₂·l₁, and P(w ≻ l) = σ(score/τ). Preferences may go in circles, which those of
    single scores cannot. The arguments are those of `RewardModel`.
    """

    base = PREFERENCE

    def scores(self, tokens: Tokens) -> Tensor:
        """Refuse to score completions one by one; raises InputError."""
        raise InputError(
            "a preference model is asked for the score of a completion alone",
            "it says which of two completions is better, and that may go in circles",
            "Compare two completions (chances), or train bradley_terry",
        )

    @property
    def tau(self) -> float:
        """The temperature of preferences."""
        tau = self.columns.tau
        assert tau is not None
        return tau

    def chances(
        self, prompts: Sequence[str | Sequence[Message]], first: Sequence[str], second: Sequence[str]
    ) -> Tensor:
        """Return P(first ≻ second) of each pair of completions, [B]; raises InputError as `tokens_of` does."""
        value_bd = self.column_values(self.tokens_of([*prompts, *prompts], [*first, *second]))
        return (preference_scores(*value_bd.chunk(2)) / self.tau).sigmoid()
