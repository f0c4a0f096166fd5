"""Reading the judgements of a user from the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.policy.language.text import encode
from grouprl.records.judgements import BETWEEN, END

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ids = tuple[int, ...]
Judgement = tuple[Ids, Ids, Ids]
"""Token ids of a prompt, its better and its worse completion."""


@dataclass(frozen=True)
class Reader:
    """Reads judgements from tokens.

    Args:
        between: the token of `BETWEEN`.
        end: the token of `END`.
        begin: the tokens that the tokenizer puts before a text.
    """

    between: int
    end: int
    begin: Ids = ()

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Reader:
        """Return the reader for a tokenizer.

        Raises:
            InputError: a separator is not one token of its own.
        """
        between, end = (_own_token(tokenizer, text) for text in (BETWEEN, END))
        if between is None or end is None or between == end:
            raise InputError(
                f"The tokenizer has no token of its own for {BETWEEN!r} and {END!r}",
                "the judgements of a user are told apart by these characters of ASCII",
                "Add both to the tokenizer, or train a reward model without users (bradley_terry)",
            )
        begin = (tokenizer.bos_token_id,) if tokenizer(END).input_ids[0] == tokenizer.bos_token_id else ()
        return cls(between, end, begin)

    def cut(self, prompt: Sequence[int]) -> tuple[tuple[Judgement, ...], Ids]:
        """Return the judgements at the beginning of a prompt, and the prompt itself; each begins as a text does.

        Raises:
            InputError: a judgement that is not a prompt and two completions, or nothing behind the last one.
        """
        begun = self.begin and tuple(prompt[: len(self.begin)]) == self.begin
        rest = tuple(prompt[len(self.begin) :] if begun else prompt)
        *records, own = _split(rest, self.end)
        judgements = tuple(self._judgement(record) for record in records)
        begin = self.begin if begun else ()
        if not begin and not own:
            raise InputError(
                "A prompt ends with a judgement", "the prompt itself follows the judgements of its user", "Append it"
            )
        return tuple((begin + asked, better, worse) for asked, better, worse in judgements), begin + own

    def _judgement(self, record: Ids) -> Judgement:
        parts = _split(record, self.between)
        if len(parts) != 3 or not parts[0]:
            raise InputError(
                f"A judgement of a user has {len(parts)} parts",
                f"it is a prompt, the better and the worse completion, with {BETWEEN!r} between them, and ends in "
                f"{END!r}",
                "Write prompts with judged_prompt of grouprl.records.judgements",
            )
        asked, better, worse = parts
        return asked, better, worse


def _own_token(tokenizer: PreTrainedTokenizerBase, text: str) -> int | None:
    """Return the single token that encodes `text`; None if it is unknown, or takes several."""
    try:
        ids = encode(tokenizer, text)
    except InputError:
        return None
    return ids[0] if len(ids) == 1 and ids[0] != tokenizer.unk_token_id else None


def _split(ids: Ids, at: int) -> list[Ids]:
    """Return the pieces between the tokens `at`, one more than these."""
    found: list[Ids] = []
    begin = 0
    for place in [*(i for i, token in enumerate(ids) if token == at), len(ids)]:
        found.append(ids[begin:place])
        begin = place + 1
    return found
