"""The weights of a Llama-like model in the form used for decoding: joined, norms folded in, adapters merged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from grouprl.core.spans import spanned
from grouprl.policy.devices import Precision
from grouprl.policy.fast_forward.forward import LeanModel, joined
from grouprl.policy.lora import linear_weight
from grouprl.policy.products import linear, times

if TYPE_CHECKING:
    from grouprl.policy.fast_forward.forward import DecoderLayer, HasWeight

LAID_OUT = 2**22
"""Size of a weight up to which it is copied into the layout in which it is multiplied."""
FOLDED = (torch.float32, torch.float64)
"""Types in which a norm's weight can be multiplied into the next layer's: the rounding error is far too small to affect
a log-prob.
"""


@dataclass(frozen=True)
class Norm:
    """x / sqrt(mean(x^2) + eps) * weight; if eps is a tensor, the weight has been folded into the layer that
    follows.
    """

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
    """x @ weight + bias, with the weight stored in the layout of the product, [in, out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    @spanned("products")
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight + bias for rows x [N, in]."""
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)

    @spanned("products")
    def add_to(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add x @ weight + bias to `out` in place."""
        out = out.addmm_(x, self.weight)
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True)
class RoundedAffine(Affine):
    """An affine layer whose weight and input are rounded to bfloat16; the result is float32."""

    @spanned("products")
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight + bias for rows x [N, in]."""
        out = (x.bfloat16() @ self.weight).float()
        return out if self.bias is None else out.add_(self.bias)

    @spanned("products")
    def add_to(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add x @ weight + bias to `out` in place."""
        out = out.add_(x.bfloat16() @ self.weight)
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True)
class OneDnnAffine(Affine):
    """An affine layer whose product is computed by oneDNN."""

    @spanned("products")
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight + bias for rows x [N, in]."""
        out = times(x, self.weight, "onednn")
        return out if self.bias is None else out.add_(self.bias)

    @spanned("products")
    def add_to(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add x @ weight + bias to `out` in place."""
        out = out.add_(times(x, self.weight, "onednn"))
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True)
class WideAffine(Affine):
    """An affine layer that computes like the trainer's output layer in mixed precision: inputs are rounded in the
    product, sums are float32.
    """

    @spanned("products")
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight + bias for rows x [N, in]."""
        return linear(x, self.weight.T, self.bias, "mixed")


KINDS: dict[Precision, tuple[type[Affine], type[Affine]]] = {
    "float32": (Affine, Affine),
    "onednn": (OneDnnAffine, OneDnnAffine),
    "mixed": (RoundedAffine, WideAffine),
}
"""Classes of the inner layers and of the output layer for each precision."""


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one layer. `qkv` gives interleaved pairs (see `gradient_ops.rotate`) and scaled queries."""

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
    # A norm of heads would undo a scale in the weights, so there the scale is in the norm's own weight (`q_norm`).
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
    """Return the norm and the weight of the layer after it, with the norm's factor contained in one of the two."""
    if lean.dtype not in FOLDED or lean.precision == "mixed":  # rounds after the norm, as in training
        return Norm(lean.eps, norm.weight), weight
    return Norm(torch.tensor(lean.eps, dtype=lean.dtype, device=lean.device)), weight * norm.weight


def _scaled(x: torch.Tensor, queries: int, size: int) -> torch.Tensor:
    return torch.cat([x[:queries] / math.sqrt(size), x[queries:]])


def _affine(lean: LeanModel, weight: torch.Tensor, bias: torch.Tensor | None) -> Affine:
    return KINDS[lean.precision][0](weight.bfloat16().T if lean.precision == "mixed" else _stored(weight), bias)


def _stored(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight [in, out], contiguous if it is small: this is faster for products of few rows."""
    return weight.T.contiguous() if weight.numel() <= LAID_OUT else weight.T
