"""The first uniform numbers of many seeds are those of numpy's default generator, bit by bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.policy.vectors import first_uniforms as module
from grouprl.policy.vectors.first_uniforms import TOGETHER, first_uniforms


def by_numpy(seeds: list[int]) -> list[float]:
    return [np.random.default_rng(seed).random() for seed in seeds]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=8))
def test_any_seeds(seeds: list[int]) -> None:
    assert first_uniforms(seeds) == by_numpy(seeds)


def test_edges_of_words_and_blocks() -> None:
    seeds = [0, 1, TOGETHER - 1, TOGETHER, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
    assert first_uniforms(seeds) == by_numpy(seeds)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 3)
    monkeypatch.setattr(module, "_blocks", {})
    for first in range(0, 40 * TOGETHER, 2 * TOGETHER):
        seeds = [first, first + TOGETHER]
        assert first_uniforms(seeds) == by_numpy(seeds)
    assert len(module._blocks) <= 3
