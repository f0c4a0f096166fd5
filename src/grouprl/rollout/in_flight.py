"""Units of requests whose episodes are in play at the same time: a slow one holds up neither its unit nor the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from grouprl.core.stopwatch import Stopwatch
from grouprl.protocols import RunSampler
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples
from grouprl.rollout.episode import Episode
from grouprl.rollout.episode_scheduler import Player
from grouprl.rollout.episode_table import EpisodeTable
from grouprl.rollout.episodes import Start, TurnSampling, TurnSettings
from grouprl.rollout.row_settings import Rows, rows_of


@dataclass
class _Unit:
    """Episodes that are handed over together."""

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
        """Return what plays turns on the source's stage."""

    def starts(self, rows: Rows) -> list[Start]:
        """Return the episodes that rows are."""

    def turn_settings(self) -> TurnSettings:
        """Return how turns are sampled."""

    def scored_episodes(self, rows: Rows, played: Sequence[Episode], *, exact: bool) -> ScoredSamples:
        """Return the scored rows of episodes that are over."""


class InFlightEpisodes:
    """Plays the episodes of many units, each to be handed over whole.

    A unit begins when no episode of those before it can act: while the decoder has work, nothing is sampled earlier
    than it has to be. Episodes of a unit are laid out in the order of its requests, whoever was quick.

    Args:
        source: whose task is played, and which scores.
        fresh: called between batches; returns whether the weights are others than before, so that keys and values
            of what was written are to be computed anew. Units that wait begin with the weights as they are then.
        may_begin: whether a unit may begin now, given whether others are in play.
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
        """Whether there are units that have not been handed over."""
        return bool(self._waiting or self._unit_of)

    def request(self, number: int, requests: Sequence[RolloutRequest]) -> None:
        """Take over unit `number`."""
        self._waiting.append(_Unit(number, rows_of(requests)))

    def advance(self, seconds: float) -> list[tuple[int, ScoredSamples]]:
        """Let all episodes act that can, waiting at most `seconds` for one; returns the units that are done."""
        with self.source.watch("rollout"):
            if self._fresh(self._player.busy):
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
        for number, episode in enumerate(unit.episodes):
            episode.number = number
        return self.source.scored_episodes(unit.rows, unit.episodes, exact=unit.exact)

    def _sample(self, episodes: Sequence[Episode], budget: int) -> Rollout:
        sampled = self._turns(episodes, budget)
        for episode in episodes:
            unit = self._unit_of[episode.number]
            unit.exact = unit.exact and sampled.exact
        return sampled

    def _opened(self) -> TurnSampling:
        return TurnSampling(self.source.sampler, self.source.turn_settings(), self._session)
