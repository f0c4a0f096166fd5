"""Sampled rows of any policy, with the log-probs that they were sampled with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grouprl.core.errors import InputError
from grouprl.protocols import NumberedActions, PolicyInputs, Request, Samples
from grouprl.records.tokens import Ids, Tokens


@dataclass(frozen=True)
class Rollout:
    """B completions or episodes; T is the longest one. Tensors are on the CPU."""

    inputs: PolicyInputs
    """Inputs from which the policy scores the rows: `Tokens` for a language model, observations and actions for others.
    """
    logp_bt: torch.Tensor
    """Log-prob of each action at the sampling temperature, before top-k and top-p; 0 beyond the end."""
    entropy_bt: torch.Tensor
    """Entropy in nats of the distribution each action was sampled from (same temperature); 0 beyond the end."""
    truncated_b: torch.Tensor
    """True where the budget ran out before the row ended by itself."""
    exact: bool = True
    """Whether the log-probs are the policy's own, as their sampler states (`grouprl.protocols.Samples.exact`)."""
    version_bt: torch.Tensor | None = None
    """[B,T] int64, the version that sampled each action, -1 beyond the end; None if it is not known."""

    @property
    def action_ids(self) -> tuple[Ids, ...]:
        """The number of each action: a token id or a move; its position in the row if actions are not numbered."""
        if isinstance(self.inputs, NumberedActions):
            return self.inputs.action_ids
        return tuple(tuple(range(length)) for length in self.inputs.present_bt().sum(1).tolist())

    @property
    def tokens(self) -> Tokens:
        """The rows as token ids.

        Raises:
            InputError: the actions are not tokens.
        """
        if isinstance(self.inputs, Tokens):
            return self.inputs
        raise InputError(
            f"the rows of {type(self.inputs).__name__} have no tokens",
            "only a language model writes tokens",
            "Remove the part that works on texts, or train a language model",
        )

    @property
    def prompt_ids(self) -> tuple[Ids, ...]:
        """The prompt of each row of text."""
        return self.tokens.prompt_ids

    @property
    def response_ids(self) -> tuple[Ids, ...]:
        """The completion of each row of text, with the end token where one was sampled."""
        return self.tokens.response_ids


def as_rollout(requests: Sequence[Request[tuple[int, ...]]], samples: Samples[int]) -> Rollout:
    """Return samples as the trainer's rows; entropies that the sampler does not know are 0."""
    logp_bt = torch.from_numpy(samples.logp_bt)
    entropy_bt = torch.zeros_like(logp_bt) if samples.entropy_bt is None else torch.from_numpy(samples.entropy_bt)
    return Rollout(
        Tokens(tuple(request.prompt for request in requests), samples.actions),
        logp_bt=logp_bt,
        entropy_bt=entropy_bt,
        truncated_b=torch.from_numpy(samples.truncated_b),
        exact=samples.exact,
        version_bt=None if samples.version_bt is None else torch.from_numpy(samples.version_bt),
    )
