"""The loop of the local decoder: requests with equal settings are decoded together, token by token.

Only the samplers of this process call it (`grouprl.rollout.local.sampler`,
`grouprl.orchestrator.asynchronous.resumable_sampling`); everything else goes through a sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from grouprl.core.errors import InputError
from grouprl.core.spans import spanned
from grouprl.policy.language.blended_policy import BlendedPolicy
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.logprobs import log_softmax_of
from grouprl.protocols import Request
from grouprl.rollout.local.blended_decoder import BlendedDecoder, arithmetic, geometric
from grouprl.rollout.local.decoder_protocol import Decoder, Giving
from grouprl.rollout.local.grammars import Constraints
from grouprl.rollout.local.lean_decoder import LeanDecoder
from grouprl.rollout.local.shared_prefix_rows import Branches
from grouprl.rollout.local.stopping import StopTexts
from grouprl.rollout.local.token_sampling import keep_min_p, keep_top_k, keep_top_p, sample, uniforms
from grouprl.rollout.local.turn_cache import Leaving, TurnCache, leave
from grouprl.rollout.local.unpadded_decoder import ByForward, decoder_of

COMPACT_BELOW = 0.75
"""Share of unfinished rows at or below which finished rows are removed: moving a cache costs about as much as a
step.
"""
Tokens = tuple[int, ...]
Pause = Callable[[Sequence[int]], bool]
"""Function that is called after each step with the numbers of the unfinished requests, and says whether to stop with
the tokens sampled so far.
"""


@dataclass(frozen=True)
class Written:
    """B completions; T is the length of the longest one. Tensors are on the CPU.

    Attributes:
        ids: tokens of each row, with the end token where one was sampled.
        logp_bt: log-prob of each token at the sampling temperature, before top-k and top-p; 0 beyond the end.
        entropy_bt: entropy in nats of the distribution each token was sampled from (same temperature); 0 beyond the
        end.
        truncated_b: True where no end token or stop sequence was sampled within the budget, or before the pause.
    """

    ids: tuple[Tokens, ...]
    logp_bt: torch.Tensor
    entropy_bt: torch.Tensor
    truncated_b: torch.Tensor


def decode(
    policy: CausalPolicy,
    requests: Sequence[Request[Tokens]],
    *,
    rows_at_once: int | None = None,
    cache: TurnCache | None = None,
    pause: Pause | None = None,
) -> Written:
    """Sample the completions that `requests` ask for, which are `alike`.

    A completion depends on its request and the policy; other rows, their number and their order have no effect (except
    for the rounding of matrix products, about 1e-7 in a log-prob).

    Args:
        policy: the policy to sample from.
        requests: B requests whose settings are equal except for temperature, budget, seed, sampled and name.
        rows_at_once: largest number of completions sampled at the same time; bounds the memory of the cache.
        cache: keys and values of earlier turns: cached beginnings of prompts are not read again, and the tokens sampled
            now are cached for the next turn.
        pause: function that can end the call after a step; unfinished completions are returned truncated.

    Raises:
        InputError: an empty prompt, or more tokens than the model has positions.
    """
    rows, longest = [request.prompt for request in requests], max(request.budget for request in requests)
    _check_rows(requests, policy.max_positions)
    writer = _Writer(requests, policy)
    width = rows_at_once or len(rows)
    for start in range(0, len(rows), width):
        part = slice(start, start + width)
        own = requests[part]
        uniform_rt = uniforms([request.seed for request in own], longest, [request.sampled for request in own])
        decoder = make_decoder(policy)
        keeping = cache if isinstance(decoder, LeanDecoder) or decoder.keeps else None
        names = [request.name for request in own]
        if keeping is not None:
            decoder.past, writer.leaving = keeping.past(names, rows[part]), []
        repeated = len(set(rows[part])) < len(rows[part])
        writing = Branches(decoder) if repeated and isinstance(decoder, LeanDecoder) else decoder
        writer.write(writing, rows[part], uniform_rt, start, pause)
        if keeping is not None and writer.leaving is not None:
            all_names = [request.name for request in requests]
            keeping.keep(all_names, writer.leaving, [(*a, *b) for a, b in zip(rows, writer.written().ids, strict=True)])
    return writer.written()


def alike(request: Request[Tokens]) -> tuple[object, ...]:
    """Return a key of the settings that requests to one policy must share to be decoded together."""
    cuts = request.top_p, request.top_k, request.min_p
    return request.greedy, *cuts, request.stop, request.stop_texts, request.entropy_scaling


@spanned("prefill")
def make_decoder(policy: CausalPolicy | BlendedPolicy) -> ByForward | LeanDecoder | BlendedDecoder:
    """Return a decoder of the policy with its weights as they are now."""
    if isinstance(policy, BlendedPolicy):
        share = policy.share
        mix = geometric(share) if policy.mean == "geometric" else arithmetic(share, policy.first.temperature)
        return BlendedDecoder(make_decoder(policy.first), make_decoder(policy.second), mix)
    return decoder_of(policy.model) if policy.lean is None else LeanDecoder(policy.lean)


class _Writer:
    """The completions sampled so far, [budget, B], and the loop that samples them.

    Rows that have ended may be decoded further until they are removed; tokens after an end are cleared at the end.
    """

    def __init__(self, requests: Sequence[Request[Tokens]], policy: CausalPolicy) -> None:
        budgets = [request.budget for request in requests]
        temperature = [float(request.temperature) for request in requests]
        shape, device, dtype = (max(budgets), len(requests)), policy.device, policy.score_dtype
        self.settings, self.device, self.budget = requests[0], device, shape[0]
        self.token_tb = torch.zeros(shape, dtype=torch.long, device=device)
        self.logp_tb = torch.zeros(shape, dtype=dtype, device=device)
        self.entropy_tb = torch.zeros_like(self.logp_tb)
        self.ended_tb = torch.zeros(shape, dtype=torch.bool, device=device)
        """True where a row ended by an end token or a stop sequence."""
        self.length_b = torch.tensor(budgets, device=device)
        self.bounded = min(budgets) < shape[0]
        self.temperature = (
            temperature[0] if len(set(temperature)) == 1 else torch.tensor(temperature, dtype=dtype, device=device)
        )
        """Temperature: one number if it is the same for all rows, else [B]."""
        self.eos = torch.tensor(policy.eos_ids, device=device)
        texts = self.settings.stop_texts
        self.stop_texts = StopTexts(policy, texts) if texts else None
        held = any(request.grammar is not None for request in requests)
        self.constraints = Constraints(policy, requests) if held else None
        room, longest = policy.max_positions, max(len(request.prompt) for request in requests)
        self.tight = room is not None and longest + self.budget > room
        """True if a row that is decoded beyond its own end could leave the model's positions."""
        self.leaving: list[Leaving] | None = None
        """Keys and values of removed rows; None if they are not needed."""

    @spanned("decode: other")
    @torch.inference_mode()
    def write(
        self,
        decoder: Decoder,
        prompts: Sequence[tuple[int, ...]],
        uniform: np.ndarray,
        offset: int,
        pause: Pause | None,
    ) -> None:
        """Sample the rows `offset`, `offset + 1`, ..., which begin with `prompts`."""
        budget = self.budget
        # A group's prompt is read once; its rows begin with copies of the same keys and values.
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        uniform_tr = torch.from_numpy(np.ascontiguousarray(uniform.T)).to(self.device)
        row_r = torch.arange(offset, offset + len(prompts), device=self.device)
        live_r = torch.ones(len(prompts), dtype=torch.bool, device=self.device)
        logits_rv = decoder.start(list(distinct), [distinct[p] for p in prompts], budget)
        for t in range(budget):
            token_r = self._choose(logits_rv, uniform_tr[t], row_r, t)
            live_r = self._going_on(token_r, row_r, live_r, t)
            left = int(live_r.sum())
            if t + 1 == budget or left == 0:
                self._leave(decoder, torch.ones_like(live_r), row_r, prompts, offset)
                return
            if pause is not None and pause(row_r[live_r].tolist()):
                self.length_b[row_r[live_r]] = t + 1
                return
            if left <= COMPACT_BELOW * len(live_r) or (self.tight and left < len(live_r)):
                index_n = live_r.nonzero()[:, 0]
                self._leave(decoder, ~live_r, row_r, prompts, offset)
                decoder.keep(index_n)
                row_r, live_r, token_r = (x[index_n] for x in (row_r, live_r, token_r))
                uniform_tr = uniform_tr[:, index_n]
            # The tokens of ended rows do not matter: they repeat the same token, so that they do not diverge from other
            # rows.
            logits_rv = decoder.step(token_r.masked_fill(~live_r, 0))

    def _leave(
        self,
        decoder: Decoder,
        gone_r: torch.Tensor,
        row_r: torch.Tensor,
        prompts: Sequence[tuple[int, ...]],
        offset: int,
    ) -> None:
        """Copy the keys and values of the rows `gone_r`, if they are needed."""
        if self.leaving is not None:
            index_n = gone_r.nonzero()[:, 0]
            rows = row_r[index_n].tolist()
            self.leaving.append(
                leave(cast("Giving", decoder), index_n, rows, [len(prompts[row - offset]) for row in rows])
            )

    @spanned("sampling")
    def _choose(self, logits_rv: torch.Tensor, uniform_r: torch.Tensor, row_r: torch.Tensor, t: int) -> torch.Tensor:
        """Sample each row's token and store it."""
        s = self.settings
        if self.constraints is not None:
            logits_rv = self.constraints.mask(logits_rv, row_r)
        logp_rv = self._log_softmax(logits_rv, row_r, None)
        p_rv = logp_rv.exp()
        # Where a grammar forbids a token its log-prob is -inf, and 0 * -inf is not a number.
        surprise_rv = logp_rv if self.constraints is None else logp_rv.clamp_min(torch.finfo(logp_rv.dtype).min)
        entropy_r = (p_rv * surprise_rv).sum(-1).neg_()
        if s.entropy_scaling is not None:
            logp_rv = self._log_softmax(logits_rv, row_r, s.entropy_scaling.factors(entropy_r))
            p_rv = logp_rv.exp()
        if s.top_k or s.top_p < 1 or s.min_p:
            p_rv = keep_min_p(keep_top_p(keep_top_k(logp_rv, s.top_k), s.top_p), s.min_p).exp()
        token_r = logp_rv.argmax(-1) if s.greedy else sample(p_rv, uniform_r)
        if self.constraints is not None:
            self.constraints.take(token_r, row_r)
        self.token_tb[t].index_copy_(0, row_r, token_r)
        self.logp_tb[t].index_copy_(0, row_r, logp_rv.gather(1, token_r[:, None])[:, 0])
        self.entropy_tb[t].index_copy_(0, row_r, entropy_r)
        return token_r

    def _log_softmax(self, logits_rv: torch.Tensor, row_r: torch.Tensor, factor_r: torch.Tensor | None) -> torch.Tensor:
        """Return log-probs [R,V] at each row's temperature, times `factor_r` where given."""
        if isinstance(self.temperature, float | int) and factor_r is None:
            return log_softmax_of(logits_rv, self.temperature)
        temperature = self.temperature if isinstance(self.temperature, float | int) else self.temperature[row_r, None]
        return log_softmax_of(logits_rv / (temperature if factor_r is None else temperature * factor_r[:, None]), 1.0)

    @spanned("sampling")
    def _going_on(self, token_r: torch.Tensor, row_r: torch.Tensor, live_r: torch.Tensor, t: int) -> torch.Tensor:
        """Note which running rows end with this token; return which rows continue."""
        done_r = (token_r[:, None] == self.eos).any(1)
        for sequence in self.settings.stop:
            if t + 1 >= len(sequence):
                # Sampled tokens alone: a stop sequence does not begin in the prompt.
                tail_tr = self.token_tb[t + 1 - len(sequence) : t + 1, row_r]
                done_r |= (tail_tr == torch.tensor(sequence, device=self.device)[:, None]).all(0)
        if self.stop_texts is not None:
            done_r |= self.stop_texts.ended(self.token_tb, row_r, t)
        ended_r = done_r & live_r
        self.ended_tb[t].index_copy_(0, row_r, ended_r)
        going_r = live_r ^ ended_r
        return going_r & (self.length_b[row_r] > t + 1) if self.bounded else going_r

    @spanned("decode: other")
    def written(self) -> Written:
        """Return the completions, truncated to their lengths."""
        ended_b = self.ended_tb.any(0)
        length_b = torch.where(ended_b, self.ended_tb.int().argmax(0) + 1, self.length_b)
        lengths = length_b.tolist()
        longest = max(lengths)
        ids = tuple(tuple(row[:n]) for row, n in zip(self.token_tb.T.tolist(), lengths, strict=True))
        beyond_tb = torch.arange(longest, device=self.device)[:, None] >= length_b
        logp_bt, entropy_bt = (
            x[:longest].masked_fill(beyond_tb, 0.0).T.contiguous().cpu() for x in (self.logp_tb, self.entropy_tb)
        )
        return Written(ids, logp_bt, entropy_bt, ~ended_b.cpu())


def _check_rows(requests: Sequence[Request[Tokens]], positions: int | None) -> None:
    for number, request in enumerate(requests):
        count, budget = len(request.prompt), request.budget
        if not count:
            raise InputError(f"Prompt {number} has no tokens", "A prompt needs at least one", "Begin it with bos")
        if positions is not None and count + budget > positions:
            raise InputError(
                f"A prompt of {count} tokens and {budget} new ones",
                f"The model has room for {positions} positions",
                "Lower max_new_tokens, shorten the prompts, or use a model with more positions",
            )
