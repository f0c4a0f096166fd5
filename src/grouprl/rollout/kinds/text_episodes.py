"""Rows that are episodes of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from grouprl.protocols import EntropyScaling
from grouprl.records.text_samples import TextSamples
from grouprl.rollout.episode import Episode
from grouprl.rollout.episode_table import EpisodeLimits, EpisodeTable
from grouprl.rollout.episodes import Episodes, Start, TurnSettings, laid_out, play, score_type
from grouprl.rollout.in_flight import InFlightEpisodes
from grouprl.rollout.played_rows import PlayedRows
from grouprl.rollout.row_settings import Rows
from grouprl.rollout.scored_rows import with_texts


class TextEpisodes(PlayedRows):
    """Source of episodes that language models play in environments of text."""

    def _play(self, starts: Sequence[Start], *, greedy: bool, scaling: EntropyScaling | None) -> Episodes:
        settings = self.settings
        return play(
            self.policy,
            self.task.environment,
            starts,
            max_turns=self.task.max_turns,
            max_new_tokens=settings.max_new_tokens,
            agents=self.task.agents,
            greedy=greedy,
            top_p=settings.top_p,
            top_k=settings.top_k,
            entropy_scaling=scaling,
            stop=self.texts().stop,
            history=settings.history,
            stage=self.stage,
            sampler=self.sampler,
            reproducible=settings.reproducible,
        )

    def in_flight(self, fresh: Callable[[bool], bool], may_begin: Callable[[bool], bool]) -> InFlightEpisodes:
        """Return a player of the episodes of several units of requests at the same time."""
        return InFlightEpisodes(self, fresh, may_begin)

    def table(self) -> EpisodeTable:
        """Return the table that plays turns of this task in the environment pool."""
        assert self.stage is not None
        limits = EpisodeLimits(self.policy.max_positions, self.task.max_turns, self.settings.max_new_tokens)
        return EpisodeTable(self.policy, self.stage, self.settings.history, limits)

    def turn_settings(self) -> TurnSettings:
        """Return the settings for sampling turns."""
        settings = self.settings
        return TurnSettings(self.task.agents, False, settings.top_p, settings.top_k, self.texts().stop)

    def scored(self, rows: Rows, episodes: Episodes, *, changed: bool = False) -> TextSamples:
        """Score played episodes; each row has its transcript."""
        return with_texts(super().scored(rows, episodes, changed=changed), episodes.prompts, episodes.texts)

    def scored_episodes(self, rows: Rows, played: Sequence[Episode], *, exact: bool) -> TextSamples:
        """Return the scored rows of episodes that are over; the error policy is not applied yet."""
        end = list(self.policy.eos_ids[:1])
        return self.scored(rows, laid_out(end, partial(score_type, self.policy), played, exact=exact))
