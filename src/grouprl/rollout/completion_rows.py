"""Rows that are completions: one prompt, one answer, scored by the reward function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from grouprl.core.errors import InputError
from grouprl.policy.language.text import encode_after
from grouprl.protocols import EntropyScaling, Request, Samples
from grouprl.records.outcomes import Outcomes
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout, as_rollout
from grouprl.records.scores import Scores
from grouprl.records.text_samples import TextSamples
from grouprl.records.tokens import Tokens
from grouprl.rollout.row_settings import Rows, rows_of
from grouprl.rollout.row_source import ScoringSource
from grouprl.rollout.scored_rows import names_of, scored_samples, with_texts


class CompletionRows(ScoringSource):
    """Source that samples completions to single-turn prompts and scores them with the reward function."""

    pauses: ClassVar[bool] = True

    def rows(
        self,
        requests: Sequence[RolloutRequest],
        *,
        greedy: bool = False,
        scaling: EntropyScaling | None = None,
        count_failures: bool = True,
    ) -> TextSamples:
        """Sample the requested completions and score them."""
        rows = rows_of(requests, greedy=greedy)
        rollout = self.texts().generate(rows, greedy=greedy, scaling=scaling)
        foreign_b = self.settings.foreign_b(rows) | (scaling is not None)
        samples = self._scored(rows, rollout, foreign_b)
        return self.counted(samples) if count_failures else samples

    def token_requests(self, requests: Sequence[RolloutRequest]) -> list[Request[tuple[int, ...]]]:
        """Return the requests for tokens of the completions that `requests` ask for."""
        return self.texts().requests(rows_of(requests))

    def scored_rows(self, requests: Sequence[RolloutRequest], samples: Samples[int]) -> TextSamples:
        """Return scored rows of `samples`, which complete `token_requests(requests)`; failures are not counted."""
        rows = rows_of(requests)
        rollout = as_rollout(self.token_requests(requests), samples)
        return self._scored(rows, rollout, self.settings.foreign_b(rows))

    def outcomes(self, requests: Sequence[RolloutRequest], *, greedy: bool = False) -> Outcomes:
        """Sample the requested completions and score them, for an evaluation.

        Raises:
            InputError: the policy is a team, and the task is for a single one.
        """
        members = getattr(self.policy, "members", None)
        if members and len(self.task.agents) == 1:
            raise InputError(
                f"the task '{self.task.name}' is for a single policy",
                f"this one is a team of {', '.join(members)}",
                "Choose a task with these agents",
            )
        rows = rows_of(requests)
        rollout = self.texts().generate(rows, greedy=greedy)
        texts, scores = self._texts_and_scores(rows, rollout)
        lengths, late = tuple(map(len, rollout.response_ids)), tuple(rollout.truncated_b.tolist())
        return Outcomes(texts, ("",) * len(rows), lengths, late, scores)

    def rows_of_texts(self, requests: Sequence[RolloutRequest], texts: Sequence[str]) -> TextSamples:
        """Return one scored row per request with a text of `texts` as its completion; log-probs are foreign."""
        rows, longest = [(request, request.first) for request in requests], self.settings.max_new_tokens
        end, prompts = self.policy.eos_ids[:1], self.texts().prompt_ids(rows)
        written = encode_after(self.policy, prompts, texts)
        response_ids = tuple((*ids[: longest - 1], *end) for ids in written)
        zeros_bt = torch.zeros(len(rows), max(map(len, response_ids)), dtype=self.policy.score_dtype)
        complete_b = torch.zeros(len(rows), dtype=torch.bool)
        tokens = Tokens(prompts, response_ids)
        rollout = Rollout(tokens, zeros_bt, zeros_bt.clone(), complete_b)
        return self._scored(rows, rollout, np.ones(len(rows), dtype=bool)).with_source("demonstration")

    def judged_together(self, samples: TextSamples) -> TextSamples:
        """Return the rows with new scores, each judged among all rows of its group."""
        each = zip(samples.group_b.tolist(), samples.index_b.tolist(), samples.examples, strict=True)
        rows = [
            (RolloutRequest(group, index, example, 1), number)
            for (group, index, example), number in zip(each, samples.sample_b.tolist(), strict=True)
        ]
        scores = self._score(samples.texts, rows, names_of(rows), samples.prompts)
        return self.counted(replace(samples, scores=scores))

    def _scored(self, rows: Rows, rollout: Rollout, foreign_b: np.ndarray) -> TextSamples:
        texts, scores = self._texts_and_scores(rows, rollout)
        samples = scored_samples(rows, rollout, scores, foreign_b)
        return with_texts(samples, [request.shown for request, _ in rows], texts)

    def _texts_and_scores(self, rows: Rows, rollout: Rollout) -> tuple[tuple[str, ...], Scores]:
        whole = [(*request.prefix, *ids) for (request, _), ids in zip(rows, rollout.response_ids, strict=True)]
        texts = tuple(self.policy.decode_all(whole))
        return texts, self._score(texts, rows, names_of(rows), [request.shown for request, _ in rows])
