"""The likeliest tokens in the place of each sampled one, by a forward pass over what was sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from grouprl.policy import Tokens
from grouprl.policy.logprobs import log_softmax_of
from grouprl.protocols import Grammar, Request
from grouprl.rollout.local.grammars import Constraints

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy
    from grouprl.records.token_policy import TokenPolicy

Alternatives = list[list[tuple[int, float]]]
"""[T] for each token the likeliest ones in its place with their log-probs, the likeliest first."""


@torch.no_grad()
def alternatives(
    policy: TokenPolicy, prompt_ids: Sequence[int], ids: Sequence[int], temperature: float, k: int, grammar: str = ""
) -> Alternatives:
    """Return the `k` likeliest tokens in the place of each of `ids`, at `temperature` and before top-p.

    Under a grammar fewer, where it allows fewer.
    """
    found: Alternatives = []
    held = Constraints(policy, [Request(tuple(prompt_ids), 1, grammar=Grammar(grammar))]) if grammar else None
    for _, readout in cast("CausalPolicy", policy).readouts(Tokens.of([list(prompt_ids)], [list(ids)])):
        for _, logits_cv in readout.chunks():
            if held is not None:
                logits_cv = _held(held, logits_cv, ids[len(found) :])
            best = log_softmax_of(logits_cv, temperature).topk(min(k, logits_cv.shape[1]))
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            found += [_possible(tokens, logps) for tokens, logps in pairs]
    return found


def _possible(tokens: list[int], logps: list[float]) -> list[tuple[int, float]]:
    return [(token, logp) for token, logp in zip(tokens, logps, strict=True) if logp > -math.inf]


def _held(constraints: Constraints, logits_cv: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """Return logits [C,V] as they were sampled from: masked by the grammar in each token's place."""
    row_r, rows = torch.zeros(1, dtype=torch.long), list[torch.Tensor]()
    for logits_v, token in zip(logits_cv.split(1), ids, strict=False):
        rows.append(constraints.mask(logits_v, row_r))
        constraints.take(torch.tensor([token]), row_r)
    return torch.cat(rows)
