"""Decoding without padding, for models whose state of earlier tokens does not take any; and which models those are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

import torch

from grouprl.core.errors import InputError
from grouprl.policy.language.model_checks import positions_of
from grouprl.policy.lora import base_model
from grouprl.rollout.local.transformers_decoder import TransformersDecoder

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from grouprl.rollout.local.turn_cache import Past

log = logging.getLogger(__name__)
PROMPTS, ROWS, KEPT = ((3, 4, 5, 6, 8, 5, 9), (6, 7)), (0, 0, 1, 1), [3, 0, 2]
NEXT = ((4, 5, 3, 6), (3, 8, 4, 7), (9, 3, 6, 5))
"""Prompts with which a way of decoding is tested before it is used, the prompt of each row, the rows that are kept for
the last step, and the tokens that rows get step by step. One prompt is padded if both are read together.
"""
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}
HALF_CLOSE, HALF_WRONG, NEARER = 0.05, 0.5, 2
"""Largest gap of the probe's logits (`_gap`). In half precision, rounding alone may send a token to another expert: up
to `HALF_WRONG`, decoding without padding is chosen if its gap is `NEARER` times smaller, else decoding with it.
"""
FAILURES = (TypeError, ValueError, RuntimeError, NotImplementedError, AttributeError, LookupError, AssertionError)
"""Errors of models that cannot be decoded in some way."""


class UnpaddedDecoder:
    """Rows whose prompts are of one length are decoded together, those of each length apart."""

    keeps = False
    past: Past | None = None
    """Keys and values are not kept for later turns, so that nothing is known of prompts."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._parts: list[tuple[TransformersDecoder, torch.Tensor]] = []
        """The decoder of each length, and the numbers of its rows."""

    def start(self, prompts: Sequence[Sequence[int]], prompt_r: Sequence[int], room: int) -> torch.Tensor:
        """Read the prompts of each length."""
        length_r = torch.tensor([len(prompts[i]) for i in prompt_r])
        apart = [(length_r == length).nonzero()[:, 0] for length in torch.unique(length_r)]
        self._parts = [(TransformersDecoder(self.model), rows.to(self.model.device)) for rows in apart]
        found = []
        for decoder, rows in self._parts:
            own = [prompt_r[r] for r in rows.tolist()]
            number = {prompt: n for n, prompt in enumerate(dict.fromkeys(own))}
            found.append(decoder.start([prompts[i] for i in number], [number[i] for i in own], room))
        return self._joined(found)

    def step(self, token_r: torch.Tensor) -> torch.Tensor:
        """Append one token to each row."""
        return self._joined([decoder.step(token_r[rows]) for decoder, rows in self._parts])

    def keep(self, index_n: torch.Tensor) -> None:
        """Continue with the rows `index_n`, in this order."""
        kept = []
        for decoder, rows in self._parts:
            at_n, own_n = (index_n[:, None] == rows).nonzero(as_tuple=True)
            if len(at_n):
                decoder.keep(own_n)
                kept.append((decoder, at_n))
        self._parts = kept

    def _joined(self, found: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the logits of the parts in the order of the rows."""
        order = torch.cat([rows for _, rows in self._parts])
        return torch.cat(list(found))[torch.argsort(order)]


ByForward: TypeAlias = TransformersDecoder | UnpaddedDecoder
_KINDS: WeakKeyDictionary[nn.Module, type[ByForward]] = WeakKeyDictionary()


def decoder_of(model: PreTrainedModel) -> ByForward:
    """Return a decoder through a model's own forward pass: one that pads prompts if the model gives the same with it.

    Raises:
        InputError: the model gives other logits than in a pass over the whole sequence, padded or not.
    """
    core = base_model(model)
    if core not in _KINDS:
        _KINDS[core] = _kind_for(model)
    return _KINDS[core](model)


def _kind_for(model: PreTrainedModel) -> type[ByForward]:
    expected, name, gaps = _whole(model), type(base_model(model)).__name__, dict[type[ByForward], float]()
    told = ""
    for kind in (TransformersDecoder, UnpaddedDecoder):
        try:
            gaps[kind] = _gap(expected, _decoded(kind(model)))
        except FAILURES as error:
            told = f" ({error})"
            continue
        if gaps[kind] <= CLOSE.get(expected.dtype, HALF_CLOSE):
            return kind
    weights = {TransformersDecoder: 1, UnpaddedDecoder: NEARER}
    best = min(gaps, key=lambda kind: weights[kind] * gaps[kind], default=None)
    if best is not None and expected.dtype not in CLOSE and gaps[best] <= HALF_WRONG:
        log.warning("%s: in half precision, decoded logits are %.2g from those of a whole pass", name, gaps[best])
        return best
    raise InputError(
        f"{name} does not decode token by token{told}",
        "the logits behind its kept state must be those of a pass over the whole sequence",
        "Take another model, or sample by a server (sampling.engine)",
    )


@torch.inference_mode()
def _whole(model: PreTrainedModel) -> torch.Tensor:
    """Return the logits [N,V] of every row before the last step, and of the kept ones after it, by a pass over each
    row alone.
    """
    prompts, found = _prompts(model), []
    for row, prompt in enumerate(ROWS):
        ids = [*prompts[prompt], *(tokens[row] for tokens in NEXT)]
        found.append(model(input_ids=_ids(model, [ids]), use_cache=False).logits[0, len(prompts[prompt]) - 1 :])
    logits_rtv = torch.stack(found)
    return torch.cat([logits_rtv[:, :-1].flatten(0, 1), logits_rtv[KEPT, -1]])


@torch.inference_mode()
def _decoded(decoder: ByForward) -> torch.Tensor:
    """Return the same as `_whole`, decoded."""
    model = decoder.model
    found = [decoder.start([_ids(model, [each])[0].tolist() for each in _prompts(model)], ROWS, len(NEXT))]
    for tokens in NEXT[:-1]:
        found.append(decoder.step(_ids(model, [tokens])[0]))
    decoder.keep(torch.tensor(KEPT, device=model.device))
    last = decoder.step(_ids(model, [NEXT[-1]])[0][KEPT])
    return torch.cat([torch.stack(found, dim=1).flatten(0, 1), last])


def _prompts(model: PreTrainedModel) -> list[tuple[int, ...]]:
    """Return the probe's prompts, so short that the model has positions for the tokens that follow."""
    room = positions_of(model.config.get_text_config())
    return [prompt if room is None else prompt[: max(1, room - len(NEXT))] for prompt in PROMPTS]


def _ids(model: PreTrainedModel, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.tensor(rows, device=model.device) % model.config.get_text_config().vocab_size


def _gap(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Return the largest difference of logits [N,V], relative to the largest logit; in half precision, of all together,
    relative to their spread. Logits of tokens that the model rules out do not count.
    """
    open_nv = expected.abs() < torch.finfo(expected.dtype).max / 2
    one, two = (x.double()[open_nv] for x in (expected, found))
    if expected.dtype in CLOSE:
        return float((one - two).abs().max() / one.abs().max())
    return float((one - two).norm() / (one - one.mean()).norm())
