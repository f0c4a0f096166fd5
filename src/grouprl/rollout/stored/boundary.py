"""Stored completions as tokens: where prompt and completion meet, which tokens the policy wrote, and what is cut.

The prompt is encoded by itself, as it is when the policy samples: text by the tokenizer, messages by the chat template
with its generation prompt. Completions come after these tokens, so that all rows of a group share them exactly. A
completion of text is encoded by itself. One of messages is what the template renders after the prompt; if the template
does not render the prompt the same way then, a single message is taken as it is, and several are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.policy.language.text import encode_after, render_kept, up_to_end, with_end
from grouprl.records.examples import Example, Message, Prompt
from grouprl.records.offline import RowLimit, StoredRow

if TYPE_CHECKING:
    from grouprl.records.token_policy import TextSide

Piece = tuple[str, bool]
"""Text of a completion, and whether the policy wrote it."""


@dataclass(frozen=True)
class StoredTokens:
    """A row as tokens: those of the prompt, those after it, which of these the policy wrote, and how many were cut."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    own: tuple[bool, ...]
    cut: int = 0
    ends_cut: bool = False
    """Whether these were the last ones of the completion, not the first ones of the prompt."""
    fits: bool = True
    """False for all rows of a group that `RowLimit.gives_way` drops."""

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.ids)


def group_tokens(
    policy: TextSide,
    groups: Sequence[tuple[Example, Sequence[StoredRow]]],
    limit: RowLimit,
    positions: int | None,
) -> list[StoredTokens]:
    """Return the rows of groups as tokens, group after group, none longer than `limit` and the model's `positions`.

    Raises:
        InputError: a row has no token that the policy wrote, or the template cannot render it; the message names it.
    """
    most = min((each for each in (limit.tokens, positions) if each is not None), default=None)
    prompts = _prompts(policy, groups)
    plain = _encoded_plain(policy, groups, prompts)
    found = list[StoredTokens]()
    for (example, rows), shown in zip(groups, prompts, strict=True):
        encoded = [next(plain) for row in rows] if _is_plain(example, rows) else _encoded(policy, example, rows, shown)
        group = [StoredTokens(ids, *each) for ids, each in zip(shown, encoded, strict=True)]
        for number, each in enumerate(group):
            _refuse_without_action(each, f"row {number} of {example.id}", "its completion has no token")
        found += group if rows[0].ids is not None or most is None else fitted(group, most, limit, example.id)
    return found


def _prompts(policy: TextSide, groups: Sequence[tuple[Example, Sequence[StoredRow]]]) -> list[list[tuple[int, ...]]]:
    """Return the tokens of the prompt of each row, group by group: those that are stored, else the prompt's own."""
    encoded = iter(policy.encode_prompts([e.prompt for e, rows in groups if _needs_prompt(rows)]))
    found = list[list[tuple[int, ...]]]()
    for _, rows in groups:
        shared = tuple(next(encoded)) if _needs_prompt(rows) else ()
        found.append([shared if row.prompt_ids is None else row.prompt_ids for row in rows])
    return found


def fitted(group: Sequence[StoredTokens], most: int, limit: RowLimit, name: str) -> list[StoredTokens]:
    """Return the rows of a group with at most `most` tokens each, and one prompt.

    Raises:
        InputError: nothing that the policy wrote is left of a row.
    """
    longest = max(map(len, group))
    if longest <= most:
        return list(group)
    if limit.gives_way == "drop":
        return [StoredTokens(row.prompt_ids[:most], row.ids[:1], row.own[:1], fits=False) for row in group]
    if limit.gives_way == "keep_end":
        return _without_beginning(group, longest - most, most, name)
    cut = [_without_end(row, most) for row in group]
    for number, row in enumerate(cut):
        why = f"its prompt has {len(row.prompt_ids)} tokens, and prompt and completion may have {most}"
        _refuse_without_action(row, f"row {number} of {name}", why)
    return cut


def pieces_of(policy: TextSide, example: Example, rows: Sequence[StoredRow]) -> list[list[Piece]]:
    """Return the text of each completion of a group in pieces, as they come after the prompt.

    Raises:
        InputError: a completion of several messages that the chat template does not render after the prompt.
    """
    prompt = example.prompt
    if isinstance(prompt, str):
        if any(row.messages for row in rows):
            raise InputError(
                f"{example.id} has a prompt of text and a completion of messages with tool calls or several turns",
                "such a completion continues a conversation",
                "Give the prompt as messages, or a model with a chat template",
            )
        return [[(row.completion, True)] for row in rows]
    rendered = [_rendered(policy, prompt, row) for row in rows]
    if all(rendered):
        return [pieces for pieces in rendered if pieces]
    if any(row.messages for row in rows):
        raise InputError(
            f"the chat template does not render the completions of {example.id} after their prompt",
            "it writes earlier messages in another way once later ones follow, or leaves out some of their text",
            "Keep one message of the assistant per completion, or set another chat template",
        )
    return [[(row.completion, True)] for row in rows]


def _rendered(policy: TextSide, prompt: Prompt, row: StoredRow) -> list[Piece] | None:
    """Return what the chat template renders after a prompt for a completion; None if it then changes the prompt."""
    assert not isinstance(prompt, str)
    said = row.messages or (Message(role="assistant", content=row.completion),)
    done, pieces, count = "", list[Piece](), 0
    for count, message in enumerate(said, start=1):
        if message["role"] != "assistant":
            continue
        kept = render_kept(policy.tokenizer, prompt, said[: count - 1], message)
        if kept is None or not kept[0].startswith(done):
            return None
        begun, whole = kept
        gap = begun[len(done) :] if pieces else ""
        pieces += [(gap, False)] * bool(gap) + [(whole[len(begun) :], True)]
        done = whole
    return pieces


def _encoded(
    policy: TextSide, example: Example, rows: Sequence[StoredRow], shown: Sequence[tuple[int, ...]]
) -> Iterator[tuple[tuple[int, ...], tuple[bool, ...]]]:
    """Yield the tokens of each completion, and which of them the policy wrote: up to the last end token of a piece."""
    for row, before, pieces in zip(rows, shown, pieces_of(policy, example, rows), strict=True):
        if row.ids is not None:
            yield row.ids, (True,) * len(row.ids)
            continue
        ids, own = list[int](), list[bool]()
        for text, mine in pieces:
            (part,) = encode_after(policy, [ids or before], [text])
            ended = len(up_to_end(part, policy.eos_ids))
            ids += part
            own += [mine and place < ended for place in range(len(part))]
        last = 1 + max((place for place, mine in enumerate(own) if mine), default=-1)
        yield _ended(policy, ids[:last], own[:last])


def _encoded_plain(
    policy: TextSide,
    groups: Sequence[tuple[Example, Sequence[StoredRow]]],
    prompts: Sequence[Sequence[tuple[int, ...]]],
) -> Iterator[tuple[tuple[int, ...], tuple[bool, ...]]]:
    """Yield the tokens of the completions after prompts of text, encoded all at once, with an end token each."""
    plain = [(group, shown) for (q, group), shown in zip(groups, prompts, strict=True) if _is_plain(q, group)]
    rows = [each for group, shown in plain for each in zip(group, shown, strict=True)]
    texts = [(row.completion, before) for row, before in rows if row.ids is None]
    written = iter(encode_after(policy, [before for _, before in texts], [text for text, _ in texts]))
    for row, _ in rows:
        if row.ids is not None:
            yield row.ids, (True,) * len(row.ids)
        else:
            ids = next(written)
            yield _ended(policy, ids, [True] * len(ids))


def _ended(policy: TextSide, ids: Sequence[int], own: Sequence[bool]) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return tokens with an end token after them, unless there is one or there are none."""
    ended = with_end(ids, policy.eos_ids) if ids else ()
    return tuple(ended), (*own, *repeat(True, len(ended) - len(ids)))


def _is_plain(example: Example, rows: Sequence[StoredRow]) -> bool:
    return isinstance(example.prompt, str) and not any(row.messages for row in rows)


def _needs_prompt(rows: Sequence[StoredRow]) -> bool:
    return any(row.prompt_ids is None for row in rows)


def _without_end(row: StoredTokens, most: int) -> StoredTokens:
    keep = max(0, most - len(row.prompt_ids))
    cut = max(0, len(row.ids) - keep)
    return StoredTokens(row.prompt_ids, row.ids[:keep], row.own[:keep], cut, ends_cut=True) if cut else row


def _without_beginning(group: Sequence[StoredTokens], over: int, most: int, name: str) -> list[StoredTokens]:
    """Return the rows without the first `over` tokens of their prompt."""
    if over >= len(group[0].prompt_ids):
        raise InputError(
            f"a completion of {name} has {max(len(row.ids) for row in group)} tokens, and prompt and completion may "
            f"have {most}",
            "keep_end cuts the prompt, and at least one token of it stays",
            "Raise max_length, set truncation to keep_start or drop, or leave the row out",
        )
    return [StoredTokens(row.prompt_ids[over:], row.ids, row.own, over) for row in group]


def _refuse_without_action(row: StoredTokens, name: str, why: str) -> None:
    if not any(row.own):
        raise InputError(
            f"nothing of {name} is left to learn from: {why}",
            "a row has at least one token that the policy wrote",
            "Raise max_length, set truncation to keep_end or drop, or leave the row out",
        )


def flat(masks: Sequence[Sequence[bool]], width: int) -> list[list[bool]]:
    """Return [B][T] masks, False beyond the end of a row."""
    return [list(chain(mask, repeat(False, width - len(mask)))) for mask in masks]
