"""Rows that are episodes: played in environments, scored by them, and by a reward function if one is set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from grouprl.core.outputs import ENTROPY, LOG_PROB
from grouprl.core.spans import span
from grouprl.protocols import EntropyScaling
from grouprl.records.examples import Prompt, prompt_text
from grouprl.records.outcomes import Outcomes
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout
from grouprl.records.samples import Rows as SampleRows
from grouprl.records.samples import ScoredSamples, subset_scores
from grouprl.records.scores import Scores
from grouprl.rewards.contract import Failure, reward_name
from grouprl.rollout.episode_rows import (
    extras_of,
    score_episodes,
    score_outcomes,
    start_of,
    with_function,
)
from grouprl.rollout.episodes import Episodes, Start
from grouprl.rollout.group_scores import with_group_scores
from grouprl.rollout.row_settings import Rows, rows_of, sample_id
from grouprl.rollout.row_source import ScoringSource
from grouprl.rollout.scored_rows import names_of, scored_samples


class PlayedRows(ScoringSource):
    """Base of the sources whose rows are episodes; a subclass plays them."""

    acts = True

    @abstractmethod
    def _play(self, starts: Sequence[Start], *, greedy: bool, scaling: EntropyScaling | None) -> Episodes:
        """Play one episode from each of `starts`."""

    def rows(
        self,
        requests: Sequence[RolloutRequest],
        *,
        greedy: bool = False,
        scaling: EntropyScaling | None = None,
        count_failures: bool = True,
    ) -> ScoredSamples:
        """Play the requested episodes and score their rows."""
        rows = rows_of(requests, greedy=greedy)
        episodes = self._played(rows, greedy=greedy, scaling=scaling)
        samples = self.scored(rows, episodes, changed=scaling is not None)
        return self.counted(samples) if count_failures else samples

    def outcomes(self, requests: Sequence[RolloutRequest], *, greedy: bool = False) -> Outcomes:
        """Play the requested episodes and return the result of each, with the reward of its first agent."""
        rows = rows_of(requests)
        episodes = self._with_group_scores(rows, self._played(rows, greedy=greedy))
        names = names_of(rows)
        scores = score_outcomes(episodes, names, self.settings.correct_at)
        prompts = [request.example.prompt for request, _ in rows]
        scores = self._with_reward(scores, episodes.transcripts, rows, names, prompts)
        return Outcomes(
            episodes.transcripts,
            tuple(prompt_text(episodes.prompts[row]) for row in episodes.first_rows),
            tuple(episodes.per_episode(episodes.mask_bt.sum(1)).tolist()),
            tuple((episodes.per_episode(episodes.rollout.truncated_b.numpy()) > 0).tolist()),
            scores,
        )

    def scored(self, rows: Rows, episodes: Episodes, *, changed: bool = False) -> ScoredSamples:
        """Score played episodes; rows without any token written by the policy cannot be trained on.

        `changed` says that they were not sampled from the policy's distributions at the run's temperature.
        """
        episodes = self._with_group_scores(rows, episodes)
        which = [rows[e] for e in episodes.episode_b.tolist()]
        names = [sample_id(request.example.id, n, c) for (request, n), c in zip(which, episodes.context_b, strict=True)]
        with self.watch("score"):
            scores = score_episodes(episodes, names, self.settings.correct_at)
        scores = self._with_reward(scores, episodes.texts, which, names, episodes.prompts)
        scores = replace(scores, lost_b=_lost_prompts(scores, episodes, which))
        rollout = episodes.rollout
        if any(request.train_prefix for request, _ in rows):
            rollout = self._with_prefix_logps(rollout, episodes, which)
        foreign_b = (self.settings.foreign_b(rows) | changed)[episodes.episode_b]
        samples = scored_samples(which, rollout, scores, foreign_b)
        return replace(
            samples,
            group_b=samples.group_b * len(self.task.agents) + episodes.agent_b,
            valid_b=scores.ok_b & episodes.mask_bt.any(1),
            extras={**samples.extras, **extras_of(episodes, rows)},
            records=episodes.records,
        )

    def counted(self, samples: SampleRows) -> SampleRows:
        """Apply the error policy to rows that were sampled with `count_failures` off; return those that are kept."""
        return self._kept(samples, samples.ordinal_b)

    def _kept(self, samples: SampleRows, group_b: np.ndarray) -> SampleRows:
        """Apply the error policy; an episode is one of its samples, kept or dropped whole, `group_b` [B] its groups."""
        scores = samples.scores
        _, one_e, of_b = np.unique(samples.extras["keys.episode"], return_index=True, return_inverse=True)
        for row in np.flatnonzero(~scores.ok_b)[::-1]:
            one_e[of_b[row]] = row
        order = np.argsort(one_e)
        valid_e = np.zeros(len(one_e), dtype=bool)
        valid_e[order] = self.errors.apply(subset_scores(scores, one_e[order]), group_b[one_e[order]])
        if self.errors.mode == "zero":
            scores.reward_b[scores.failed_b] = 0.0
        valid_b = valid_e[of_b] & np.isfinite(scores.reward_b)
        return replace(samples, valid_b=valid_b & samples.extras["mask_bt"].any(1))

    def starts(self, rows: Rows) -> list[Start]:
        """Return the starts of the episodes of rows, with their own seeds."""
        return [start_of(request, number, self.settings) for request, number in rows]

    def _played(self, rows: Rows, *, greedy: bool, scaling: EntropyScaling | None = None) -> Episodes:
        with self.watch("rollout"), span("environments"):
            return self._play(self.starts(rows), greedy=greedy, scaling=scaling)

    def _with_group_scores(self, rows: Rows, episodes: Episodes) -> Episodes:
        return with_group_scores(self.task, episodes, self.starts(rows), [request.ordinal for request, _ in rows])

    def _with_reward(
        self, scores: Scores, texts: Sequence[str], rows: Rows, names: Sequence[str], prompts: Sequence[Prompt]
    ) -> Scores:
        """Return the scores, with those of the reward function added if it scores episodes."""
        if not self.settings.adds_reward:
            return scores
        return with_function(scores, self._score(texts, rows, names, prompts), reward_name(self.reward))

    def _with_prefix_logps(self, rollout: Rollout, episodes: Episodes, which: Rows) -> Rollout:
        """Return the rollout with the policy's own log-probs and entropies on the tokens of trained turn prefixes."""
        rows = [i for i, (request, _) in enumerate(which) if request.train_prefix and request.prefix_turns]
        found = self.policy.evaluate(rollout.tokens.of_agents(episodes.agent_b).rows(rows), (LOG_PROB, ENTROPY))
        logp_bt, entropy_bt = rollout.logp_bt.clone(), rollout.entropy_bt.clone()
        for place, row in enumerate(rows):
            led = len(which[row][0].prefix_turns)
            numbers = [turn.number for turn in episodes.records[row].turns]
            turns = [place for place, number in enumerate(numbers) if number < led]
            where = torch.from_numpy(np.isin(episodes.turn_bt[row], turns)).nonzero()[:, 0]
            logp_bt[row, where] = found[LOG_PROB][place, where].cpu().to(logp_bt)
            entropy_bt[row, where] = found[ENTROPY][place, where].cpu().to(entropy_bt)
        return replace(rollout, logp_bt=logp_bt, entropy_bt=entropy_bt)


def _lost_prompts(scores: Scores, episodes: Episodes, which: Rows) -> np.ndarray | None:
    """Return a mask [B] of rows lost to their environment, including those of prompts on which all episodes failed."""
    failed_b = np.array([isinstance(verdict, Failure) for verdict in episodes.verdicts], dtype=bool)
    if not failed_b.any():
        return scores.lost_b
    prompt_b = np.array([request.ordinal for request, _ in which])
    several_b = np.array([len(set(episodes.episode_b[prompt_b == prompt].tolist())) > 1 for prompt in prompt_b])
    return scores.gone_b | (failed_b & several_b & ~np.isin(prompt_b, prompt_b[~failed_b]))
