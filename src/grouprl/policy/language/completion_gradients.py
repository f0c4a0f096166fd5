"""Gradients of single completions: their norms on a block of the parameters, and those of the output layer sketched."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.core.errors import InputError, suggest
from grouprl.core.outputs import LOG_PROB
from grouprl.policy.engine import Readout
from grouprl.policy.language.introspection import IntrospectablePolicy
from grouprl.policy.logprobs import log_softmax_of
from grouprl.policy.lora import base_model
from grouprl.records.tokens import Tokens

BLOCKS = ("embedding", "head", "trainable")


def gradient_norms(policy: IntrospectablePolicy, tokens: Tokens, block: str = "embedding") -> Tensor:
    """Return ‖∇_block Σ_t log π(o_t)‖₂ of each single completion, [B] on the CPU; 0 for a completion without tokens.

    This is the difficulty measure of GVM ("Optimizing Chain-of-Thought Reasoners via Gradient Variance Minimization"),
    which uses the embeddings. Each completion costs a forward and a backward pass; `.grad` is not changed.

    Args:
        policy: the policy whose gradients are measured; adapters' dropout is off.
        tokens: B rows.
        block: "embedding" (input embeddings; where the output layer shares them, its part of the gradient is
            included), "head" (the output layer) or "trainable" (every trainable parameter of the model).

    Raises:
        InputError: an unknown block, or one that is not trained.
    """
    parameters = _block(policy, block)
    norms = [_norm(policy, tokens.rows([row]), parameters) for row in range(len(tokens))]
    return torch.tensor(norms, dtype=policy.score_dtype)


def _norm(policy: IntrospectablePolicy, completion: Tokens, parameters: list[Tensor]) -> float:
    if not completion.max_response:
        return 0.0
    with torch.enable_grad():
        (found_m,) = [
            read.score((LOG_PROB,), temperature=policy.temperature) for _, read in policy.readouts(completion)
        ]
        found = torch.autograd.grad(found_m[LOG_PROB].sum(), parameters, allow_unused=True)
    squares = [x.to(policy.score_dtype).square().sum() for x in found if x is not None]
    return float(torch.stack(squares).sum().sqrt())


def _block(policy: IntrospectablePolicy, block: str) -> list[Tensor]:
    if block not in BLOCKS:
        raise InputError(f"unknown block '{block}'", remedy=suggest(block, BLOCKS))
    if block == "trainable":
        found = [p for p in policy.model.parameters() if p.requires_grad]
    else:
        core = base_model(policy.model)
        layer = core.get_input_embeddings() if block == "embedding" else core.get_output_embeddings()
        found = [layer.weight, *([layer.bias] if getattr(layer, "bias", None) is not None else [])]
    if not found or not all(p.requires_grad for p in found):
        raise InputError(
            f"block='{block}'",
            "These parameters are not trained, so no gradient reaches them (with LoRA, only adapters are trained)",
            "Use block='trainable'",
        )
    return found


@torch.no_grad()
def head_gradients(
    policy: IntrospectablePolicy, tokens: Tokens, size: int, mask_bt: Tensor | None = None, seed: int = 0
) -> Tensor:
    """Return φ_k = a_k' G b_k / √size of each row, [B,size] on the CPU, G = ∂ Σ_t log π(y_t)/∂W of the output layer W.

    G is Σ_t (onehot(y_t) - π_t) h_t' / temperature, [V,H], h the last hidden state; it is never held. The entries of
    a_k [V] and b_k [H] are signs drawn from `seed`, so that <φ, φ'> is <G, G'> in expectation. Where input embeddings
    are the same weights, their part of the gradient is left out, and so is the slope of a cap on the logits.

    Args:
        policy: the policy whose states and distributions, at its temperature, are read.
        tokens: B rows.
        size: numbers for each row.
        mask_bt: [B,T] bool, the tokens that count; None for all.
        seed: seed of the signs, the same for rows that are to be compared.
    """
    counts_bt = (tokens.present_bt() if mask_bt is None else mask_bt.cpu()).to(policy.score_dtype)
    found_bk = torch.zeros(len(tokens), size, dtype=policy.score_dtype)
    for rows, readout in policy.readouts(tokens):
        lengths = [len(tokens.response_ids[row]) for row in rows]
        each_mk = _sketched(policy, readout, size, seed).cpu().split(lengths)
        for row, each_tk in zip(rows, each_mk, strict=True):
            found_bk[row] = counts_bt[row, : len(each_tk)] @ each_tk
    return found_bk / size**0.5


def _sketched(policy: IntrospectablePolicy, readout: Readout, size: int, seed: int) -> Tensor:
    """Return (a_k'(onehot(y) - π))·(b_k'h)/temperature of each response token, [M,size]."""
    generator, pieces = torch.Generator().manual_seed(seed), [readout.hidden_md.new_zeros(0, size, dtype=torch.float64)]
    sign_hk = _signs(readout.hidden_md.shape[1], size, generator).to(policy.device, policy.score_dtype)
    sign_vk: Tensor | None = None
    for part, logits_cv in readout.chunks():
        if sign_vk is None:
            sign_vk = _signs(logits_cv.shape[1], size, generator).to(policy.device, policy.score_dtype)
        p_cv = log_softmax_of(logits_cv, policy.temperature).exp()
        error_ck = sign_vk[readout.target_m[part]] - p_cv @ sign_vk
        pieces.append(error_ck * (readout.hidden_md[part].to(p_cv.dtype) @ sign_hk) / policy.temperature)
    return torch.cat(pieces).to(policy.score_dtype)


def _signs(rows: int, size: int, generator: torch.Generator) -> Tensor:
    """Return [rows,size] numbers that are 1 or -1."""
    return torch.randint(0, 2, (rows, size), generator=generator) * 2.0 - 1
