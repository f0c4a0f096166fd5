"""Sampling constrained by a grammar: before each token, tokens that the grammar does not allow are masked.

The remaining distribution is renormalised: log-probs and entropies are those of the distribution that was sampled from.
Grammars use llguidance (the extra `grammar`), which is loaded when the first grammar is used.
"""

from __future__ import annotations

import importlib.util
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch

from grouprl.core.errors import InputError, MissingExtra
from grouprl.protocols import Grammar, Request

if TYPE_CHECKING:
    from types import ModuleType

    from llguidance import LLMatcher
    from transformers import PreTrainedTokenizerBase

    from grouprl.records.token_policy import TokenPolicy

MOST_KEPT = 64
"""Number of compiled grammars that are kept for each tokenizer."""
_KNOWN: WeakKeyDictionary[object, dict[int, _Vocabulary]] = WeakKeyDictionary()
_lock = threading.Lock()


def can_constrain() -> bool:
    """Return whether the extra `grammar` is installed."""
    return importlib.util.find_spec("llguidance") is not None


def grammar_error(policy: TokenPolicy, lark: str) -> str:
    """Return why a grammar cannot be used with a policy; '' if it can. Raises MissingExtra if llguidance is not
    installed.
    """
    vocabulary = _vocabulary(policy, len(policy.tokenizer))
    return str(vocabulary.guidance.LLMatcher.validate_grammar(lark, vocabulary.tokens)).strip()


def single_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return special tokens, which text cannot spell, by their text with their ids."""
    special = set(tokenizer.all_special_ids)
    return {sign: i for sign, i in tokenizer.get_added_vocab().items() if i in special}


class Constraints:
    """The grammars of rows that have one; the state of each follows the tokens sampled for its row.

    Raises:
        MissingExtra: llguidance is not installed.
        InputError: a grammar that cannot be used, or previously sampled tokens that it does not allow.
    """

    def __init__(self, policy: TokenPolicy, requests: Sequence[Request[tuple[int, ...]]]) -> None:
        self._policy = policy
        self._open = {row: request for row, request in enumerate(requests) if request.grammar is not None}
        self._matchers: dict[int, LLMatcher] = {}

    def mask(self, logits_rv: torch.Tensor, row_r: torch.Tensor) -> torch.Tensor:
        """Return the logits [R,V] of rows, -inf for the tokens that their grammars do not allow now."""
        places = [(place, row) for place, row in enumerate(row_r.tolist()) if row in self._open]
        if not places:
            return logits_rv
        width = logits_rv.shape[1]
        allowed_nv = np.stack([self._allowed(row, width) for _, row in places])
        index_n = torch.tensor([place for place, _ in places], device=logits_rv.device)
        forbidden_nv = torch.from_numpy(~allowed_nv).to(logits_rv.device)
        return logits_rv.index_copy(0, index_n, logits_rv[index_n].masked_fill(forbidden_nv, -torch.inf))

    def take(self, token_r: torch.Tensor, row_r: torch.Tensor) -> None:
        """Advance the grammars by the tokens [R] sampled for rows; rows that have ended are no longer constrained."""
        for token, row in zip(token_r.tolist(), row_r.tolist(), strict=True):
            if row not in self._open:
                continue
            if token in self._policy.eos_ids:
                del self._open[row]
            elif not self._matchers[row].consume_token(token):
                raise InputError(f"the grammar does not allow a sampled token: {self._matchers[row].get_error()[:200]}")

    def _allowed(self, row: int, width: int) -> np.ndarray:
        """Return a mask [V] of the tokens that may come next in a row."""
        vocabulary = _vocabulary(self._policy, width)
        if row not in self._matchers:
            self._matchers[row] = vocabulary.matcher(self._open[row])
        found = vocabulary.allowed(self._matchers[row])
        if not found.any():
            raise InputError(f"the grammar allows no token: {self._matchers[row].get_error()[:200]}")
        return found


class _Vocabulary:
    """The tokens of a policy in llguidance's form, and the grammars compiled for them."""

    def __init__(self, policy: TokenPolicy, width: int) -> None:
        try:
            import llguidance
            import llguidance.numpy as bits
        except ImportError as error:
            raise MissingExtra("llguidance", "grammar", "Holding completions to a grammar") from error
        self.guidance: ModuleType = llguidance
        self._bits: ModuleType = bits
        self.width = width
        self.tokens = _tokens(llguidance, policy, width)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, request: Request[tuple[int, ...]]) -> LLMatcher:
        """Return the state of a request's grammar after the tokens that were sampled under it before."""
        assert request.grammar is not None
        found = self._fresh(request.grammar)
        behind = request.grammar.behind
        for token in request.prompt[len(request.prompt) - behind :]:
            if not found.consume_token(token):
                raise InputError(f"the grammar does not allow a sampled token: {found.get_error()[:200]}")
        return found

    def allowed(self, matcher: object) -> np.ndarray:
        """Return a mask [V] of the tokens that may come next."""
        mask = self._bits.allocate_token_bitmask(1, self.width)
        self._bits.fill_next_token_bitmask(matcher, mask, 0)
        return np.unpackbits(mask.view(np.uint8)[0], bitorder="little")[: self.width].astype(bool)

    def _fresh(self, grammar: Grammar) -> LLMatcher:
        with self._lock:
            if grammar.lark not in self._compiled:
                made = self.guidance.LLMatcher(self.tokens, grammar.lark, log_level=0)
                if made.is_error():
                    raise InputError(f"the grammar cannot be used: {made.get_error()[:400]}")
                self._compiled[grammar.lark] = made
            self._compiled.move_to_end(grammar.lark)
            while len(self._compiled) > MOST_KEPT:
                self._compiled.popitem(last=False)
            return self._compiled[grammar.lark].deep_copy()


def _vocabulary(policy: TokenPolicy, width: int) -> _Vocabulary:
    with _lock:
        known = _KNOWN.setdefault(policy.tokenizer, {})
        if width not in known:
            known[width] = _Vocabulary(policy, width)
        return known[width]


def _tokens(guidance: ModuleType, policy: TokenPolicy, width: int) -> object:
    """Return a tokenizer of `width` tokens in llguidance's form; for an unsupported tokenizer, each token is converted
    by itself.
    """
    from llguidance.hf import from_tokenizer

    ends = list(policy.eos_ids)
    if not ends:
        raise InputError("the tokenizer has no end token", "a grammar needs one to end a completion")
    try:
        return from_tokenizer(policy.tokenizer, n_vocab=width, eos_token=ends)
    except ValueError:
        return guidance.LLTokenizer(guidance.TokenizerWrapper(_Plain(policy)), n_vocab=width, eos_token=ends)


class _Plain:
    """A tokenizer whose tokens are independent texts, such as characters or words."""

    def __init__(self, policy: TokenPolicy) -> None:
        tokenizer = policy.tokenizer
        self.eos_token_id, self.bos_token_id = policy.eos_ids[0], tokenizer.bos_token_id
        self.special_token_ids = sorted(tokenizer.all_special_ids)
        self.tokens = [str(text).encode() for text in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
        self._known = {text: i for i, text in enumerate(self.tokens) if text}
        self._longest = max(map(len, self._known))

    def __call__(self, text: bytes) -> list[int]:
        """Return the tokens of a text, by longest match; bytes that no token can write are skipped."""
        found, at = list[int](), 0
        while at < len(text):
            lengths = range(min(self._longest, len(text) - at), 0, -1)
            size = next((size for size in lengths if text[at : at + size] in self._known), 0)
            found += [self._known[text[at : at + size]]] if size else []
            at += size or 1
        return found
