"""Praise and blame for parts of a completion: spans that a function names, as marks on its tokens."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from typing_extensions import override

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.importing import import_object
from grouprl.records.samples import ScoredSamples
from grouprl.records.text_samples import as_text

SIDES = ("good", "poor")
ALIKE = 0.8
"""Least similarity, as difflib's ratio, of words of the completion to a named span that does not occur in it."""
Spans = list[tuple[int, int]]


@part("augment")
class SpanFeedback(Augmentation):
    """Ask a function which parts of each completion are good and which poor: `marks.good`, `marks.poor` (Text2Grad).

    `function` is an import path, pkg.module:name or path/to/file.py:name. It is called with the completion's text and
    the prompt's columns by name, and returns {"good": [...], "poor": [...]}, parts of the text. Every exact occurrence
    of a part is marked; without any, the most similar words are, if they are similar enough. Tokens without a letter or
    digit are not marked.
    """

    needs_text = True

    function: str = ""
    equation = "marks.good, marks.poor = tokens of the parts that are named"
    fills = ("marks.good", "marks.poor")

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows unchanged."""
        return samples

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `marks.good` and `marks.poor`."""
        judge = import_object(self.function, "span feedback")
        marks = {side: torch.zeros_like(batch.mask_bt) for side in SIDES}
        for b, ids in enumerate(as_text(samples).response_ids):
            words = pieces(ids, context)
            said = self._requested(judge, "".join(words), samples.examples[b].columns)
            for side in SIDES:
                for start, end in covered(words, spans("".join(words), said.get(side, ()))):
                    marks[side][b, start:end] = True
                plain = [i for i, word in enumerate(words) if not any(map(str.isalnum, word))]
                marks[side][b, plain] = False
        return batch.replace(marks={**batch.marks, **{side: mark & batch.mask_bt for side, mark in marks.items()}})

    def _requested(self, judge: Any, text: str, columns: Mapping[str, object]) -> Mapping[str, Sequence[str]]:
        said = judge(text, **columns)
        fits = isinstance(said, Mapping) and set(said) <= set(SIDES)
        if not fits or not all(isinstance(x, str) for side in said.values() for x in side):
            raise InputError(
                f"the feedback '{self.function}' returned {said!r}"[:200],
                "it must return {'good': [...], 'poor': [...]}, lists of parts of the completion's text",
            )
        return said

    @override
    def words(self) -> str:
        return f"ask {self.function or 'a function'} which parts of each completion are good and which poor"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a feedback function."""
        if self.function:
            return []
        return [
            "span_feedback has no function to ask for feedback. Set its function (text2grad: feedback) to "
            "pkg.module:name or "
            "path/to/file.py:name, a function of a completion's text that names its good and poor parts"
        ]


def pieces(ids: Sequence[int], context: RunContext) -> list[str]:
    """Return what each token adds to the text of `ids`."""
    alone = context.text.decode([[i] for i in ids])
    if "".join(alone) == context.text.decode([list(ids)])[0]:
        return alone
    grown = context.text.decode([ids[: i + 1] for i in range(len(ids))])
    sizes = [0, *map(len, grown)]
    return [text[before:] for text, before in zip(grown, sizes, strict=False)]


def spans(text: str, named: Sequence[str]) -> Spans:
    """Return (start, end) of each part of `text` that `named` means; parts that are not found are left out."""
    found: Spans = []
    for name in (name for name in named if name.strip()):
        start = text.find(name)
        while start >= 0:
            found.append((start, start + len(name)))
            start = text.find(name, start + 1)
        if name not in text and (near := most_alike(text, name)) is not None:
            found.append(near)
    return found


def most_alike(text: str, name: str) -> tuple[int, int] | None:
    """Return the part of `text`, as many words as `name`, that is most like it; None if nothing is similar enough."""
    bounds, place = [], 0
    for word in text.split():
        place = text.index(word, place)
        bounds.append((place, place + len(word)))
        place += len(word)
    size = max(1, len(name.split()))
    windows = [(bounds[i][0], bounds[i + size - 1][1]) for i in range(len(bounds) - size + 1)]
    rated = [(difflib.SequenceMatcher(None, text[a:b], name).ratio(), -a, (a, b)) for a, b in windows]
    best = max(rated, default=(0.0, 0, None))
    return best[2] if best[0] >= ALIKE else None


def covered(words: Sequence[str], places: Spans) -> list[tuple[int, int]]:
    """Return (first token, token after the last) of each part of the text."""
    ends = torch.tensor([len(word) for word in words]).cumsum(0).tolist()
    starts = [end - len(word) for end, word in zip(ends, words, strict=True)]
    touched = [[i for i in range(len(words)) if starts[i] < b and ends[i] > a] for a, b in places]
    return [(own[0], own[-1] + 1) for own in touched if own]
