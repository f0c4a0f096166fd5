"""What servers must say of fixed sequences under the weights that they were given last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from grouprl.rollout.canary_tokens import HALF_ROUNDING, canary_tokens
from grouprl.rollout.servers.http_client import Stale

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy

ROUNDING = 0.01
"""Nats by which two programs may differ that both compute in float32."""
REMEMBERED = 4
"""Versions whose log-probs are remembered: what a server with old weights would say."""


class ServerCanary:
    """Compares servers with the policy; `limit` None takes the bound that fits the policy's type of weights."""

    def __init__(self, policy: CausalPolicy, limit: float | None) -> None:
        tokens = canary_tokens(policy)
        self.rows = tuple((*a, *b) for a, b in zip(tokens.prompt_ids, tokens.response_ids, strict=True))
        self._tokens, self._cut = tokens, len(tokens.prompt_ids[0])
        wide = policy.dtype in (torch.float32, torch.float64)
        self.limit = limit if limit is not None else ROUNDING if wide else HALF_ROUNDING
        self._expected: deque[np.ndarray] = deque(maxlen=REMEMBERED)

    @torch.no_grad()
    def expect(self, policy: CausalPolicy) -> None:
        """Take note of what the policy says as it is now.

        Products are those of the weights' type, as servers compute them: what mixed precision rounds, up to 0.4 nats of
        an unlikely token, would hide an update.
        """
        with _unheated(policy), policy.full_precision():
            self._expected.append(policy.logp(self._tokens).double().cpu().numpy())

    def check(self, told: Sequence[Sequence[float]]) -> float:
        """Return the largest difference in nats to what servers say of `rows`, of each token behind the first.

        Raises:
            Stale: it is too large, or the server says what an earlier version would.
        """
        found = np.array([row[self._cut - 1 :] for row in told])
        gap = float(np.abs(found - self._expected[-1]).max())
        if not gap <= self.limit:
            raise Stale(
                f"the server's log-probs of fixed sequences differ by {gap:.3g} nats from the policy's (up to "
                f"{self.limit:g} is rounding)"
            )
        *past, now = self._expected
        off = _distance(found, now)
        for before in past:
            other = _distance(found, before)
            if other < off / 2 and _distance(before, now) > 2 * other:  # it agrees with the past, which is another
                raise Stale(
                    f"the server samples with weights of before: it is {other:.3g} nats from them, {off:.3g} off"
                )
        return gap


def _distance(a_bt: np.ndarray, b_bt: np.ndarray) -> float:
    """Root of the mean square: the largest difference of 16-bit numbers is that of one token, and varies threefold."""
    return float(np.sqrt(np.mean((a_bt - b_bt) ** 2)))


@contextmanager
def _unheated(policy: CausalPolicy) -> Iterator[None]:
    """Let the policy score at temperature 1, as servers score prompts."""
    before, policy.temperature = policy.temperature, 1.0
    try:
        yield
    finally:
        policy.temperature = before
