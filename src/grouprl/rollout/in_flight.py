"""Units of requests whose episodes are in play at the same time, so that slow episodes do not delay later units."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from grouprl.core.stopwatch import Stopwatch
from grouprl.protocols import RunSampler
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples
from grouprl.rollout.episode import Episode
from grouprl.rollout.episode_scheduler import Player
from grouprl.rollout.episode_table import EpisodeTable, NextTurns
from grouprl.rollout.episodes import Start, TurnSampling, TurnSettings
from grouprl.rollout.row_settings import Rows, rows_of


@dataclass
class _Unit:
    """Episodes of one unit, which are returned together."""

    number: int
    rows: Rows
    episodes: list[Episode] = field(default_factory=list)
    settled: int = 0
    exact: bool = True
    """Whether every turn so far was sampled with exact log-probs."""


class PlayingSource(Protocol):
    """A source of rows whose episodes can be in play while others begin."""

    sampler: RunSampler
    watch: Stopwatch

    def table(self) -> EpisodeTable:
        """Return the table that plays turns in the source's environment pool."""

    def starts(self, rows: Rows) -> list[Start]:
        """Return the starts of the episodes of rows."""

    def turn_settings(self) -> TurnSettings:
        """Return the settings for sampling turns."""

    def scored_episodes(self, rows: Rows, played: Sequence[Episode], *, exact: bool) -> ScoredSamples:
        """Return the scored rows of episodes that are over."""


class InFlightEpisodes:
    """Plays the episodes of many units, and returns each unit when it is complete.

    A unit begins only when no episode of the earlier units can act: while these keep the decoder busy, none is begun.
    Episodes of a unit are returned in the order of its requests.

    Args:
        source: source of rows whose task is played, and which scores the episodes.
        fresh: called between batches; returns whether the weights have changed, so that keys and values have to be
            recomputed. Waiting units begin with the new weights.
        may_begin: function that says whether a unit may begin now, given whether others are in play.
    """

    def __init__(self, source: PlayingSource, fresh: Callable[[bool], bool], may_begin: Callable[[bool], bool]) -> None:
        self.source, self._fresh, self._may_begin = source, fresh, may_begin
        self._player = Player(source.table(), self._sample)
        self._session = ExitStack()
        self._turns = self._opened()
        self._waiting: deque[_Unit] = deque()
        self._unit_of: dict[int, _Unit] = {}
        self._begun = 0

    @property
    def busy(self) -> bool:
        """True if there are units that have not been returned."""
        return bool(self._waiting or self._unit_of)

    def request(self, number: int, requests: Sequence[RolloutRequest]) -> None:
        """Add unit `number` with its requests."""
        self._waiting.append(_Unit(number, rows_of(requests)))

    def advance(self, seconds: float) -> list[tuple[int, ScoredSamples]]:
        """Let all episodes act that can, waiting at most `seconds` for one; return the units that are complete."""
        with self.source.watch("rollout"):
            if self._fresh(self._player.busy):  # the keys and values of the session are those of the old weights
                self._session.close()
                self._turns = self._opened()
            while self._waiting and self._may_begin(self._player.busy) and not self._player.ready():
                self._begin(self._waiting.popleft())
            settled = self._player.advance(seconds)
        done = []
        for episode in settled:
            unit = self._unit_of.pop(episode.number)
            unit.settled += 1
            if unit.settled == len(unit.episodes):
                done.append((unit.number, self._handed_over(unit)))
        return done

    def _begin(self, unit: _Unit) -> None:
        starts, agents = self.source.starts(unit.rows), self.source.turn_settings().agents
        unit.episodes = [Episode(self._begun + i, start, agents) for i, start in enumerate(starts)]
        self._begun += len(starts)
        self._unit_of.update((episode.number, unit) for episode in unit.episodes)
        self._player.begin(unit.episodes)

    def _handed_over(self, unit: _Unit) -> ScoredSamples:
        for number, episode in enumerate(unit.episodes):  # in play, numbers tell apart the episodes of all units
            episode.number = number
        return self.source.scored_episodes(unit.rows, unit.episodes, exact=unit.exact)

    def _sample(self, episodes: Sequence[Episode], budget: int) -> NextTurns:
        turns = self._turns(episodes, budget)
        for episode in episodes:
            unit = self._unit_of[episode.number]
            unit.exact = unit.exact and turns.exact
        return turns

    def _opened(self) -> TurnSampling:
        return TurnSampling(self.source.sampler, self.source.turn_settings(), self._session)
