"""A lean forward pass for Llama-like models over the parameters of the transformers model.

It computes the same numbers as the model's own forward pass with less work: no padding outside attention, common
beginnings of rows run once, and few, large operations.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F

from grouprl.policy.devices import Precision
from grouprl.policy.engine import Head, Readout, output_layer
from grouprl.policy.fast_forward.attention import HeadLayout, attention
from grouprl.policy.fast_forward.gradient_ops import rms_norm, rotate, swiglu
from grouprl.policy.fast_forward.mixed_precision import HeadTurn, mixed_feed_forward, mixed_heads
from grouprl.policy.fast_forward.projection import EXACT, Projection, gated, project
from grouprl.policy.fast_forward.token_plan import PassPlan, plan_pass
from grouprl.policy.lora import base_model, is_linear, linear_weight
from grouprl.policy.microbatch import split_evenly, split_tree
from grouprl.policy.passes import Choice, anew, in_pieces, pays
from grouprl.policy.products import product
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
"""Families of models whose layers are alike; for each, its classes of language models and of reward models."""
CLASSES = tuple(f"{family}For{use}" for family in FAMILIES for use in ("CausalLM", "SequenceClassification"))
FEWER_ROWS = 4
"""Ratio of tokens to vocabulary entries from which the first layer projects the vocabulary instead of the tokens."""


class HasWeight(Protocol):
    """A module with a weight, such as a norm."""

    weight: torch.Tensor


class _Attention(Protocol):
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear
    q_norm: HasWeight
    """Present, like `k_norm`, only in families that normalise queries and keys."""
    k_norm: HasWeight


class _FeedForward(Protocol):
    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear


class DecoderLayer(Protocol):
    """A decoder layer of a model from `FAMILIES`; its linear layers may have adapters."""

    self_attn: _Attention
    mlp: _FeedForward
    input_layernorm: HasWeight
    post_attention_layernorm: HasWeight


def why_not_lean(model: object) -> str | None:
    """Return why the lean forward pass would differ from the model's own, or None if it is the same."""
    core = base_model(model)
    config = core.config
    if type(core).__name__ not in CLASSES or not type(core).__module__.startswith("transformers."):
        return f"{type(core).__name__} is not one of the families {', '.join(FAMILIES)}"
    if config.hidden_act not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}, not silu"
    rotary = core.model.rotary_emb
    if getattr(rotary, "rope_type", "default") != "default" or getattr(rotary, "attention_scaling", 1.0) != 1.0:
        return "it scales its rotary positions"
    if _slides(config):
        return "it attends through a sliding window"
    odd = [name for name, module in _projections(core) if not is_linear(module)]
    return f"{odd[0]} is not a plain linear layer" if odd else None


def _slides(config: PretrainedConfig) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    window = getattr(config, "sliding_window", None)
    # A window as wide as all positions hides nothing.
    return window is not None and window < config.max_position_embeddings


def _projections(core: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    layers = [
        (f"layers.{i}.{name}", module)
        for i, layer in enumerate(core.model.layers)
        for part in (layer.self_attn, layer.mlp)
        for name, module in part.named_children()
        if name.endswith("_proj")
    ]
    head = output_layer(core)
    return layers if head is None else [*layers, ("lm_head", head)]


class LeanModel:
    """The parameters and sizes of a Llama-like model, for the lean forward pass and the lean decoder.

    `precision` says how products are computed (`grouprl.policy.precision`).
    """

    def __init__(self, model: PreTrainedModel, precision: Precision = "float32") -> None:
        self.core, self.precision = base_model(model), precision
        config = self.core.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.layers = list(self.core.model.layers)
        self._order = self._paired_order()

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.core.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters."""
        return self.core.model.embed_tokens.weight.dtype

    def _paired_order(self) -> torch.Tensor:
        """Return the row order of the joined q, k, v weights in which the two halves of each q and k head are
        interleaved (see `rotate`).
        """
        head = torch.arange(self.size).view(2, -1).T.flatten()
        turned = self.heads + self.kv_heads
        pairs = (torch.arange(turned)[:, None] * self.size + head).flatten()
        return torch.cat([pairs, torch.arange(turned * self.size, (turned + self.kv_heads) * self.size)])

    def qkv(self, layer: DecoderLayer) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the joined weight [(heads + 2 kv_heads) d, hidden] and bias of q, k and v, pairs interleaved."""
        order = self._order.to(self.device)
        weight, bias = joined([layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj])
        return weight[order], None if bias is None else bias[order]

    def turns(self, position: torch.Tensor) -> torch.Tensor:
        """Return the rotary factors exp(i * angle) of positions, [..., d / 2] complex, from the model's own float32
        frequencies.
        """
        frequency = self.core.model.rotary_emb.inv_freq.to(self.device, torch.float32)
        # In float32 for float64 weights, too, as transformers does: exact angles would be other than the model's.
        angle = position[..., None].float() * frequency
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        return torch.complex(angle.cos().to(wide), angle.sin().to(wide))

    def normed_heads(self, layer: DecoderLayer, qkv_shd: torch.Tensor) -> torch.Tensor:
        """Apply the norms of q and k heads, if the model has them (Qwen3)."""
        attention = layer.self_attn
        if not hasattr(attention, "q_norm"):
            return qkv_shd
        q, k, v = qkv_shd.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        q = rms_norm(q, self.paired(attention.q_norm.weight), self.eps)
        return torch.cat([q, rms_norm(k, self.paired(attention.k_norm.weight), self.eps), v], dim=-2)

    def paired(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight [d] of a head norm in the order of the interleaved pairs."""
        return weight[self._order[: self.size].to(self.device)]

    def states(self, plan: PassPlan, checkpointing: bool = False, piece: int = sys.maxsize) -> torch.Tensor:
        """Return the last hidden states of the plan's predictions, [N, hidden].

        With `checkpointing`, layers keep only their input and are recomputed in the backward pass. At most `piece`
        tokens at a time go through a feed-forward block.
        """
        layout = HeadLayout(plan, self.heads, self.kv_heads, mixed=self.precision == "mixed")
        stream = Stream(plan, layout, self.turns(plan.position_s)[:, None], piece)
        x = self.core.model.embed_tokens(plan.ids_s)
        for number, layer in enumerate(self.layers):
            run = (layer, x, stream, number == 0, plan.needed_u if number + 1 == len(self.layers) else None)
            x = anew(self._layer, *run) if checkpointing else self._layer(*run)
        return rms_norm(x[plan.state_n], self.core.model.norm.weight, self.eps)

    def _layer(
        self, layer: DecoderLayer, x: torch.Tensor, stream: Stream, first: bool, needed_u: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the output of the layer for x; after its attention only the tokens `needed_u` are computed (None:
        all).
        """
        heads, scaled = self._heads(layer, x, stream, first)
        out = attention(heads, stream.layout, scaled=scaled)
        # After the last attention nothing reads a token that predicts nothing.
        if needed_u is not None:
            x, out = x.index_select(0, needed_u), out.index_select(0, needed_u)
        x = add_linear(x, out, layer.self_attn.o_proj, self.precision)
        return in_pieces(partial(self.mlp, layer), x, stream.piece)

    def _heads(self, layer: DecoderLayer, x: torch.Tensor, stream: Stream, first: bool) -> tuple[torch.Tensor, bool]:
        """Return rotated queries and keys, and values, [S, heads + 2 kv_heads, d]; and whether queries are scaled."""
        norm, turning = layer.input_layernorm.weight, self.heads + self.kv_heads
        # Norms of heads stand between product and rotation, and half precision rounds after each of the model's own
        # steps: neither can be one operation with the same result.
        if hasattr(layer.self_attn, "q_norm") or self.dtype not in EXACT:
            return self._heads_apart(layer, x, stream), False
        if self.precision == "mixed":
            return self._mixed_heads(layer, x, stream), True
        index_s, rows = None, x
        # Before the first attention a token's projection depends on its id alone.
        if first and self._embeds_fewer_rows(stream):
            embed = self.core.model.embed_tokens  # called, as its row of padding has no gradient
            index_s, rows = stream.plan.ids_s, embed(torch.arange(len(embed.weight), device=self.device))
        own, order = layer.self_attn, self._order.to(self.device)
        modules = (own.q_proj, own.k_proj, own.v_proj)
        bias = None if own.q_proj.bias is None else torch.cat([each.bias for each in modules])[order]
        scale = self._query_scale(norm)
        how = Projection(self.eps, scale, stream.turn_s, turning, self.size, index_s, order, self.precision)
        weights = [linear_weight(module) for module in modules]
        return project(rows, norm, weights, bias, how).view(len(x), -1, self.size), True

    def _mixed_heads(self, layer: DecoderLayer, x: torch.Tensor, stream: Stream) -> torch.Tensor:
        """Return the same as `_heads` in mixed precision, with scaled queries."""
        own, order = layer.self_attn, self._order.to(self.device)
        modules, scales = (own.q_proj, own.k_proj, own.v_proj), (1 / math.sqrt(self.size), 1.0, 1.0)
        bias = None
        if own.q_proj.bias is not None:
            bias = torch.cat([each.bias * scale for each, scale in zip(modules, scales, strict=True)])[order]
        how = HeadTurn(self.eps, scales, order, order.argsort(), stream.turn_s, self.heads + self.kv_heads, self.size)
        weights = [linear_weight(module) for module in modules]
        found = mixed_heads(x, layer.input_layernorm.weight, bias, weights, how)
        return found.view(len(x), -1, self.size)

    def _heads_apart(self, layer: DecoderLayer, x: torch.Tensor, stream: Stream) -> torch.Tensor:
        """Return the same as `_heads` in separate steps, for models that normalise heads and for half precision."""
        weight, bias = self.qkv(layer)
        normed = rms_norm(x, layer.input_layernorm.weight, self.eps)
        heads = self.normed_heads(layer, self._linear(normed, weight, bias).view(len(x), -1, self.size))
        return rotate(heads, stream.turn_s, self.heads + self.kv_heads)

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.precision == "float32":
            return F.linear(x, weight, bias)
        found = product(x, weight, self.precision)
        return found if bias is None else found + bias

    def _embeds_fewer_rows(self, stream: Stream) -> bool:
        """Return whether the vocabulary is so small that projecting all of it in the first layer costs less than
        projecting the tokens.
        """
        table = self.core.model.embed_tokens.weight
        return len(table) * FEWER_ROWS <= len(stream.plan.ids_s)

    def _query_scale(self, like: torch.Tensor) -> torch.Tensor:
        scale = like.new_ones(len(self._order))
        scale[: self.heads * self.size] = 1 / math.sqrt(self.size)
        return scale

    def mlp(self, layer: DecoderLayer, x: torch.Tensor) -> torch.Tensor:
        """Return x plus the output of the layer's feed-forward block for x."""
        mlp, norm = layer.mlp, layer.post_attention_layernorm.weight
        modules = (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        if self.precision == "mixed" and all(module.bias is None for module in modules):
            gate, up, down = map(linear_weight, modules)
            return mixed_feed_forward(x, norm, gate, up, down, self.eps)
        if self.dtype in EXACT:
            biased = mlp.gate_proj.bias is not None
            bias = torch.cat([mlp.gate_proj.bias, mlp.up_proj.bias]) if biased else None
            weights = [linear_weight(mlp.gate_proj), linear_weight(mlp.up_proj)]
            how = Projection(self.eps, precision=self.precision)
            return add_linear(x, gated(project(x, norm, weights, bias, how)), mlp.down_proj, self.precision)
        normed = rms_norm(x, norm, self.eps)
        return add_linear(x, swiglu(linear(normed, mlp.gate_proj), linear(normed, mlp.up_proj)), mlp.down_proj)


@dataclass(frozen=True)
class Stream:
    """The tokens of one pass: their layout, their rotary factors [S, 1, d / 2], and how many of them at most go through
    a feed-forward block at a time.
    """

    plan: PassPlan
    layout: HeadLayout
    turn_s: torch.Tensor
    piece: int


def joined(modules: Sequence[nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weights and biases of linear layers that share their input, joined into those of one layer."""
    weight = torch.cat([linear_weight(module) for module in modules])
    return weight, torch.cat([module.bias for module in modules]) if modules[0].bias is not None else None


def linear(x: torch.Tensor, module: nn.Linear) -> torch.Tensor:
    """Apply a linear layer, LoRA adapters included."""
    return F.linear(x, linear_weight(module), module.bias)


def add_linear(x: torch.Tensor, y: torch.Tensor, module: nn.Linear, precision: Precision = "float32") -> torch.Tensor:
    """Return x + module(y) in one product."""
    weight = linear_weight(module)
    out = torch.addmm(x, y, weight.T) if precision == "float32" else x + product(y, weight, precision)
    return out if module.bias is None else out + module.bias


class LeanEngine:
    """Runs rows through `LeanModel`, always packed: only attention uses padding.

    Args:
        model: a model for which `why_not_lean` is None.
        shared_prefix: whether rows of one pass run their common beginning once.
        checkpoint_above: number of tokens in a pass up to which layers keep their activations; larger passes recompute
            them.
        precision: the precision of products.
        piece: tokens that go through a feed-forward block at a time where its activations are not kept.
    """

    name = "lean"

    def __init__(
        self,
        model: object,
        shared_prefix: Choice = "auto",
        checkpoint_above: float = math.inf,
        *,
        precision: Precision = "float32",
        piece: int = sys.maxsize,
    ) -> None:
        self.lean, self.checkpoint_above, self.piece = LeanModel(model, precision), checkpoint_above, piece
        self._pays = pays(shared_prefix)

    def split(self, tokens: Tokens, rows: Sequence[int], budget: int) -> list[list[int]]:
        """Divide `rows` into passes with rows that begin alike next to each other. In mixed precision, passes have even
        sizes.
        """

        def cut(most: int) -> list[list[int]]:
            return split_tree(tokens, rows, most, self._pays)

        return split_evenly(cut, budget) if self.lean.precision == "mixed" else cut(budget)

    def read(self, tokens: Tokens) -> Readout:
        """Run the rows of `tokens` in one pass, shared beginnings once."""
        plan = plan_pass(tokens, self.lean.dtype, self.lean.device, pays=self._pays)
        head = output_layer(self.lean.core)
        recomputed = len(plan.ids_s) > self.checkpoint_above
        # Pieces are computed again in the backward pass: a waste where activations are kept anyway.
        keeps = torch.is_grad_enabled() and not recomputed
        states_nd = self.lean.states(plan, recomputed, sys.maxsize if keeps else self.piece)
        scored = None if head is None else Head(linear_weight(head), head.bias, self.lean.precision)
        return Readout(states_nd, plan.target_n, scored, place_m=plan.place_m)
