"""Ending completions at a text, whichever tokens spell it; the tokens stay as they were sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from grouprl.core.errors import InputError

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy
    from grouprl.records.token_policy import TokenPolicy

_TABLES: WeakKeyDictionary[object, dict[tuple[str, ...], torch.Tensor]] = WeakKeyDictionary()


class StopTexts:
    """Detector of rows that have just completed one of `texts`.

    Most tokens cannot end any of the texts; the end of a row is decoded only after a token that can.

    Raises:
        InputError: an empty text.
    """

    def __init__(self, policy: CausalPolicy, texts: Sequence[str]) -> None:
        if not all(texts):
            raise InputError("An empty stop text", "It would end every completion at once", "Leave it out")
        self.policy, self.texts = policy, tuple(texts)
        self.tail = 4 * max(map(len, texts)) + 8
        self._may_v = _table(policy, self.texts).to(policy.device)

    def ended(self, token_tb: torch.Tensor, row_r: torch.Tensor, t: int) -> torch.Tensor:
        """Return a mask [R] of the rows `row_r` of `token_tb` [T,B] that end a text with their token at position t."""
        may_r = self._may_v[token_tb[t, row_r]]
        found_r = torch.zeros_like(may_r)
        index = may_r.nonzero()[:, 0]
        if len(index):
            tails = token_tb[max(0, t + 1 - self.tail) : t + 1, row_r[index]].T.tolist()
            said = self.policy.decode_all(tails)
            hit = [any(text in words for text in self.texts) for words in said]
            found_r[index] = torch.tensor(hit, device=found_r.device)
        return found_r


def _table(policy: TokenPolicy, texts: tuple[str, ...]) -> torch.Tensor:
    """Return a mask [V] of tokens that can write the last letter of one of `texts`."""
    known = _TABLES.setdefault(policy.tokenizer, {})
    if texts not in known:
        words = policy.decode_all([[i] for i in range(len(policy.tokenizer))])
        ends = {text[i:] for text in texts for i in range(len(text))}
        firsts = tuple(ends)
        known[texts] = torch.tensor(
            [word.startswith(firsts) or "\ufffd" in word or any(text in word for text in texts) for word in words]
        )
    return known[texts]
