"""Any transformer run by its own forward pass in transformers: padded, packed, or with shared prompts."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from grouprl.core.errors import InputError
from grouprl.policy.compiled_layers import CompiledLayers, not_compiled
from grouprl.policy.engine import Head, Readout, head_is_plain, output_layer
from grouprl.policy.language.model_checks import STATES, accepts, positions_of, state_kinds, state_name, stray_window
from grouprl.policy.microbatch import split_rows
from grouprl.policy.passes import (
    PACKING_PAYS,
    PADDED,
    Forward,
    PassSettings,
    bins,
    computed_anew,
    feed_forward_blocks,
    forward_in_pieces,
    from_main_memory,
    layers_of,
    layers_through,
    padding_ratio,
    shares,
)
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

log = logging.getLogger(__name__)
PROBE = Tokens(((3, 4, 5, 6, 8), (3, 4, 5, 6, 8), (6, 7)), ((5, 4, 6, 3, 7, 9, 4), (7, 3), (3, 4)))
"""Three rows with which a way of running the model is tested before it is used: two have the same prompt, and two share
a pack.
"""
SEPARATE = ("DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer", "LinearAttentionLayer")
"""Kinds of a layer's state (classes of transformers) in which a token is seen by itself, or overwrites a state, so that
the probe would show if rows of a pack saw each other. Others merge several tokens into one, perhaps more than a probe
has.
"""
BY_KEYS = ("full_attention", "sliding_attention", "chunked_attention")
"""Kinds of layers in which tokens meet by keys and values alone. A recurrent state is overwritten in place, and how
left padding before it counts differs between versions of transformers.
"""
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-4}
HALF_CLOSE = 0.1
"""Largest difference of the probe's states in half precision, relative to the largest state; with a wrong mask the
difference is about 1.
"""


HALF_WRONG = 0.5
"""Difference of all of the probe's states together, relative to them, from which a model is refused in half precision:
rounding alone may send a token to another expert.
"""


@dataclass(frozen=True)
class PassLayout:
    """The input of a pass: ids and positions [B,L], a mask of real keys [B, keys] (None: implied by the positions), and
    places of states.

    `at_m` [M] are the flat indices of the states that predict the responses, row after row.
    """

    ids_bl: torch.Tensor
    position_bl: torch.Tensor | None
    mask_bl: torch.Tensor | None
    at_m: torch.Tensor


class TransformersEngine:
    """The model's own forward pass, which is correct for every architecture.

    Args:
        model: the model, plain or wrapped by peft.
        settings: packing and shared prompts; each is tested on three rows before it is used, and replaced by padding if
            the model does not support it.
        checkpoint_above: number of tokens in a pass up to which layers keep their activations; larger passes recompute
            them.
        piece: tokens that go through a dense feed-forward block at a time where its activations are not kept.

    Raises:
        InputError: packing, shared prompts or compiled layers are forced, and the model does not support them.
    """

    name = "transformers"

    def __init__(
        self,
        model: PreTrainedModel,
        settings: PassSettings = PADDED,
        checkpoint_above: float = math.inf,
        piece: int = sys.maxsize,
    ) -> None:
        self.model = model
        self.core = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._state = state_name(self.core) or STATES[0]
        self.plain_head = output_layer(self.core) is None or head_is_plain(self.core)
        self.settings, self.checkpoint_above, self.layers = settings, checkpoint_above, layers_of(self.core)
        self.blocks, self.piece = [] if settings.compiled else feed_forward_blocks(self.layers), piece
        if not self.plain_head:
            log.warning(
                "%s changes its logits after the output layer: log-probabilities hold [tokens, vocabulary] at a time. "
                "Lower the token budget if memory runs out.",
                type(self.core).__name__,
            )
        self.compiled: CompiledLayers | None = None
        self._check_padding()
        self.packs = self._able("packing", settings.packing, self._packed)
        sharing = "off" if settings.compiled else settings.shared_prefix
        self.shares_prompts = checkpoint_above > 0 and self._able("shared_prefix", sharing, self._shared)
        if checkpoint_above == 0 and settings.shared_prefix == "on":
            raise InputError(
                f"shared_prefix=on and checkpointing={settings.checkpointing}",
                "With transformers, shared prompts are in a cache, which recomputed layers would write twice",
                "Set one of them to off, or use a model that the lean engine runs",
            )
        if settings.compiled:
            self._compile()

    def split(self, tokens: Tokens, rows: Sequence[int], budget: int) -> list[list[int]]:
        """Divide `rows` into passes, with rows of one prompt next to each other."""
        return split_rows(tokens, rows, budget, shared=self.shares_prompts)

    def read(self, tokens: Tokens) -> Readout:
        """Run the rows of `tokens` in one pass, in the way that costs the fewest tokens."""
        count = sum(tokens.lengths)
        if self.shares_prompts and self._keeps(count) and shares(self.settings.shared_prefix, tokens):
            return self._shared(tokens)
        return self._packed(tokens) if self.packing_pays(tokens) else self._padded(tokens)

    def packing_pays(self, tokens: Tokens) -> bool:
        """Return whether the rows of a pass are packed rather than padded."""
        return self.packs and (self.settings.packing == "on" or padding_ratio(tokens) >= PACKING_PAYS)

    def _keeps(self, count: int) -> bool:
        return not torch.is_grad_enabled() or count <= self.checkpoint_above

    def _able(self, name: str, choice: str, way: Callable[[Tokens], Readout]) -> bool:
        """Return whether the model gives the same states in this way, with no row seeing another."""
        if choice == "off":
            return False
        separate = all(kind in SEPARATE for kind in state_kinds(self.core))
        able = separate and accepts(self.core, "position_ids") and self._gives_the_same(way)
        if name == "shared_prefix":
            able = able and self._keeps_keys() and self._passes_gradients()
        if choice == "on" and not able:
            raise InputError(
                f"{name}=on",
                f"{type(self.core).__name__} does not give the same numbers with it",
                f"Use {name}: auto",
            )
        return able

    def _compile(self) -> None:
        """Compile the layers, and compare their states with those of plain ones.

        Raises:
            InputError: the model or the machine cannot compile, or the states differ.
        """
        with torch.no_grad():
            expected_md = self._padded(self.probe()).hidden_md.double()
            self.compiled = CompiledLayers(self.layers)
            try:
                found_md = self._padded(self.probe()).hidden_md.double()
            except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError, OSError) as error:
                raise not_compiled(str(error)) from error
        if not self.close(expected_md, found_md):
            raise not_compiled(f"{type(self.core).__name__} gives other numbers")

    def probe(self) -> Tokens:
        """Return the rows with which a way of running the model is tested."""
        config = self.core.config.get_text_config()
        room = (positions_of(config) or sys.maxsize) - len(PROBE.prompt_ids[0])
        responses = [response[: max(1, room)] for response in PROBE.response_ids]
        size = config.vocab_size
        return Tokens.of(*([[i % size for i in ids] for ids in x] for x in (PROBE.prompt_ids, responses)))

    def close(self, expected: torch.Tensor, found: torch.Tensor) -> bool:
        """Return whether states of the probe are equal but for rounding."""
        limit = CLOSE.get(self.core.dtype, HALF_CLOSE) * float(expected.abs().max())
        return bool((expected - found).abs().max() <= limit)

    @torch.no_grad()
    def _gives_the_same(self, way: Callable[[Tokens], Readout]) -> bool:
        probe = self.probe()
        try:
            expected, found = (read(probe).hidden_md.double() for read in (self._padded, way))
        except (TypeError, ValueError, RuntimeError, NotImplementedError, AttributeError, IndexError) as error:
            log.info("%s cannot be run in another way than padded: %s", type(self.core).__name__, error)
            return False
        return self.close(expected, found)

    def _keeps_keys(self) -> bool:
        """Return whether what the model keeps of a prompt is all keys and values, by its configuration."""
        config = self.core.config.get_text_config()
        return not stray_window(config) and set(getattr(config, "layer_types", None) or ()) <= set(BY_KEYS)

    def _passes_gradients(self) -> bool:
        """Return whether shared prompts give the same gradient: some models overwrite or detach the states after a
        prompt.
        """
        first = [p for layer in self.layers[:1] for p in layer.parameters() if p.requires_grad]
        if not first:
            return True
        small = min(first, key=torch.Tensor.numel)
        try:
            expected, found = (self._gradient(way, small) for way in (self._padded, self._shared))
        except RuntimeError as error:
            log.info("%s cannot share prompts in training: %s", type(self.core).__name__, error)
            return False
        return self.close(expected, found)

    @torch.enable_grad()
    def _gradient(self, way: Callable[[Tokens], Readout], parameter: torch.Tensor) -> torch.Tensor:
        """Return the gradient, in a parameter, of the probe's states added up with weights of both signs."""
        states_md = way(self.probe()).hidden_md
        weight_md = torch.arange(states_md.numel(), device=states_md.device).reshape(states_md.shape).double().cos()
        total = (states_md * weight_md.to(states_md)).sum()
        return torch.autograd.grad(total, parameter, allow_unused=True, materialize_grads=True)[0].double()

    @torch.no_grad()
    def _check_padding(self) -> None:
        """Raise InputError if padding, other rows or later tokens change the states of a row."""
        probe = self.probe()
        expected_md = torch.cat([self._padded(probe.rows([row])).hidden_md for row in range(len(probe))])
        begun = Tokens(probe.prompt_ids[:1], (probe.response_ids[0][:3],))
        found_md, found_nd = (self._padded(x).hidden_md.double() for x in (probe, begun))
        if self._alike(expected_md.double(), found_md) and self._alike(found_nd, found_md[: len(found_nd)]):
            return
        raise InputError(
            f"{type(self.core).__name__} gives a token other numbers with padding or more tokens behind it",
            "rows of unlike length are passed through the model together, and a token must not depend on later ones",
            "Take another model: a causal one that its attention mask keeps from seeing padding",
        )

    def _alike(self, expected: torch.Tensor, found: torch.Tensor) -> bool:
        """Return whether states are equal but for rounding; in half precision, but for the consequences of rounding."""
        if self.core.dtype in CLOSE:
            return self.close(expected, found)
        return float((expected - found).norm()) <= HALF_WRONG * float(expected.norm())

    def _padded(self, tokens: Tokens) -> Readout:
        """Run whole sequences, padded on the right to the longest."""
        return self.run(pad_sequences(tokens), tokens.targets(), sum(tokens.lengths))

    def _packed(self, tokens: Tokens) -> Readout:
        """Run whole sequences one after the other; positions that restart at 0 tell the model where each begins."""
        return self.run(pack_sequences(tokens), tokens.targets(), sum(tokens.lengths))

    def run(self, layout: PassLayout, target_m: torch.Tensor, count: int) -> Readout:
        """Run a pass of `count` tokens as they are laid out, and read the states that predict `target_m`."""
        keeps = self._keeps(count)
        cut = count > self.piece and not (keeps and torch.is_grad_enabled())
        with layers_through(self.layers, partial(self._way, keeps, cut)):
            states_bld, logits_blv, _ = self._forward(layout.ids_bl, layout.mask_bl, layout.position_bl, cached=False)
        return self._readout([states_bld], [logits_blv], layout.at_m, target_m)

    def _way(self, keeps: bool, cut: bool, forward: Forward) -> Forward:
        """Return how a layer's own forward pass is called: compiled or not, its activations kept or not, its
        feed-forward block cut into pieces or not.
        """
        run = forward if self.compiled is None else self.compiled(forward)
        if cut and self.blocks:
            run = partial(self._in_pieces, run)
        if keeps:
            return run
        return from_main_memory(run) if self.settings.offloads else computed_anew(run)

    def _in_pieces(self, run: Forward, *arguments: object, **named: object) -> object:
        """Call a layer's forward pass, now or in the backward pass, with its feed-forward block in pieces."""
        with layers_through(self.blocks, partial(forward_in_pieces, self.piece)):
            return run(*arguments, **named)

    def _shared(self, tokens: Tokens) -> Readout:
        """Run each distinct prompt once, and the responses after its keys and values."""
        number = {prompt: i for i, prompt in enumerate(dict.fromkeys(tokens.prompt_ids))}
        prompts, rest = left_padded(list(number)), [response[:-1] for response in tokens.response_ids]
        first, logits, cache = self._forward(prompts.ids_bl, prompts.mask_bl, prompts.position_bl, cached=True)
        states, scores = [first[:, -1:]], [None if logits is None else logits[:, -1:]]
        width, prompt_b = max(map(len, rest)), [number[prompt] for prompt in tokens.prompt_ids]
        if width:
            row_b = torch.tensor(prompt_b)
            cache.reorder_cache(row_b.to(self.core.device))
            assert prompts.mask_bl is not None
            behind = behind_prompts(rest, tokens.prompt_lengths, prompts.mask_bl[row_b])
            more, logits, _ = self._forward(behind.ids_bl, behind.mask_bl, behind.position_bl, cached=True, cache=cache)
            states.append(more)
            scores.append(logits)
        at_m = [
            prompt if t == 0 else len(number) + row * width + t - 1
            for row, (prompt, response) in enumerate(zip(prompt_b, tokens.response_ids, strict=True))
            for t in range(len(response))
        ]
        return self._readout(states, scores, torch.tensor(at_m, dtype=torch.long), tokens.targets())

    def _forward(
        self,
        ids_bl: torch.Tensor,
        mask_bl: torch.Tensor | None,
        position_bl: torch.Tensor | None,
        *,
        cached: bool,
        cache: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, Cache]:
        """Return the last hidden states, the logits if the head is not plain, and the cache."""
        device = self.core.device
        inputs: dict[str, object] = {"input_ids": ids_bl.to(device), "use_cache": cached}
        inputs["attention_mask"] = None if mask_bl is None else mask_bl.to(device)
        if position_bl is not None:
            inputs["position_ids"] = position_bl.to(device)
        if cache is not None:
            inputs[self._state] = cache
        if self.plain_head:
            out = getattr(self.core, self.core.base_model_prefix)(**inputs)
            return out.last_hidden_state, None, getattr(out, self._state, None)
        found = list[torch.Tensor]()
        head = output_layer(self.core)
        assert head is not None
        hook = head.register_forward_pre_hook(lambda _, read: found.append(read[0]))
        try:
            out = self.core(**inputs)
        finally:
            hook.remove()
        if found[0].shape[:2] != ids_bl.shape:
            raise InputError(
                f"The output layer of {type(self.core).__name__} reads {list(found[0].shape)} numbers of "
                f"{list(ids_bl.shape)} tokens",
                "there is one state for each token",
                "Take another model",
            )
        return found[0], out.logits, getattr(out, self._state, None)

    def _readout(
        self, states: list[torch.Tensor], scores: list[torch.Tensor | None], at_m: torch.Tensor, target_m: torch.Tensor
    ) -> Readout:
        at_m, target_m = at_m.to(self.core.device), target_m.to(self.core.device)
        hidden_md = torch.cat([x.flatten(0, 1) for x in states])[at_m]
        if self.plain_head:
            layer = output_layer(self.core)
            return Readout(hidden_md, target_m, None if layer is None else Head(layer.weight, layer.bias))
        logits_mv = torch.cat([x.flatten(0, 1) for x in scores if x is not None])[at_m]
        return Readout(hidden_md, target_m, None, logits_mv)


def pad_sequences(tokens: Tokens) -> PassLayout:
    """Arrange each row separately, padded on the right."""
    width = max(tokens.lengths)
    ids_bl, mask_bl = (torch.zeros(len(tokens), width, dtype=torch.long) for _ in range(2))
    at_m: list[int] = []
    for row, (prompt, response) in enumerate(zip(tokens.prompt_ids, tokens.response_ids, strict=True)):
        end = len(prompt) + len(response)
        ids_bl[row, :end] = torch.tensor(prompt + response)
        mask_bl[row, :end] = 1
        at_m += range(row * width + len(prompt) - 1, row * width + end - 1)
    return PassLayout(ids_bl, None, mask_bl, torch.tensor(at_m, dtype=torch.long))


def pack_sequences(tokens: Tokens) -> PassLayout:
    """Arrange sequences one after the other, by first fit, in rows as long as the longest sequence.

    The last token of a response predicts nothing and is left out. The rest of a row is filled with sequences of one
    token.
    """
    rows = [(prompt + response)[:-1] for prompt, response in zip(tokens.prompt_ids, tokens.response_ids, strict=True)]
    packs, width = bins(list(map(len, rows))), max(map(len, rows))
    ids, position = (np.zeros((len(packs), width), dtype=np.int64) for _ in range(2))
    start_b = np.zeros(len(rows), dtype=np.int64)
    for number, pack in enumerate(packs):
        at = 0
        for row in pack:
            end = at + len(rows[row])
            ids[number, at:end], position[number, at:end] = rows[row], np.arange(end - at)
            start_b[row], at = number * width + at, end
    before_b = (start_b + np.array(tokens.prompt_lengths) - 1).tolist()
    at_m = [first + t for first, count in zip(before_b, tokens.response_lengths, strict=True) for t in range(count)]
    return PassLayout(torch.from_numpy(ids), torch.from_numpy(position), None, torch.tensor(at_m, dtype=torch.long))


def left_padded(prompts: list[tuple[int, ...]]) -> PassLayout:
    """Arrange prompts padded on the left, so that the state of each prompt's last token is in the last column."""
    width = max(map(len, prompts))
    ids_nl = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    mask_nl = (torch.arange(width) >= torch.tensor([[width - len(p)] for p in prompts])).long()
    return PassLayout(ids_nl, (mask_nl.cumsum(-1) - 1).clamp(min=0), mask_nl, torch.empty(0, dtype=torch.long))


def behind_prompts(rows: list[tuple[int, ...]], prompt_b: tuple[int, ...], seen_bp: torch.Tensor) -> PassLayout:
    """Arrange responses, padded on the right, after the keys of their prompts, of which `seen_bp` are real."""
    width = max(map(len, rows))
    ids_bl = torch.tensor([list(row) + [0] * (width - len(row)) for row in rows])
    position_bl = torch.tensor(prompt_b)[:, None] + torch.arange(width)
    real_bl = (torch.arange(width) < torch.tensor([[len(row)] for row in rows])).long()
    return PassLayout(ids_bl, position_bl, torch.cat([seen_bp, real_bl], dim=1), torch.empty(0, dtype=torch.long))
