"""Comparison of servers with the policy: log-probs of fixed sequences under the weights that were last given."""

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
"""Difference in nats that is allowed between two programs that compute in float32."""
REMEMBERED = 4
"""Number of versions whose log-probs are remembered, to recognise a server with old weights."""


class ServerCanary:
    """Comparison of servers with the policy; if `limit` is None, the bound depends on the type of the policy's
    weights.
    """

    def __init__(self, policy: CausalPolicy, limit: float | None) -> None:
        tokens = canary_tokens(policy)
        self.rows = tuple((*a, *b) for a, b in zip(tokens.prompt_ids, tokens.response_ids, strict=True))
        self._tokens, self._cut = tokens, len(tokens.prompt_ids[0])
        with policy.full_precision():  # ranks cannot leave mixed precision
            wide = policy.dtype in (torch.float32, torch.float64) and policy.precision != "mixed"
        self.limit = limit if limit is not None else ROUNDING if wide else HALF_ROUNDING
        self._expected: deque[np.ndarray] = deque(maxlen=REMEMBERED)

    @torch.no_grad()
    def expect(self, policy: CausalPolicy) -> None:
        """Record the current policy's log-probs of the sequences.

        Products are in the type of the weights, as in servers: the rounding of mixed precision, up to 0.4 nats for an
        unlikely token, would hide an update.
        """
        with _unheated(policy), policy.full_precision():
            self._expected.append(policy.logp(self._tokens).double().cpu().numpy())

    def check(self, told: Sequence[Sequence[float]]) -> float:
        """Return the difference in nats to a server's log-probs `told` of each token after the first.

        Raises:
            Stale: the difference is too large, or the server's log-probs match an earlier version.
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
            if other < off / 2 and _distance(before, now) > 2 * other:  # it matches an earlier version
                raise Stale(f"the server samples with earlier weights: it is {other:.3g} nats from them, {off:.3g} off")
        return gap


def _distance(a_bt: np.ndarray, b_bt: np.ndarray) -> float:
    """Return the root mean square of the differences: the largest one comes from a single token, and varies threefold
    in 16 bits.
    """
    return float(np.sqrt(np.mean((a_bt - b_bt) ** 2)))


@contextmanager
def _unheated(policy: CausalPolicy) -> Iterator[None]:
    """Let the policy score at temperature 1 within this context, as servers score prompts."""
    before, policy.temperature = policy.temperature, 1.0
    try:
        yield
    finally:
        policy.temperature = before
