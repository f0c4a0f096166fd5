"""Batch fields derived from texts and the policy besides log-probs, filled in only for methods that need them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import torch
from torch import Tensor

from grouprl.algorithms.method import Method
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.records.samples import ScoredSamples
from grouprl.records.text_samples import TextSamples, as_text
from grouprl.tasks.task import Task

Encode = Callable[[str], Sequence[int]]
"""Function that returns the token ids of a text."""

OF_TEXTS = frozenset({"keys.answer", "keys.form", "marks.plan", "marks.thought", "marks.span", "marks.said"})
"""Batch fields that are read off texts."""


def add_texts(batch: Batch, samples: ScoredSamples, method: Method, task: Task, encode: Encode) -> Batch:
    """Return the batch with those fields of `OF_TEXTS` that the method needs; texts are not read if it needs none.

    Plans that the rows were sampled with are left unchanged.

    Raises:
        InputError: the method needs such a field, and the rows are not made of text.
    """
    reads = not OF_TEXTS.isdisjoint(method.needs()) or any(hasattr(part, "signs") for part in method.parts())
    return _with_texts(batch, as_text(samples), method, task, encode) if reads else batch


def _with_texts(batch: Batch, samples: TextSamples, method: Method, task: Task, encode: Encode) -> Batch:
    needs, keys, marks = method.needs(), dict(batch.keys), dict(batch.marks)
    pairs = list(zip(samples.examples, samples.texts, strict=True))
    if "keys.answer" in needs:
        answers = [task.final_answer(example, text) for example, text in pairs]
        groups = samples.group_b.tolist()
        keys["answer"] = numbered(i if a is None else (groups[i], a) for i, a in enumerate(answers))
    if "keys.form" in needs:
        numbers = {form: number for number, form in enumerate(task.forms)}
        forms = [task.form_of(example, text) for example, text in pairs]
        keys["form"] = torch.tensor([-1 if form is None else numbers[form] for form in forms], dtype=torch.int64)
    if "marks.plan" in needs and "plan" not in marks:
        phrases = [phrase for part in method.parts() for phrase in getattr(part, "phrases", ())]
        marks["plan"] = marked(batch, samples.response_ids, windows(encode, phrases))
    if "marks.thought" in needs:
        marks["thought"] = all_thoughts(batch, samples, windows(encode, [task.thought_end]))
    for begin, end in (part.signs for part in method.parts() if hasattr(part, "signs")):
        found = spans(batch, samples.response_ids, windows(encode, [begin]), windows(encode, [end]))
        marks["span"] = found | marks.get("span", torch.zeros_like(found))
    if "marks.said" in needs:
        marks["said"] = said(batch, samples)
    return batch.replace(keys=keys, marks=marks)


def said(batch: Batch, samples: TextSamples) -> Tensor:
    """Return [B,T] bool: tokens that an environment wrote, including those that chat templates put between turns."""
    present_bt = samples.tokens.present_bt()
    if "turn_bt" not in samples.extras:
        return torch.zeros_like(batch.mask_bt)
    acted_bt = torch.from_numpy(samples.extras["turn_bt"][:, : batch.size[1]] >= 0)
    return present_bt & ~acted_bt & ~batch.mask_bt


def numbered(values: Iterable[Hashable]) -> Tensor:
    """Return [B] int64: equal values get equal numbers, in the order of their first occurrence."""
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(value, len(numbers)) for value in values], dtype=torch.int64)


def windows(encode: Encode, phrases: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the token ids of each phrase that the tokenizer can write.

    Each phrase is encoded as given and capitalised, both with and without a leading space.
    """
    found: list[tuple[int, ...]] = []
    for phrase in phrases:
        capital = phrase[:1].upper() + phrase[1:]
        for text in (phrase, f" {phrase}", capital, f" {capital}"):
            try:
                found.append(tuple(encode(text)))
            except InputError:  # a character tokenizer without these letters never writes the phrase
                continue
    return list(dict.fromkeys(ids for ids in found if ids))


def marked(batch: Batch, response_ids: Sequence[Sequence[int]], phrases: Sequence[tuple[int, ...]]) -> Tensor:
    """Return [B,T] bool: tokens inside an occurrence of one of `phrases` (token ids)."""
    mark_bt = torch.zeros_like(batch.mask_bt)
    for row, ids in enumerate(response_ids):
        whole = tuple(ids)
        for phrase in phrases:
            for start in range(len(whole) - len(phrase) + 1):
                if whole[start : start + len(phrase)] == phrase:
                    mark_bt[row, start : start + len(phrase)] = True
    return mark_bt & batch.mask_bt


def all_thoughts(batch: Batch, samples: TextSamples, signs: Sequence[tuple[int, ...]]) -> Tensor:
    """Return [B,T] bool: the policy's tokens of thinking, which in each turn of an episode are those that its chat
    template marks.

    In other rows they are the tokens up to the end of the first of `signs`.
    """
    found_bt = thoughts(batch, samples.response_ids, signs)
    for row, record in enumerate(samples.records or ()):
        if record is None or not any(turn.thought for turn in record.turns):
            continue
        turn_t = torch.from_numpy(samples.extras["turn_bt"][row, : batch.size[1]])
        found_bt[row] = False
        for place, turn in enumerate(record.turns):
            found_bt[row, (turn_t == place).nonzero()[: turn.thought, 0]] = True
    return found_bt & batch.mask_bt


def thoughts(batch: Batch, response_ids: Sequence[Sequence[int]], signs: Sequence[tuple[int, ...]]) -> Tensor:
    """Return [B,T] bool: the policy's tokens up to the end of the first of `signs` (token ids); none without a sign."""
    mark_bt = torch.zeros_like(batch.mask_bt)
    for row, ids in enumerate(response_ids):
        whole = tuple(ids)
        ends = [
            start + len(sign)
            for sign in signs
            for start in range(len(whole) - len(sign) + 1)
            if whole[start : start + len(sign)] == sign
        ]
        mark_bt[row, : min(ends, default=0)] = True
    return mark_bt & batch.mask_bt


def spans(
    batch: Batch,
    response_ids: Sequence[Sequence[int]],
    begins: Sequence[tuple[int, ...]],
    ends: Sequence[tuple[int, ...]],
) -> Tensor:
    """Return [B,T] bool: the policy's tokens from one of `begins` to the next of `ends` (token ids), both included."""
    mark_bt = torch.zeros_like(batch.mask_bt)
    for row, ids in enumerate(response_ids):
        opened: int | None = None
        for place in range(len(ids)):
            if opened is None:
                opened = place if _at(ids, place, begins) else None
            elif width := _at(ids, place, ends):
                mark_bt[row, opened : place + width] = True
                opened = None
    return mark_bt & batch.mask_bt


def _at(ids: Sequence[int], place: int, signs: Sequence[tuple[int, ...]]) -> int:
    """Return the number of tokens of the longest sign at `place`; 0 if there is none."""
    return max((len(sign) for sign in signs if tuple(ids[place : place + len(sign)]) == sign), default=0)
