"""Units of requests whose episodes are in play at the same time: a slow one holds up neither its unit nor the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples
from grouprl.rollout.collector import Collector, Rows
from grouprl.rollout.episode import Episode
from grouprl.rollout.episode_table import EpisodeLimits, EpisodeTable
from grouprl.rollout.episodes import TurnSampling, laid_out, score_type
from grouprl.rollout.player import Player


@dataclass
class _Unit:
    """Episodes that are handed over together."""

    number: int
    rows: Rows
    episodes: list[Episode] = field(default_factory=list)
    settled: int = 0
    exact: bool = True
    """Whether every turn so far was sampled with exact log-probs."""


class EpisodeFlow:
    """Plays the episodes of many units, each to be handed over whole.

    A unit begins when no episode of those before it can act: while the decoder has work, nothing is sampled earlier
    than it has to be. Episodes of a unit are laid out in the order of its requests, whoever was quick.

    Args:
        collector: whose task is played, and which scores.
        fresh: called between batches; returns whether the weights are others than before, so that keys and values
            of what was written are to be computed anew. Units that wait begin with the weights as they are then.
        may_begin: whether a unit may begin now, given whether others are in play.
    """

    def __init__(self, collector: Collector, fresh: Callable[[bool], bool], may_begin: Callable[[bool], bool]) -> None:
        assert collector.stage is not None
        policy = collector.policy
        limits = EpisodeLimits(policy.max_positions, collector.task.max_turns, collector.max_new_tokens)
        table = EpisodeTable(policy, collector.stage, collector.config.sampling.history, limits)
        self.collector, self._fresh, self._may_begin = collector, fresh, may_begin
        self._player = Player(table, self._sample)
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
        rows = [(request, request.first + i) for request in requests for i in range(request.completions)]
        self._waiting.append(_Unit(number, rows))

    def advance(self, seconds: float) -> list[tuple[int, ScoredSamples]]:
        """Let all episodes act that can, waiting at most `seconds` for one; returns the units that are done."""
        with self.collector.watch("rollout"):
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
        agents = self.collector.task.agents
        starts = self.collector.starts(unit.rows)
        unit.episodes = [Episode(self._begun + i, start, agents) for i, start in enumerate(starts)]
        self._begun += len(starts)
        self._unit_of.update((episode.number, unit) for episode in unit.episodes)
        self._player.begin(unit.episodes)

    def _handed_over(self, unit: _Unit) -> ScoredSamples:
        for number, episode in enumerate(unit.episodes):
            episode.number = number
        policy = self.collector.policy
        episodes = laid_out(list(policy.eos_ids[:1]), score_type(policy), unit.episodes, exact=unit.exact)
        return self.collector.played(unit.rows, episodes, self.collector.foreign(unit.rows), count_failures=False)

    def _sample(self, episodes: Sequence[Episode], budget: int) -> Rollout:
        sampled = self._turns(episodes, budget)
        for episode in episodes:
            unit = self._unit_of[episode.number]
            unit.exact = unit.exact and sampled.exact
        return sampled

    def _opened(self) -> TurnSampling:
        return TurnSampling(self.collector.sampler, self.collector.turn_settings(), self._session)
