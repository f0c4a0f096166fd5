"""Exact statistics of a policy's distributions besides log-probs, computed on demand without ever holding [B,T,V]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from grouprl.core import outputs
from grouprl.core.errors import InputError
from grouprl.core.outputs import parameter, stem
from grouprl.policy.language.introspection import IntrospectablePolicy
from grouprl.policy.logprobs import log_softmax_of
from grouprl.policy.microbatch import join_passes
from grouprl.records.tokens import Tokens

Reading = Callable[[Tensor, Tensor], Tensor]
"""Function (logp_cv, target_c) -> [C]: one number per position, computed from its distribution and the sampled
token.
"""


def certainty(logp_cv: Tensor, target_c: Tensor) -> Tensor:
    """Return logsumexp(z) - mean(z) = -mean_j log p_j, which is at least log V.

    Self-certainty of Zhao et al. 2025, "Learning to Reason without External Rewards", whose form is smaller by log V.
    """
    return -logp_cv.mean(-1)


def sampled(logp_cv: Tensor, target_c: Tensor) -> Tensor:
    """Return the log-prob of the sampled token."""
    return logp_cv.gather(1, target_c[:, None])[:, 0]


def collision(logp_cv: Tensor, target_c: Tensor) -> Tensor:
    """Return Σ_a π(a)², the probability that two samples agree, in (0, 1]."""
    return (2 * logp_cv).exp().sum(-1)


READINGS: dict[str, Reading] = dict(zip(outputs.READINGS, (certainty, collision, sampled), strict=True))
"""Functions by the name of the output: `certainty`, `collision` (Σ_a π(a)²), and `logp@`: the log-prob of the token
with logits further divided by the number after the @.
"""


def is_reading(name: str) -> bool:
    """Return whether an output is a statistic."""
    return stem(name) in READINGS


def refuse_readings(names: Iterable[str]) -> None:
    """Raise InputError if one of the names is a statistic, which has no gradient."""
    wrong = next((name for name in names if is_reading(name)), None)
    if wrong is not None:
        raise InputError(f"A cotangent of '{wrong}'", "statistics have no gradient", "Detach it in the loss")


@torch.no_grad()
def readings(policy: IntrospectablePolicy, tokens: Tokens, names: Sequence[str]) -> dict[str, Tensor]:
    """Return statistics of each response token by name, [B,T] each, on the CPU, exactly 0 beyond a row's length.

    Args:
        policy: the policy whose distributions, at its temperature, are read.
        tokens: B rows.
        names: names of statistics, see `READINGS`.
    """
    if not names:
        return {}
    factor_by_name = {name: parameter(name) if "@" in name else 1.0 for name in names}
    passes, values = [], []
    for rows, readout in policy.readouts(tokens):
        value_mn = torch.empty(len(readout.target_m), len(names), dtype=policy.score_dtype, device=policy.device)
        for part, logits_cv in readout.chunks():
            for factor in dict.fromkeys(factor_by_name.values()):
                logp_cv = log_softmax_of(logits_cv, policy.temperature * factor)
                for n, (name, own) in enumerate(factor_by_name.items()):
                    if own == factor:
                        value_mn[part, n] = READINGS[stem(name)](logp_cv, readout.target_m[part])
        passes.append(rows)
        values.append(value_mn.cpu())
    return {name: join_passes(tokens, passes, [x[:, n] for x in values]) for n, name in enumerate(names)}


@torch.no_grad()
def hidden(policy: IntrospectablePolicy, tokens: Tokens) -> list[Tensor]:
    """Return for each row the last hidden states, after the final norm, that predicted its tokens, [T_b,H] on the
    CPU.
    """
    found: dict[int, Tensor] = {}
    for rows, readout in policy.readouts(tokens):
        lengths = [len(tokens.response_ids[row]) for row in rows]
        states = readout.hidden_md.to("cpu", policy.score_dtype).split(lengths)
        found |= dict(zip(rows, states, strict=True))
    return [found[row] for row in range(len(tokens))]


@torch.no_grad()
def top(policy: IntrospectablePolicy, tokens: Tokens, k: int) -> tuple[Tensor, Tensor]:
    """Return the `k` likeliest tokens at each position and their log-probs, [B,T,k] each on the CPU, likeliest first.

    Both are 0 beyond a row's length. Raises InputError if `k` is not between 1 and the size of the vocabulary.
    """
    passes: list[list[int]] = []
    ids, logps = [torch.zeros(0, k, dtype=torch.long)], [torch.zeros(0, k, dtype=policy.score_dtype)]
    for rows, readout in policy.readouts(tokens):
        passes.append(rows)
        for _, logits_cv in readout.chunks():
            if not 1 <= k <= logits_cv.shape[1]:
                raise InputError(
                    f"k={k}", f"it is at least 1 and at most {logits_cv.shape[1]}, the size of the vocabulary"
                )
            best = log_softmax_of(logits_cv, policy.temperature).topk(k)
            ids.append(best.indices.cpu())
            logps.append(best.values.cpu())
    return join_passes(tokens, passes, ids), join_passes(tokens, passes, logps)
