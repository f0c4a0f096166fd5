"""The weights of a Llama-like model as one round of decoding reads them: joined, folded, adapters merged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from grouprl.core.spans import spanned
from grouprl.policy.fast_forward.forward import LeanModel, joined
from grouprl.policy.lora import linear_weight
from grouprl.policy.precision import Precision, linear, times

if TYPE_CHECKING:
    from grouprl.policy.fast_forward.forward import DecoderLayer, HasWeight

LAID_OUT = 2**22
"""Numbers of a weight that is copied into the layout in which it is multiplied."""
FOLDED = (torch.float32, torch.float64)
"""Types in which a norm's weight can be multiplied into the next layer's: the product rounds far below a log-prob."""


@dataclass(frozen=True)
class Norm:
    """x / sqrt(mean(x^2) + eps) * weight; a tensor eps stands for a weight that is folded into what follows."""

    eps: float | torch.Tensor
    weight: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise over the last axis."""
        if not isinstance(self.eps, torch.Tensor):
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.addcmul(self.eps, length, length, value=1 / x.shape[-1]).rsqrt_()


@dataclass(frozen=True)
class Affine:
    """x @ weight + bias, the weight stored as it is multiplied, [in, out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    @spanned("products")
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to rows of x."""
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)

    @spanned("products")
    def add_to(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add to `out` in place."""
        out = out.addmm_(x, self.weight)
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True)
class RoundedAffine(Affine):
    """The same with a weight that was rounded to bfloat16, and x rounded to it; the result is float32."""

    @spanned("products")
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to rows of x."""
        out = (x.bfloat16() @ self.weight).float()
        return out if self.bias is None else out.add_(self.bias)

    @spanned("products")
    def add_to(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add to `out` in place."""
        out = out.add_(x.bfloat16() @ self.weight)
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True)
class OneDnnAffine(Affine):
    """The same, multiplied by oneDNN."""

    @spanned("products")
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to rows of x."""
        out = times(x, self.weight, "onednn")
        return out if self.bias is None else out.add_(self.bias)

    @spanned("products")
    def add_to(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add to `out` in place."""
        out = out.add_(times(x, self.weight, "onednn"))
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True)
class WideAffine(Affine):
    """The same as the trainer's output layer in mixed precision: rounded as it is multiplied, sums in float32."""

    @spanned("products")
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to rows of x."""
        return linear(x, self.weight.T, self.bias, "mixed")


KINDS: dict[Precision, tuple[type[Affine], type[Affine]]] = {
    "float32": (Affine, Affine),
    "onednn": (OneDnnAffine, OneDnnAffine),
    "mixed": (RoundedAffine, WideAffine),
}
"""How layers, and the output layer, are multiplied."""


@dataclass(frozen=True)
class LayerWeights:
    """One layer. `qkv` gives interleaved pairs (see `lean_ops.rotate`) and scaled queries."""

    attention_norm: Norm
    qkv: Affine
    q_norm: Norm | None
    k_norm: Norm | None
    output: Affine
    feed_norm: Norm
    gate_up: Affine
    down: Affine


@dataclass(frozen=True)
class DecodingWeights:
    """Embeddings [vocabulary, hidden], all layers, the final norm and the head."""

    embeddings: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: Norm
    head: Affine


@torch.no_grad()
def decoding_weights(lean: LeanModel) -> DecodingWeights:
    """Return the weights as they are now; they do not follow later changes."""
    layers = tuple(_layer(lean, layer) for layer in lean.layers)
    head = lean.core.get_output_embeddings()
    norm, weight = _folded(lean, lean.core.model.norm, linear_weight(head))
    last = KINDS[lean.precision][1](_stored(weight), head.bias)
    return DecodingWeights(lean.core.model.embed_tokens.weight, layers, norm, last)


def _layer(lean: LeanModel, layer: DecoderLayer) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    weight, bias = lean.qkv(layer)
    attention_norm, weight = _folded(lean, layer.input_layernorm, weight)
    normed, queries = hasattr(attention, "q_norm"), lean.heads * lean.size
    if not normed:
        weight = _scaled(weight, queries, lean.size)
        bias = None if bias is None else _scaled(bias, queries, lean.size)
    gate_up, gate_up_bias = joined([mlp.gate_proj, mlp.up_proj])
    feed_norm, gate_up = _folded(lean, layer.post_attention_layernorm, gate_up)
    return LayerWeights(
        attention_norm=attention_norm,
        qkv=_affine(lean, weight, bias),
        q_norm=Norm(lean.eps, lean.paired(attention.q_norm.weight) / math.sqrt(lean.size)) if normed else None,
        k_norm=Norm(lean.eps, lean.paired(attention.k_norm.weight)) if normed else None,
        output=_affine(lean, linear_weight(attention.o_proj), attention.o_proj.bias),
        feed_norm=feed_norm,
        gate_up=_affine(lean, gate_up, gate_up_bias),
        down=_affine(lean, linear_weight(mlp.down_proj), mlp.down_proj.bias),
    )


def _folded(lean: LeanModel, norm: HasWeight, weight: torch.Tensor) -> tuple[Norm, torch.Tensor]:
    """Return the norm and the weight behind it, the norm's own factor in one of them."""
    if lean.dtype not in FOLDED or lean.precision == "mixed":  # as the trainer rounds: behind the norm
        return Norm(lean.eps, norm.weight), weight
    return Norm(torch.tensor(lean.eps, dtype=lean.dtype, device=lean.device)), weight * norm.weight


def _scaled(x: torch.Tensor, queries: int, size: int) -> torch.Tensor:
    return torch.cat([x[:queries] / math.sqrt(size), x[queries:]])


def _affine(lean: LeanModel, weight: torch.Tensor, bias: torch.Tensor | None) -> Affine:
    return KINDS[lean.precision][0](weight.bfloat16().T if lean.precision == "mixed" else _stored(weight), bias)


def _stored(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight [in, out], laid out as it is read where it is small: better for products of few rows."""
    return weight.T.contiguous() if weight.numel() <= LAID_OUT else weight.T
