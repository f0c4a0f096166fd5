"""The canary: fixed sequences whose log-probs the sampler and the trainer compare after every exchange of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grouprl.core.errors import RunError
from grouprl.policy.devices import name_of
from grouprl.policy.logprobs import log_softmax_of
from grouprl.protocols import Policy
from grouprl.records.tokens import Tokens
from grouprl.rollout.canary_tokens import HALF_ROUNDING, ROUNDING
from grouprl.rollout.local.decode_loop import make_decoder

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy


@dataclass(frozen=True)
class CanaryReport:
    """The sampler's report on the weights it has just loaded: their version, checksum, and its log-probs of the
    canary, which are missing if only weights are compared.

    The checksum covers the tensors in its model, not the data it read; the log-probs come from the decoder that
    samples completions.
    """

    version: int
    checksum: int
    logp: tuple[tuple[float, ...], ...]


@torch.no_grad()
def forced_logp(policy: CausalPolicy, tokens: Tokens) -> Tensor:
    """Return [B,T] log-probs of responses of equal length, token by token, from the decoder that samples."""
    decoder, response_bt = make_decoder(policy), torch.tensor(tokens.response_ids, device=policy.device)
    logits_bv = decoder.start(tokens.prompt_ids, range(len(tokens)), response_bt.shape[1])
    columns: list[Tensor] = []
    for t in range(response_bt.shape[1]):
        logp_bv = log_softmax_of(logits_bv, policy.temperature)
        columns.append(logp_bv.gather(1, response_bt[:, t : t + 1])[:, 0])
        if t + 1 < response_bt.shape[1]:
            logits_bv = decoder.step(response_bt[:, t])
    return torch.stack(columns, dim=1).cpu()


class Canary:
    """The trainer's side of the canary: the expected report for each version.

    Args:
        policy: the policy in training.
        tokens: the fixed rows; None: only checksums of the weights are compared.
    """

    def __init__(self, policy: Policy, tokens: Tokens | None) -> None:
        self.policy, self.tokens = policy, tokens
        exact = getattr(policy, "precision", "float32") != "mixed"
        dtype = name_of(getattr(policy, "dtype", policy.score_dtype))
        self.limit = ROUNDING.get(dtype, HALF_ROUNDING) if exact else HALF_ROUNDING
        self._expected: dict[int, tuple[int, Tensor]] = {}

    @torch.no_grad()
    def expect(self, version: int, checksum: int, keep: int) -> None:
        """Record the current policy as `version` and keep the last `keep` versions."""
        logp_bt = torch.zeros(0, 0) if self.tokens is None else self.policy.logp(self.tokens).cpu()
        self._expected[version] = (checksum, logp_bt)
        for old in sorted(self._expected)[:-keep]:
            del self._expected[old]

    def check(self, report: CanaryReport) -> float:
        """Return the largest difference in nats between the sampler's log-probs and the trainer's.

        Raises:
            RunError: the sampler's weights are not those of the version it reports, or its log-probs differ too much.
        """
        if report.version not in self._expected:
            raise RunError(
                f"the sampler reports that it took version {report.version} of the weights; the trainer has published "
                f"{_versions(self._expected)}. Continue with --resume"
            )
        checksum, logp_bt = self._expected[report.version]
        if report.checksum != checksum:
            raise RunError(
                f"the sampler's weights are not those of version {report.version} that it says it has: it is stale or "
                "damaged. The log-probs of what it samples would be wrong. Continue with --resume"
            )
        if self.tokens is None:
            return 0.0
        gap = float((torch.tensor(report.logp, dtype=torch.float64) - logp_bt.double()).abs().max())
        if not gap <= self.limit:
            raise RunError(
                f"sampler and trainer disagree on the canary by {gap:.3g} nats at version {report.version} (up to "
                f"{self.limit:g} is rounding): it does not sample with the weights it holds. Continue with "
                f"--resume; if it happens again, model.engine transformers rules out the fast decoder"
            )
        return gap


def _versions(expected: Mapping[int, object]) -> str:
    return f"{min(expected)} to {max(expected)}" if expected else "none"
