"""Sampling texts with the seeds and settings of a source of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from grouprl.core.stopwatch import Stopwatch
from grouprl.protocols import EntropyScaling, Request, RunSampler
from grouprl.records.episode_records import Record, Turn
from grouprl.records.examples import Prompt
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout, as_rollout
from grouprl.records.scores import Scores
from grouprl.records.text_samples import TextSamples
from grouprl.records.token_policy import TokenPolicy
from grouprl.records.tokens import Tokens
from grouprl.rollout.episode_rows import extras_of_texts
from grouprl.rollout.row_settings import Rows, RowSettings
from grouprl.rollout.scored_rows import scored_samples, with_texts
from grouprl.tasks.task import Task


@dataclass(frozen=True)
class TextSampling:
    """Samples completions from a language model with the settings of a source of rows, without scoring them."""

    task: Task
    policy: TokenPolicy
    sampler: RunSampler
    settings: RowSettings
    watch: Stopwatch

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end a completion or a turn."""
        return (*self.task.stop, *self.settings.stop)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a plain text."""
        return tuple(self.policy.encode(text))

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row of token ids."""
        return list(self.policy.decode_all(rows))

    def generate(self, rows: Rows, *, greedy: bool = False, scaling: EntropyScaling | None = None) -> Rollout:
        """Sample the completion that each row asks for."""
        return self._sampled(self.requests(rows, greedy=greedy, scaling=scaling))

    def requests(
        self, rows: Rows, *, greedy: bool = False, scaling: EntropyScaling | None = None
    ) -> list[Request[tuple[int, ...]]]:
        """Return the request for the completion that each row asks for."""
        longest, prompts = self.settings.max_new_tokens, self.prompt_ids(rows)
        return [
            self._request(
                ids,
                min(request.max_new_tokens or longest, longest),
                self.settings.seeds.of_actions(request.ordinal, number),
                request.temperature,
                greedy=greedy,
                scaling=scaling,
                agent=self.task.agent_of(request.example),
            )
            for (request, number), ids in zip(rows, prompts, strict=True)
        ]

    def act(self, beginnings: Sequence[Sequence[int]], seeds: Sequence[int]) -> Rollout:
        """Sample one completion or turn after each of `beginnings`, as in training."""
        longest = self.settings.max_new_tokens
        each = zip(beginnings, seeds, strict=True)
        return self._sampled([self._request(tuple(ids), longest, seed) for ids, seed in each])

    def sample_texts(self, requests: Sequence[RolloutRequest]) -> TextSamples:
        """Sample a completion for each of `requests` without its environment: unscored rows of one turn, with reward 0
        and no limit of tokens but the request's own.
        """
        rows = [(request, request.first) for request in requests]
        longest, seeds = self.settings.max_new_tokens, self.settings.seeds
        rollout = self._sampled(
            [
                self._request(
                    ids,
                    request.max_new_tokens or longest,
                    seeds.of_actions(request.ordinal, number),
                    request.temperature,
                )
                for (request, number), ids in zip(rows, self.prompt_ids(rows), strict=True)
            ]
        )
        shown, texts = [request.shown for request in requests], self.decode(rollout.response_ids)
        zero_b, none_b = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
        scores = Scores(zero_b, {}, none_b, np.full(len(rows), "ok"), [])
        samples = with_texts(scored_samples(rows, rollout, scores, none_b), shown, texts)
        agent, ended = self.task.agents[0], rollout.truncated_b.tolist()
        return replace(
            samples,
            group_b=samples.group_b * len(self.task.agents),
            extras={**samples.extras, **extras_of_texts(rows, rollout)},
            records=tuple(
                Record(agent, "truncated" if late else "terminated", (Turn(0, "", text),))
                for text, late in zip(texts, ended, strict=True)
            ),
        )

    def with_prompts(self, samples: TextSamples, prompts: Sequence[Prompt]) -> TextSamples:
        """Return the rows with other prompts [B] in place of their own; their log-probs become foreign."""
        prompt_ids = tuple(tuple(ids) for ids in self.policy.encode_prompts(list(prompts)))
        rollout = replace(samples.rollout, inputs=Tokens(prompt_ids, samples.response_ids))
        return replace(samples, prompts=tuple(prompts), rollout=rollout, foreign_b=np.ones(len(samples), dtype=bool))

    def prompt_ids(self, rows: Rows) -> tuple[tuple[int, ...], ...]:
        """Return the token ids before each completion: the prompt and the request's prefix."""
        requests = list({id(request): request for request, _ in rows}.values())
        encoded = self.policy.encode_prompts([request.shown for request in requests])
        ids_of = {id(request): (*ids, *request.prefix) for request, ids in zip(requests, encoded, strict=True)}
        return tuple(ids_of[id(request)] for request, _ in rows)

    def _request(
        self,
        ids: tuple[int, ...],
        budget: int,
        seed: int,
        temperature: float | None = None,
        *,
        greedy: bool = False,
        scaling: EntropyScaling | None = None,
        agent: int = 0,
    ) -> Request[tuple[int, ...]]:
        settings = self.settings
        return Request(
            ids,
            budget,
            seed,
            temperature or settings.temperature,
            greedy=greedy,
            top_p=settings.top_p,
            top_k=settings.top_k,
            stop_texts=self.stop,
            entropy_scaling=scaling,
            agent=agent,
        )

    def _sampled(self, requests: Sequence[Request[tuple[int, ...]]]) -> Rollout:
        with self.watch("rollout"):
            return as_rollout(requests, self.sampler.sample(requests))
