"""Logics-STEM: which prompts failed, which are near them, and when they are sampled."""

from __future__ import annotations

import numpy as np
import pytest

from fake_context import FakeContext, Numbers
from grouprl.algorithms.curriculum.papers.failure_neighbours import (
    FailureNeighbours,
    failed,
    grams,
    neighbours,
    text_of,
)
from grouprl.algorithms.part import RunFacts
from grouprl.records.examples import Example
from grouprl.records.prompt_history import PromptHistory, Visit


def step(part, context):
    requests = part.choose(context.prompts, context)
    context.finish(context.sample(requests), part, advantage=0.0)
    return [request.index for request in requests]


class Named(Numbers):
    """Prompt i is a word: the first four are sampled first, one failed word has two neighbours."""

    words = ("aaaa", "bbbb", "cccc", "dddd", "aaab", "zzzz", "caaa", "yyyy")

    def example(self, split: str, index: int) -> Example:
        return Example(f"n/{index}", self.words[index], {"answer": "right"}, 0)


def test_exactly_the_prompts_below_the_threshold_failed():
    history = PromptHistory()
    for index, right in ((0, 0), (1, 2), (2, 1), (4, 4)):
        history.write(index, Visit(0, 4, right, right / 4, 0.0, 0.0, ()))
    assert failed(history, 6, 0.5) == [0, 2]
    assert failed(history, 6, 0.51) == [0, 1, 2]
    assert failed(history, 6, 0.0) == []


def test_similarity_is_the_cosine_of_counts_of_letters():
    row_nv = grams(["abab", "ab", "ba", "a", "cd"], 2)
    like_n = row_nv @ row_nv[0]
    assert like_n == pytest.approx([1, 2 / np.sqrt(5), 1 / np.sqrt(5), 0, 0])
    assert neighbours(row_nv, 1, 2) == [0, 1]
    assert neighbours(row_nv, 1, 9) == [0, 1, 2, 3]
    assert neighbours(row_nv, 0, 2) == []


def test_messages_are_one_text():
    assert text_of(({"role": "system", "content": "a"}, {"role": "user", "content": "b"})) == "a\nb"


def test_the_second_stage_samples_unseen_neighbours_of_what_failed():
    part = FailureNeighbours(after=0.25, below=0.5, nearest=1)
    context = FakeContext((0.0,) * 8, task=Named(8), prompts=4, completions=8, steps=4)
    seen = step(part, context)
    fresh = [i for i in range(8) if i not in seen]
    texts = [Named.words[i] for i in (*sorted(seen), *fresh)]
    near = {fresh[place] for place in neighbours(grams(texts, 2), 4, 1)}
    assert set(step(part, context)) == near
    assert (context.notes["prompts_failed"], context.notes["prompts_near_failures"]) == (4, len(near))
    assert set(step(part, context)) == near, "they are found once"


def test_the_stream_goes_on_where_nothing_failed():
    part, plain = FailureNeighbours(after=0.0), FakeContext((1.0,) * 8)
    assert step(part, FakeContext((1.0,) * 8)) == [request.index for request in plain.take(4)]


def test_a_stage_that_never_comes_has_no_effect():
    assert FailureNeighbours(after=1.0).idle(RunFacts())
    assert FailureNeighbours(below=0.0).idle(RunFacts())
    assert FailureNeighbours().idle(RunFacts(steps=10, prompts=4, examples=20))
    assert not FailureNeighbours().idle(RunFacts(steps=10, prompts=4, examples=21))
