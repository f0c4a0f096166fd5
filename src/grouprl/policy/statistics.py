"""Statistics of a policy's distributions besides log-probs: on demand, exact, never [B,T,V] at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from grouprl.core.batch import Batch
from grouprl.core.errors import InputError, suggest
from grouprl.policy.influence import influence
from grouprl.policy.logprobs import entropy_of, log_softmax_of
from grouprl.policy.microbatch import join_passes
from grouprl.policy.readable import ReadablePolicy
from grouprl.records.tokens import Tokens

Reading = Callable[[Tensor, Tensor], Tensor]
"""(logp_cv, target_c) -> [C]: a number for each position, of its whole distribution and the sampled token."""


def certainty(logp_cv: Tensor, target_c: Tensor) -> Tensor:
    """Return logsumexp(z) - mean(z) = -mean_j log p_j, at least log V.

    Self-certainty of Zhao et al. 2025, "Learning to Reason without External Rewards", whose form is less by log V.
    """
    return -logp_cv.mean(-1)


def entropy(logp_cv: Tensor, target_c: Tensor) -> Tensor:
    """Return the entropy in nats."""
    return entropy_of(logp_cv)


def sampled(logp_cv: Tensor, target_c: Tensor) -> Tensor:
    """Return the log-prob of the sampled token."""
    return logp_cv.gather(1, target_c[:, None])[:, 0]


def collision(logp_cv: Tensor, target_c: Tensor) -> Tensor:
    """Return Σ_a π(a)², the probability that two samples agree, in (0, 1]."""
    return (2 * logp_cv).exp().sum(-1)


READINGS: dict[str, Reading] = {"certainty": certainty, "entropy": entropy, "collision": collision}
NAMES = (*READINGS, "influence", "logp@1.2")
"""What `statistics` knows; "logp@" takes any temperature."""


@torch.no_grad()
def statistics(
    policy: ReadablePolicy,
    tokens: Tokens,
    names: Sequence[str],
    *,
    group_b: Tensor | None = None,
    correct_b: Tensor | None = None,
    mask_bt: Tensor | None = None,
) -> dict[str, Tensor]:
    """Compute statistics of each response token, [B,T] each, on the CPU, exactly 0 beyond a row's length.

    Args:
        policy: whose distributions, at its temperature, are read.
        tokens: B rows.
        names: "certainty" (see `certainty`), "entropy" in nats, "collision" (Σ_a π(a)²), "logp@T" (log-prob of the
            token with logits further divided by the number T), "influence" (see `influence`).
        group_b: [B] int64, for "influence".
        correct_b: [B] bool, for "influence".
        mask_bt: [B,T] bool: tokens the policy wrote, for "influence"; None means all.

    Raises:
        InputError: an unknown name, or "influence" without `group_b` and `correct_b`.
    """
    found = _read(policy, tokens, {name: _reading(name) for name in names if name != "influence"})
    if "influence" in names:
        if group_b is None or correct_b is None:
            raise InputError(
                "'influence' without group_b and correct_b",
                "It is the influence on the correct completions of a group",
                "Pass both, one entry per row",
            )
        found["influence"] = influence(policy, tokens, group_b, correct_b, mask_bt)
    return {name: found[name] for name in names}


def _reading(name: str) -> tuple[float, Reading]:
    """Return by how much the temperature of `name`'s distribution is multiplied, and what is read of it."""
    if name in READINGS:
        return 1.0, READINGS[name]
    stem, _, number = name.partition("@")
    try:
        factor = float(number) if stem == "logp" else math.nan
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise InputError(f"unknown statistic '{name}'", "'logp@' takes a positive number", suggest(name, NAMES))
    return factor, sampled


def _read(policy: ReadablePolicy, tokens: Tokens, wanted: dict[str, tuple[float, Reading]]) -> dict[str, Tensor]:
    if not wanted:
        return {}
    factors = dict.fromkeys(factor for factor, _ in wanted.values())
    passes, values = [], []
    for rows, readout in policy.readouts(tokens):
        value_mn = torch.empty(len(readout.target_m), len(wanted), dtype=policy.score_dtype, device=policy.device)
        for part, logits_cv in readout.chunks():
            for factor in factors:
                logp_cv = log_softmax_of(logits_cv, policy.temperature * factor)
                for n, (own, reading) in enumerate(wanted.values()):
                    if own == factor:
                        value_mn[part, n] = reading(logp_cv, readout.target_m[part])
        passes.append(rows)
        values.append(value_mn.cpu())
    return {name: join_passes(tokens, passes, [x[:, n] for x in values]) for n, name in enumerate(wanted)}


@torch.no_grad()
def hidden(policy: ReadablePolicy, tokens: Tokens) -> list[Tensor]:
    """Return for each row the last hidden states, after the final norm, that predicted its tokens, [T_b,H] (CPU)."""
    found: dict[int, Tensor] = {}
    for rows, readout in policy.readouts(tokens):
        lengths = [len(tokens.response_ids[row]) for row in rows]
        states = readout.hidden_md.to("cpu", policy.score_dtype).split(lengths)
        found |= dict(zip(rows, states, strict=True))
    return [found[row] for row in range(len(tokens))]


@torch.no_grad()
def top(policy: ReadablePolicy, tokens: Tokens, k: int) -> tuple[Tensor, Tensor]:
    """Return the `k` likeliest tokens at each position and their log-probs, [B,T,k] each, likeliest first (CPU).

    Both are 0 beyond a row's length. Raises InputError where `k` is not between 1 and the size of the vocabulary.
    """
    passes: list[list[int]] = []
    ids, logps = [torch.zeros(0, k, dtype=torch.long)], [torch.zeros(0, k, dtype=policy.score_dtype)]
    for rows, readout in policy.readouts(tokens):
        passes.append(rows)
        for _, logits_cv in readout.chunks():
            if not 1 <= k <= logits_cv.shape[1]:
                raise InputError(f"k={k}", f"The vocabulary has {logits_cv.shape[1]} tokens", "Choose k between")
            best = log_softmax_of(logits_cv, policy.temperature).topk(k)
            ids.append(best.indices.cpu())
            logps.append(best.values.cpu())
    return join_passes(tokens, passes, ids), join_passes(tokens, passes, logps)


def add_statistics(policy: ReadablePolicy, batch: Batch, names: Sequence[str]) -> Batch:
    """Return the batch with the statistics that `names` (a method's needs) calls "stats.NAME", padded to its width.

    Other names and what the batch holds already are skipped, and so is "stats.cross", which the loss receives.

    Raises:
        InputError: an unknown statistic, a batch without token ids, or "stats.influence" without `correct_b`.
    """
    wanted = [name.removeprefix("stats.") for name in names if name.startswith("stats.") and name != "stats.cross"]
    missing = [name for name in dict.fromkeys(wanted) if name not in batch.stats]
    if not missing:
        return batch
    tokens = batch.inputs
    if not isinstance(tokens, Tokens):
        raise InputError(f"batch.inputs is {type(tokens).__name__}", "Statistics are computed of Tokens", "Pass inputs")
    correct_b = batch.need("correct_b", "stats.influence") if "influence" in missing else None
    spare = batch.size[1] - tokens.max_response
    mask_bt = F.pad(batch.mask_bt, (0, -spare))
    found = policy.statistics(tokens, missing, group_b=batch.group_b, correct_b=correct_b, mask_bt=mask_bt)
    return batch.replace(stats={**batch.stats, **{name: F.pad(x, (0, spare)) for name, x in found.items()}})
