"""Drawing completions from a policy, with the log-prob of every token under the distribution it was drawn from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import InputError
from ..policy.causal_lm import CausalPolicy
from ..policy.logprobs import log_softmax_of
from ..policy.tokens import Tokens
from ..protocols import PolicyInputs
from .branches import Branches
from .choose import draw, keep_top_k, keep_top_p, uniforms
from .decoder import Giving
from .kept import KeptTurns, Leaving, leave
from .lean_decoder import LeanDecoder
from .stopping import StopTexts
from .transformers_decoder import TransformersDecoder

COMPACT_BELOW = 0.75
"""Finished rows leave once no more than this share of the rows goes on: moving a cache costs about a step."""
Adapt = Callable[[torch.Tensor], torch.Tensor]
"""Entropies [R] of the next tokens at the sampling temperature -> factors [R] of that temperature."""
Pause = Callable[[], bool]
"""Asked after each step: whether to stop here, with what has been written so far."""
Progress = Callable[[int, int], None]
"""Called with (positions written, `max_new_tokens`) after each step."""


@dataclass(frozen=True)
class Rollout:
    """B completions, groups of one prompt next to each other; T is the longest completion. Tensors lie on the CPU.

    Attributes:
        prompt_ids: prompt of each row.
        response_ids: completion of each row, with the end token where one was drawn.
        logp_bt: log-prob of each token at the sampling temperature, before top-k and top-p; 0 beyond the end.
        entropy_bt: entropy in nats of the distribution each token was drawn from (same temperature); 0 beyond the end.
        truncated_b: True where neither an end token nor a stop sequence came within the budget.
    """

    prompt_ids: tuple[tuple[int, ...], ...]
    response_ids: tuple[tuple[int, ...], ...]
    logp_bt: torch.Tensor
    entropy_bt: torch.Tensor
    truncated_b: torch.Tensor
    inputs: PolicyInputs | None = None
    """What a policy scores the rows from where that is not token ids; ids then number the actions."""

    @property
    def tokens(self) -> Tokens:
        """The rows as a policy scores them."""
        return Tokens(self.prompt_ids, self.response_ids)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and when a completion ends."""

    max_new_tokens: int
    temperature: float
    greedy: bool
    top_p: float
    top_k: int
    eos_ids: tuple[int, ...]
    stop: tuple[tuple[int, ...], ...]
    adapt: Adapt | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(
                f"max_new_tokens={self.max_new_tokens}", "A completion has at least one token", "Give 1 or more"
            )
        if not self.temperature > 0:
            raise InputError(
                f"temperature={self.temperature}", "It is positive", "For the most probable token use greedy"
            )
        if not 0 < self.top_p <= 1:
            raise InputError(
                f"top_p={self.top_p}", "It is a share of the probability, 0 < top_p <= 1", "1 keeps everything"
            )
        if self.top_k < 0:
            raise InputError(f"top_k={self.top_k}", "It is a number of tokens", "0 keeps everything")
        if not all(self.stop):
            raise InputError("An empty stop sequence", "It would end every completion at once", "Leave it out")


def generate(
    policy: CausalPolicy,
    prompts: Sequence[Sequence[int]],
    *,
    n: int,
    max_new_tokens: int,
    temperature: float | Sequence[float] = 1.0,
    seeds: Sequence[int],
    greedy: bool = False,
    top_p: float = 1.0,
    top_k: int = 0,
    stop: Sequence[Sequence[int]] = (),
    stop_texts: Sequence[str] = (),
    budgets: Sequence[int] | None = None,
    adapt: Adapt | None = None,
    rows_at_once: int | None = None,
    progress: Progress | None = None,
    drawn: Sequence[int] = (),
    kept: KeptTurns | None = None,
    names: Sequence[Hashable] = (),
    pause: Pause | None = None,
) -> Rollout:
    """Draw `n` completions for each prompt.

    A completion depends on its prompt, its seed and the policy; other rows, their number and their order do not
    matter (but for the rounding of matrix products, about 1e-7 in a log-prob).

    Args:
        policy: the policy to draw from.
        prompts: token ids per prompt.
        n: completions per prompt.
        max_new_tokens: tokens per completion at most, the end token included.
        temperature: logits are divided by it; one for all, or one per completion.
        seeds: one per completion, B = len(prompts) * n, in row order. To go on with a sequence draw a new seed.
        greedy: take the most probable token; seeds have no effect.
        top_p: nucleus sampling.
        top_k: sampling from the k most probable tokens; 0 for all.
        stop: token sequences that end a completion, beside the policy's end tokens. They stay in it.
        stop_texts: texts that end a completion with the token that completes them, which stays in it whole.
        budgets: tokens at most per completion, [B], where they are fewer than `max_new_tokens`.
        adapt: changes the temperature token by token, given the entropies at the temperature asked for. Log-probs are
            those of the distribution drawn from, entropies those at the temperature asked for.
        rows_at_once: most completions written at the same time; bounds the memory of the cache.
        progress: called after each step.
        drawn: how many tokens at the end of each prompt were drawn with its seed before, [B]; the seed's random
            numbers go on behind them. So a completion that was paused ends as if it had not been.
        kept: keys and values of earlier turns: what is known of the beginnings of prompts is not read again, and what
            is written now is known in the next turn.
        names: by which `kept` knows the rows, one per completion.
        pause: ends the call after a step; the completions that were not finished come back as they are, truncated.

    Raises:
        InputError: wrong number of seeds, an empty prompt, a setting out of range, no room in the model.
    """
    heat = [temperature] if isinstance(temperature, float | int) else list(temperature)
    stops = tuple(map(tuple, stop))
    sampling = Sampling(max_new_tokens, min(heat, default=1.0), greedy, top_p, top_k, policy.eos_ids, stops, adapt)
    asked = list(prompts)
    known = {id(prompt): tuple(map(int, prompt)) for prompt in asked}  # the same one often stands there many times
    rows = [known[id(prompt)] for prompt in asked for _ in range(n)]
    _check_rows(rows, seeds, n, policy.max_positions, max_new_tokens)
    _check_each("temperature", heat if len(heat) != 1 else [], len(rows), 0.0, torch.inf)
    _check_each("budgets", budgets or [], len(rows), 1, max_new_tokens)
    heat_b, budget_b = heat * (len(rows) if len(heat) == 1 else 1), budgets or [max_new_tokens] * len(rows)
    writer = _Writer(len(rows), sampling, policy.device, policy.score_dtype, heat_b, budget_b)
    writer.stop_texts = StopTexts(policy, stop_texts) if stop_texts else None
    width = rows_at_once or len(rows)
    for start in range(0, len(rows), width):
        part = slice(start, start + width)
        uniform_rt = uniforms(seeds[part], max_new_tokens, drawn[part])
        decoder = make_decoder(policy)
        keeping = kept if isinstance(decoder, LeanDecoder) or decoder.keeps else None
        if keeping is not None:
            decoder.past, writer.leaving = keeping.past(names[part], rows[part]), []
        repeated = len(set(rows[part])) < len(rows[part])
        writing = Branches(decoder) if repeated and isinstance(decoder, LeanDecoder) else decoder
        writer.write(writing, rows[part], uniform_rt, start, progress, pause)
        if keeping is not None and writer.leaving is not None:
            drawn_rows = writer.rollout(rows).response_ids
            keeping.keep(names, writer.leaving, [(*a, *b) for a, b in zip(rows, drawn_rows, strict=True)])
    return writer.rollout(rows)


def make_decoder(policy: CausalPolicy) -> TransformersDecoder | LeanDecoder:
    """Return a decoder of the policy with its weights as they are now."""
    return TransformersDecoder(policy.model) if policy.lean is None else LeanDecoder(policy.lean)


class _Writer:
    """The completions written so far, [max_new_tokens, B], and the loop that writes them.

    Rows that have ended may be written on until they leave; what lies behind an end is cleared at last.
    """

    def __init__(
        self,
        rows: int,
        sampling: Sampling,
        device: torch.device,
        dtype: torch.dtype,
        heat: Sequence[float],
        budgets: Sequence[int],
    ) -> None:
        shape = (sampling.max_new_tokens, rows)
        self.sampling, self.device = sampling, device
        self.token_tb = torch.zeros(shape, dtype=torch.long, device=device)
        self.logp_tb = torch.zeros(shape, dtype=dtype, device=device)
        self.entropy_tb = torch.zeros_like(self.logp_tb)
        self.ended_tb = torch.zeros(shape, dtype=torch.bool, device=device)
        """True where a live row ended by an end token or a stop sequence."""
        self.length_b = torch.tensor(budgets, device=device)
        self.bounded = min(budgets, default=shape[0]) < shape[0]
        self.heat = heat[0] if len(set(heat)) == 1 else torch.tensor(heat, dtype=dtype, device=device)
        """Temperature: one number where it is the same for all rows, else [B]."""
        self.eos = torch.tensor(sampling.eos_ids, device=device)
        self.stop_texts: StopTexts | None = None
        self.leaving: list[Leaving] | None = None
        """What rows leave behind in the decoder; None where nobody wants it."""

    @torch.inference_mode()
    def write(
        self,
        decoder: Giving,
        prompts: Sequence[tuple[int, ...]],
        uniform: np.ndarray,
        offset: int,
        progress: Progress | None,
        pause: Pause | None,
    ) -> None:
        """Write the rows `offset`, `offset + 1`, ..., which begin with `prompts`."""
        budget = self.sampling.max_new_tokens
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        uniform_tr = torch.from_numpy(np.ascontiguousarray(uniform.T)).to(self.device)
        row_r = torch.arange(offset, offset + len(prompts), device=self.device)
        live_r = torch.ones(len(prompts), dtype=torch.bool, device=self.device)
        logits_rv = decoder.start(list(distinct), [distinct[p] for p in prompts], budget)
        for t in range(budget):
            token_r = self._choose(logits_rv, uniform_tr[t], row_r, t)
            live_r = self._going_on(token_r, row_r, live_r, t)
            if progress is not None:
                progress(t + 1, budget)
            left = int(live_r.sum())
            if t + 1 == budget or left == 0:
                self._leave(decoder, torch.ones_like(live_r), row_r, prompts, offset)
                return
            if pause is not None and pause():
                self.length_b[row_r[live_r]] = t + 1
                return
            if left <= COMPACT_BELOW * len(live_r):
                index_n = live_r.nonzero()[:, 0]
                self._leave(decoder, ~live_r, row_r, prompts, offset)
                decoder.keep(index_n)
                row_r, live_r, token_r = (x[index_n] for x in (row_r, live_r, token_r))
                uniform_tr = uniform_tr[:, index_n]
            # What ended rows go on with is nothing to anybody: the same, so that they part from no other row.
            logits_rv = decoder.step(token_r.masked_fill(~live_r, 0))

    def _leave(
        self,
        decoder: Giving,
        gone_r: torch.Tensor,
        row_r: torch.Tensor,
        prompts: Sequence[tuple[int, ...]],
        offset: int,
    ) -> None:
        """Take what the rows of `gone_r` leave behind, where it is wanted."""
        if self.leaving is not None:
            index_n = gone_r.nonzero()[:, 0]
            rows = row_r[index_n].tolist()
            self.leaving.append(leave(decoder, index_n, rows, [len(prompts[row - offset]) for row in rows]))

    def _choose(self, logits_rv: torch.Tensor, uniform_r: torch.Tensor, row_r: torch.Tensor, t: int) -> torch.Tensor:
        """Choose each row's token and write it down."""
        s = self.sampling
        logp_rv = self._log_softmax(logits_rv, row_r, None)
        p_rv = logp_rv.exp()
        entropy_r = (p_rv * logp_rv).sum(-1).neg_()
        if s.adapt is not None:
            logp_rv = self._log_softmax(logits_rv, row_r, s.adapt(entropy_r))
            p_rv = logp_rv.exp()
        if s.top_k or s.top_p < 1:
            p_rv = keep_top_p(keep_top_k(logp_rv, s.top_k), s.top_p).exp()
        token_r = logp_rv.argmax(-1) if s.greedy else draw(p_rv, uniform_r)
        self.token_tb[t].index_copy_(0, row_r, token_r)
        self.logp_tb[t].index_copy_(0, row_r, logp_rv.gather(1, token_r[:, None])[:, 0])
        self.entropy_tb[t].index_copy_(0, row_r, entropy_r)
        return token_r

    def _log_softmax(self, logits_rv: torch.Tensor, row_r: torch.Tensor, factor_r: torch.Tensor | None) -> torch.Tensor:
        """Return log-probs [R,V] at each row's temperature, times `factor_r` where given."""
        if isinstance(self.heat, float | int) and factor_r is None:
            return log_softmax_of(logits_rv, self.heat)
        heat = self.heat if isinstance(self.heat, float | int) else self.heat[row_r, None]
        return log_softmax_of(logits_rv / (heat if factor_r is None else heat * factor_r[:, None]), 1.0)

    def _going_on(self, token_r: torch.Tensor, row_r: torch.Tensor, live_r: torch.Tensor, t: int) -> torch.Tensor:
        """Note which live rows end with this token; return which go on."""
        done_r = (token_r[:, None] == self.eos).any(1)
        for sequence in self.sampling.stop:
            if t + 1 >= len(sequence):
                tail_tr = self.token_tb[t + 1 - len(sequence) : t + 1, row_r]
                done_r |= (tail_tr == torch.tensor(sequence, device=self.device)[:, None]).all(0)
        if self.stop_texts is not None:
            done_r |= self.stop_texts.ended(self.token_tb, row_r, t)
        ended_r = done_r & live_r
        self.ended_tb[t].index_copy_(0, row_r, ended_r)
        going_r = live_r ^ ended_r
        return going_r & (self.length_b[row_r] > t + 1) if self.bounded else going_r

    def rollout(self, prompts: Sequence[tuple[int, ...]]) -> Rollout:
        """Return the completions, cut to their lengths."""
        ended_b = self.ended_tb.any(0)
        length_b = torch.where(ended_b, self.ended_tb.int().argmax(0) + 1, self.length_b)
        lengths = length_b.tolist()
        longest = max(lengths, default=0)
        responses = tuple(tuple(row[:n]) for row, n in zip(self.token_tb.T.tolist(), lengths, strict=True))
        beyond_tb = torch.arange(longest, device=self.device)[:, None] >= length_b
        logp_bt, entropy_bt = (
            x[:longest].masked_fill(beyond_tb, 0.0).T.contiguous().cpu() for x in (self.logp_tb, self.entropy_tb)
        )
        return Rollout(tuple(prompts), responses, logp_bt, entropy_bt, ~ended_b.cpu())


def _check_each(name: str, values: Sequence[float], rows: int, low: float, high: float) -> None:
    if values and len(values) != rows:
        raise InputError(f"{len(values)} {name} for {rows} completions", "One per completion", f"Give {rows}")
    for value in values:
        if not low <= value <= high:
            raise InputError(f"{name} holds {value}", f"It lies between {low} and {high}")


def _check_rows(
    rows: Sequence[tuple[int, ...]], seeds: Sequence[int], n: int, positions: int | None, max_new_tokens: int
) -> None:
    if not rows and n > 0:
        raise InputError("No prompts", "There must be something to answer", "Give at least one prompt")
    if n < 1:
        raise InputError(f"n={n}", "Each prompt gets at least one completion", "Give 1 or more")
    if len(seeds) != len(rows):
        raise InputError(
            f"{len(seeds)} seeds for {len(rows)} completions", "One seed per completion", "Give prompts * n seeds"
        )
    if not all(rows):
        raise InputError(
            f"Prompt {rows.index(()) // n} has no tokens", "A prompt needs at least one", "Begin it with bos"
        )
    longest = max(map(len, rows), default=0)
    if positions is not None and longest + max_new_tokens > positions:
        raise InputError(
            f"A prompt of {longest} tokens and {max_new_tokens} new ones",
            f"The model has room for {positions} positions",
            "Lower max_new_tokens, shorten the prompts, or use a model with more positions",
        )
