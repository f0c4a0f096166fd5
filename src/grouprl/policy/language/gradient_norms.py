"""Gradient norms of single completions on a block of the parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.core.errors import InputError, suggest
from grouprl.core.outputs import LOG_PROB
from grouprl.policy.fast_forward.forward import base_model
from grouprl.policy.language.introspection import IntrospectablePolicy
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
