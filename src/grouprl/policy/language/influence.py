"""The influence of training on a token on the log-probs of the correct completions of its group (THR, NTHR)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from grouprl.policy.engine import Readout
from grouprl.policy.language.introspection import IntrospectablePolicy
from grouprl.policy.logprobs import log_softmax_of
from grouprl.policy.microbatch import join_passes
from grouprl.records.tokens import Tokens


@torch.no_grad()
def influence(
    policy: IntrospectablePolicy, tokens: Tokens, group_b: Tensor, correct_b: Tensor, mask_bt: Tensor | None = None
) -> Tensor:
    """Return s_k' = Σ_{i correct in the group} Σ_k <g_ik, g_k'> <h_ik, h_k'> for each token k', [B,T] on the CPU.

    h is the last hidden state, g = onehot(token) - π on the token ids V* that occur in the group's responses (not
    renormalised). Computed as gᵀ M h with M = Σ_{correct completions} g hᵀ, [V*,H], one group at a time, in float32
    (float64 for a float64 model); correct completions are run twice, so that no [tokens, V*] tensor is ever held. The
    result is 0 for groups without a correct completion.

    Source: Token Hidden Reward (THR) and its predecessor NTHR; this is the influence score before sign and threshold
        are applied.

    Args:
        policy: the policy whose states and distributions, at its temperature, are read.
        tokens: B rows.
        group_b: [B] int64 ids of groups.
        correct_b: [B] bool.
        mask_bt: [B,T] bool, True for tokens of correct completions that count in M; None for all.
    """
    group_b, correct_b = group_b.cpu(), correct_b.cpu()
    written_bt = (tokens.present_bt() if mask_bt is None else mask_bt.cpu()).to(policy.score_dtype)
    passes: list[list[int]] = []
    scores: list[Tensor] = []
    for group in group_b[correct_b].unique():
        rows_b = group_b == group
        rows = rows_b.nonzero()[:, 0].tolist()
        ids_u = torch.tensor(sorted({i for row in rows for i in tokens.response_ids[row]}), device=policy.device)
        right = (rows_b & correct_b).nonzero()[:, 0].tolist()
        matrix_ud = _matrix(policy, tokens, right, ids_u, written_bt)
        for own, readout in policy.readouts(tokens, rows):
            passes.append(own)
            scores += [((g_cu @ matrix_ud) * h_cd).sum(-1).cpu() for _, g_cu, h_cd in _errors(policy, readout, ids_u)]
    return join_passes(tokens, passes, scores).to(policy.score_dtype)


def _matrix(policy: IntrospectablePolicy, tokens: Tokens, rows: list[int], ids_u: Tensor, written_bt: Tensor) -> Tensor:
    """Return M = Σ g hᵀ over the written tokens of `rows`, [V*,H]."""
    size = policy.model.config.get_text_config().hidden_size
    matrix_ud = torch.zeros(len(ids_u), size, dtype=policy.score_dtype, device=policy.device)
    for own, readout in policy.readouts(tokens, rows):
        pieces = [written_bt[row, : len(tokens.response_ids[row])] for row in own]
        written_m = torch.cat(pieces).to(policy.device)
        for part, g_cu, h_cd in _errors(policy, readout, ids_u):
            matrix_ud.addmm_((g_cu * written_m[part, None]).T, h_cd)
    return matrix_ud


def _errors(policy: IntrospectablePolicy, readout: Readout, ids_u: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (positions, g [C,V*], h [C,H]) chunk by chunk."""
    at_m = torch.searchsorted(ids_u, readout.target_m)
    for part, logits_cv in readout.chunks():
        g_cu = -log_softmax_of(logits_cv, policy.temperature)[:, ids_u].exp()
        g_cu.scatter_add_(1, at_m[part, None], torch.ones_like(g_cu[:, :1]))
        yield part, g_cu, readout.hidden_md[part].to(g_cu.dtype)
