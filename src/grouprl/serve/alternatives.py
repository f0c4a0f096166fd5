"""The likeliest tokens at the position of each sampled token, by a forward pass over the completion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from grouprl.policy.logprobs import log_softmax_of
from grouprl.protocols import Grammar, Request
from grouprl.records.tokens import Tokens
from grouprl.rollout.local.grammars import Constraints

if TYPE_CHECKING:
    from grouprl.policy.language.introspection import IntrospectablePolicy
    from grouprl.records.token_policy import TokenPolicy

Alternatives = list[list[tuple[int, float]]]
"""For each of the T tokens, the likeliest tokens at its position with their log-probs, likeliest first."""


@torch.no_grad()
def alternatives(
    policy: TokenPolicy, prompt_ids: Sequence[int], ids: Sequence[int], temperature: float, k: int, grammar: str = ""
) -> Alternatives:
    """Return the `k` likeliest tokens at the position of each of `ids`, at `temperature` and before top-p.

    There are fewer where a grammar allows fewer.
    """
    found: Alternatives = []
    held = Constraints(policy, [Request(tuple(prompt_ids), 1, grammar=Grammar(grammar))]) if grammar else None
    for _, readout in cast("IntrospectablePolicy", policy).readouts(Tokens.of([list(prompt_ids)], [list(ids)])):
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
    """Return the logits [C,V] that were sampled from, with the grammar's mask at each position."""
    row_r, rows = torch.zeros(1, dtype=torch.long), list[torch.Tensor]()
    for logits_v, token in zip(logits_cv.split(1), ids, strict=False):
        rows.append(constraints.mask(logits_v, row_r))
        constraints.take(torch.tensor([token]), row_r)
    return torch.cat(rows)
