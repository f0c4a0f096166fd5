"""What a policy needs of a forward pass, and the generic one: any causal LM through transformers itself."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from .logprobs import entropy_of, log_softmax_of, token_logprobs
from .tokens import Tokens

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scores:
    """What a forward pass says about the M response tokens of its rows, row after row."""

    logp_m: torch.Tensor
    entropy_m: torch.Tensor | None
    hidden_md: torch.Tensor
    """Last hidden state (after the final norm) that predicted each token."""


class Engine(Protocol):
    """A way to run the model; all ways give the same numbers."""

    name: str
    shares_prompts: bool
    """Whether rows of one pass with the same prompt run it once."""

    def score(self, tokens: Tokens, *, temperature: float, entropy: bool) -> Scores:
        """Score every response token of `tokens`."""
        ...


class TransformersEngine:
    """The model's own forward pass: right for every architecture, padded to the longest row of a pass."""

    name = "transformers"
    shares_prompts = False

    def __init__(self, model: Any) -> None:
        self.model = model
        self.core = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.plain_head = head_is_plain(self.core)
        if not self.plain_head:
            log.warning(
                "%s changes its logits after the output layer: log-probabilities hold [tokens, vocabulary] at a time. "
                "Lower the token budget if memory runs out.",
                type(self.core).__name__,
            )

    def score(self, tokens: Tokens, *, temperature: float, entropy: bool) -> Scores:
        """Run whole sequences, right-padded, and score the response positions."""
        device = self.core.device
        ids_bl, mask_bl, at_m = (t.to(device) for t in pad_sequences(tokens))
        target_m = tokens.targets().to(device)
        if not self.plain_head:
            return self._score_logits(ids_bl, mask_bl, at_m, target_m, temperature, entropy)
        trunk = getattr(self.core, self.core.base_model_prefix)
        hidden_bld = trunk(input_ids=ids_bl, attention_mask=mask_bl, use_cache=False).last_hidden_state
        hidden_md = hidden_bld.flatten(0, 1)[at_m]
        head = self.core.get_output_embeddings()
        logp_m, entropy_m = token_logprobs(
            hidden_md, head.weight, head.bias, target_m, temperature=temperature, entropy=entropy
        )
        return Scores(logp_m, entropy_m, hidden_md)

    def _score_logits(
        self,
        ids_bl: torch.Tensor,
        mask_bl: torch.Tensor,
        at_m: torch.Tensor,
        target_m: torch.Tensor,
        temperature: float,
        entropy: bool,
    ) -> Scores:
        out = self.core(input_ids=ids_bl, attention_mask=mask_bl, use_cache=False, output_hidden_states=True)
        logp_mv = log_softmax_of(out.logits.flatten(0, 1)[at_m], temperature)
        logp_m = logp_mv.gather(1, target_m[:, None])[:, 0]
        return Scores(logp_m, entropy_of(logp_mv) if entropy else None, out.hidden_states[-1].flatten(0, 1)[at_m])


def pad_sequences(tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids [B,L] and mask [B,L], padded on the right, and the flat indices [M] that predict the responses."""
    width = max(tokens.lengths)
    ids_bl = torch.zeros(len(tokens), width, dtype=torch.long)
    mask_bl = torch.zeros(len(tokens), width, dtype=torch.long)
    at_m: list[int] = []
    for row, (prompt, response) in enumerate(zip(tokens.prompt_ids, tokens.response_ids, strict=True)):
        end = len(prompt) + len(response)
        ids_bl[row, :end] = torch.tensor(prompt + response)
        mask_bl[row, :end] = 1
        at_m += range(row * width + len(prompt) - 1, row * width + end - 1)
    return ids_bl, mask_bl, torch.tensor(at_m, dtype=torch.long)


def accepts(model: Any, argument: str) -> bool:
    """Tell whether the model's forward names `argument`."""
    return argument in inspect.signature(model.forward).parameters


@torch.no_grad()
def head_is_plain(model: Any) -> bool:
    """Tell, by running four tokens, whether logits are exactly `head(trunk(ids))` with a linear head.

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
