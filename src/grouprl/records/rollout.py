"""Sampled completions as token ids, with the log-probs that they were sampled with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grouprl.protocols import PolicyInputs
from grouprl.records.tokens import Tokens


@dataclass(frozen=True)
class Rollout:
    """B completions; T is the longest one. Tensors lie on the CPU.

    Attributes:
        prompt_ids: prompt of each row.
        response_ids: completion of each row, with the end token where one was sampled.
        logp_bt: log-prob of each token at the sampling temperature, before top-k and top-p; 0 beyond the end.
        entropy_bt: entropy in nats of the distribution each token was sampled from (same temperature); 0 beyond the
        end.
        truncated_b: True where neither an end token nor a stop sequence came within the budget.
        exact: whether the log-probs are the policy's own, as their sampler said (`grouprl.protocols.Samples.exact`).
        version_bt: [B,T] int64, the version that sampled each token, -1 beyond the end; None where it is not known.
    """

    prompt_ids: tuple[tuple[int, ...], ...]
    response_ids: tuple[tuple[int, ...], ...]
    logp_bt: torch.Tensor
    entropy_bt: torch.Tensor
    truncated_b: torch.Tensor
    exact: bool = True
    version_bt: torch.Tensor | None = None
    inputs: PolicyInputs | None = None
    """What a policy scores the rows from where that is not token ids; ids then number the actions."""

    @property
    def tokens(self) -> Tokens:
        """The rows as a policy scores them."""
        return Tokens(self.prompt_ids, self.response_ids)
