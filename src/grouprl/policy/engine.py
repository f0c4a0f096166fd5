"""The interface between a policy and a model's forward pass, and checks of a model before its first pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from grouprl.core.errors import InputError
from grouprl.core.outputs import CROSS, ENTROPY, LOG_PROB, parameter, stem
from grouprl.policy.devices import Precision
from grouprl.policy.logprobs import (
    TokenScores,
    chunks,
    entropy_of,
    log_softmax_of,
    softened,
    token_logprobs,
)
from grouprl.policy.passes import chunk_rows
from grouprl.policy.products import linear
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Head:
    """A linear output layer: logits are `hidden @ weight_vd.T + bias_v`."""

    weight_vd: torch.Tensor
    bias_v: torch.Tensor | None
    precision: Precision = "float32"
    """Precision of the product."""


@dataclass(frozen=True)
class Readout:
    """The result of a forward pass for the M response tokens of its rows, row after row: states, and what turns them
    into logits.

    Equal tokens after equal histories may share one of the N predictions.
    """

    hidden_nd: torch.Tensor
    """Last hidden state (after the final norm) of each prediction."""
    target_n: torch.Tensor
    """The tokens predicted."""
    head: Head | None
    """The output layer; None if the model changes its logits after it."""
    logits_nv: torch.Tensor | None = None
    """The model's own logits, if there is no plain `head`."""
    place_m: torch.Tensor | None = None
    """Index of each response token's prediction; None: each token has its own."""

    def each(self, found_n: torch.Tensor) -> torch.Tensor:
        """Return values of predictions, [N,…], as values of response tokens, [M,…]."""
        return found_n if self.place_m is None else found_n[self.place_m]

    @cached_property
    def hidden_md(self) -> torch.Tensor:
        """Last hidden state that predicted each response token."""
        return self.each(self.hidden_nd)

    @cached_property
    def target_m(self) -> torch.Tensor:
        """The response tokens."""
        return self.each(self.target_n)

    @property
    def own_states(self) -> torch.Tensor:
        """Last hidden states of the response tokens whose outputs this process computes: all of them."""
        return self.hidden_md

    @property
    def own_logits(self) -> torch.Tensor:
        """Raw logits of the same tokens, [M,V], where the model has no plain `head`."""
        return self.each(self._own_logits)

    def taught_by(self, teacher: Readout) -> Readout:
        """Return another model's readout of the tokens of `own_states`."""
        return teacher

    def joined(self, found_n: torch.Tensor) -> torch.Tensor:
        """Return outputs of `own_states` as outputs of all response tokens, [M]."""
        return found_n

    def score(self, names: Collection[str], *, temperature: float) -> dict[str, torch.Tensor]:
        """Return those of the outputs `names` that are computed from the distributions at `temperature`, [M] each.

        They are log-probs, entropies and cross-entropies; `cross@κ` is Σ_a softmax(z/κ)_a log π(a), the first factor
        held constant.

        Raises:
            InputError: cross-entropies at more than one κ.
        """
        crossed = [name for name in names if stem(name) == CROSS]
        if len(crossed) > 1:
            raise InputError(
                f"cross-entropies {' and '.join(crossed)}", "one pass computes them at one temperature", "Request one"
            )
        if not crossed and LOG_PROB not in names and ENTROPY not in names:
            return {}
        scores = self._score(temperature, ENTROPY in names, parameter(crossed[0]) if crossed else None)
        found = {LOG_PROB: scores.logp_m, ENTROPY: scores.entropy_m, **dict.fromkeys(crossed, scores.cross_m)}
        return {name: self.each(x) for name, x in found.items() if name in names and x is not None}

    def _score(self, temperature: float, entropy: bool, cross: float | None) -> TokenScores:
        if self.head is not None:
            weight_vd, bias_v = self.head.weight_vd, self.head.bias_v
            return token_logprobs(
                self.hidden_nd,
                weight_vd,
                bias_v,
                self.target_n,
                precision=self.head.precision,
                temperature=temperature,
                entropy=entropy,
                cross=cross,
            )
        logp_nv = log_softmax_of(self._own_logits, temperature)
        logp_n = logp_nv.gather(1, self.target_n[:, None])[:, 0]
        q_nv = None if cross is None else softened(self._own_logits, logp_nv, temperature, cross)
        cross_n = None if q_nv is None else (q_nv * logp_nv).sum(-1)
        return TokenScores(logp_n, entropy_of(logp_nv) if entropy else None, cross_n)

    def chunks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield slices of consecutive response tokens and their raw logits [C,V], as many at a time as fit the device's
        chunk.
        """
        rows = chunk_rows(self.hidden_nd.device.type, self.vocabulary)
        yield from ((part, self.logits(part)) for part in chunks(len(self.hidden_md), rows))

    @property
    def vocabulary(self) -> int:
        """Number of columns of the logits."""
        return self.head.weight_vd.shape[0] if self.head is not None else self._own_logits.shape[1]

    def logits(self, part: slice) -> torch.Tensor:
        """Return the raw logits [C,V] of some consecutive response tokens."""
        if self.head is None:
            return self.each(self._own_logits)[part]
        return linear(self.hidden_md[part], self.head.weight_vd, self.head.bias_v, self.head.precision)

    @property
    def _own_logits(self) -> torch.Tensor:
        assert self.logits_nv is not None
        return self.logits_nv


class ModelEngine(Protocol):
    """A way to run the model; all implementations give the same numbers."""

    name: str

    def split(self, tokens: Tokens, rows: Sequence[int], budget: int) -> list[list[int]]:
        """Divide `rows` into passes of at most `budget` tokens, with rows that can share work next to each other."""
        ...

    def read(self, tokens: Tokens) -> Readout:
        """Run the rows of `tokens` in one pass."""
        ...


class ChangedHead:
    """An engine whose output layer is converted before log-probs are computed with it."""

    def __init__(
        self, engine: ModelEngine, change: Callable[[Head], Head], *, dtype: torch.dtype | None = None
    ) -> None:
        """Wrap `engine`; hidden states are converted to `dtype` for the changed layer (None: left as they are)."""
        self._engine, self._change, self._dtype, self.name = engine, change, dtype, engine.name

    def split(self, tokens: Tokens, rows: Sequence[int], budget: int) -> list[list[int]]:
        """Divide `rows` into passes as the engine does."""
        return self._engine.split(tokens, rows, budget)

    def read(self, tokens: Tokens) -> Readout:
        """Run the rows of `tokens` in one pass."""
        read = self._engine.read(tokens)
        if read.head is None:
            return read
        hidden_nd = read.hidden_nd if self._dtype is None else read.hidden_nd.to(self._dtype)
        return replace(read, hidden_nd=hidden_nd, head=self._change(read.head))


def output_layer(model: PreTrainedModel) -> nn.Linear | None:
    """Return the model's output layer over tokens; None if it has none, as a model that scores texts."""
    found: nn.Linear | None = model.get_output_embeddings()
    return found


@torch.no_grad()
def head_is_plain(model: PreTrainedModel) -> bool:
    """Return whether logits are exactly `head(trunk(ids))` with a linear head, by running four tokens.

    False for models that cap or scale their logits; their log-probabilities cannot be computed from hidden
    states and the head's weight alone.
    """
    head, trunk = model.get_output_embeddings(), getattr(model, model.base_model_prefix, None)
    if type(head) is not nn.Linear or trunk is None or trunk is model:
        return False
    ids_bl = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    states: list[torch.Tensor] = []
    hook = head.register_forward_hook(lambda _module, inputs, output: states.extend((inputs[0], output)))
    try:
        logits = model(input_ids=ids_bl, use_cache=False).logits
    finally:
        hook.remove()
    hidden = trunk(input_ids=ids_bl, use_cache=False).last_hidden_state
    return len(states) == 2 and torch.equal(states[0], hidden) and torch.equal(states[1], logits)
