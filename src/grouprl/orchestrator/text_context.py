"""The run's side of data parts that need text: see `grouprl.algorithms.data_part.TextContext`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grouprl.orchestrator.accounting import SampledCounts
from grouprl.records.examples import Prompt
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout
from grouprl.records.text_samples import TextSamples
from grouprl.rollout.row_source import ScoringSource

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy


class SessionTexts:
    """The texts and tokens of one run; completions sampled through it are counted in `counts`.

    Raises:
        InputError: the rows of `source` are not made of text.
    """

    def __init__(self, source: ScoringSource, counts: SampledCounts) -> None:
        self._source, self._texts, self._counts = source, source.texts(), counts

    @property
    def policy(self) -> CausalPolicy:
        """The language model in training; parts that need one declare it."""
        policy: CausalPolicy = self._source.policy
        return policy

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a plain text."""
        return self._texts.encode(text)

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row of token ids."""
        return self._texts.decode(rows)

    def act(self, beginnings: Sequence[Sequence[int]], seeds: Sequence[int]) -> Rollout:
        """Sample one completion or turn after each of these token sequences, without environment or reward."""
        rollout = self._texts.act(beginnings, seeds)
        self._counts.add_unnamed(map(len, rollout.response_ids))
        return rollout

    def sample_texts(self, requests: Sequence[RolloutRequest]) -> TextSamples:
        """Sample a completion for each of `requests` without its environment."""
        samples = self._texts.sample_texts(requests)
        self._counts.add(samples)
        return samples

    def rows_of_texts(self, requests: Sequence[RolloutRequest], texts: Sequence[str]) -> TextSamples:
        """Return one row per request with `texts` as completions."""
        return self._source.rows_of_texts(requests, texts)

    def with_prompts(self, samples: TextSamples, prompts: Sequence[Prompt]) -> TextSamples:
        """Return the rows with these prompts in place of their own."""
        return self._texts.with_prompts(samples, prompts)
