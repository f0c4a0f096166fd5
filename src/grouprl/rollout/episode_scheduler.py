"""Episodes that advance on their own: whoever has an observation acts in the next batch, and nobody waits for others.

Which episodes are decoded together depends on who was quick, and with it the last bits of log-probs. Where a run has
to be repeated to the bit, `grouprl.rollout.deterministic_episodes` plays instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from grouprl.envs.environment_pool import Stage
from grouprl.records.rollout import Rollout
from grouprl.records.tokens import Tokens
from grouprl.rewards.contract import Failure
from grouprl.rollout.episode import Episode
from grouprl.rollout.episode_table import EpisodeTable

Decode = Callable[[Sequence[Episode], int], Rollout]
"""(episodes, tokens of a turn) -> their next turns."""


class Settling:
    """Episodes that are over: their scores are requested, then their environments are released."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._under_way: dict[int, tuple[str, Episode]] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, number: int) -> bool:
        return number in self._under_way

    def begin(self, episode: Episode, number: int) -> None:
        """Settle an episode whose environment is number `number` of the stage."""
        self._send("score" if episode.failure is None else "close", episode, number)

    def hear(self, number: int, answer: object) -> Episode | None:
        """Take the answer of an environment; returns its episode once it is settled."""
        method, episode = self._under_way.pop(number)
        if method == "score":
            episode.record_scores(answer)
            self._send("close", episode, number)
            return None
        episode.settled = True
        if isinstance(answer, Failure):
            episode.fail_as(answer)
        return episode

    def _send(self, method: str, episode: Episode, number: int) -> None:
        self._under_way[number] = (method, episode)
        self.stage.send(method, [(number, ())])


class Player:
    """Plays episodes of different beginnings at the same time; more may begin while others are in play."""

    def __init__(self, table: EpisodeTable, decode: Decode) -> None:
        self.table, self.stage, self.decode = table, table.stage, decode
        self._acting: dict[int, Episode] = {}
        """Those whose environments have been called."""
        self._ready: dict[int, Episode] = {}
        """Those that have an observation."""
        self._settling = Settling(table.stage)
        self._done: list[Episode] = []

    @property
    def busy(self) -> bool:
        """Whether episodes are in play."""
        return bool(self._acting or self._ready or len(self._settling))

    def ready(self) -> bool:
        """Whether an episode can act at once."""
        if not self._ready:
            self._hear(0.0)
        return bool(self._ready)

    def begin(self, episodes: Sequence[Episode]) -> None:
        """Begin episodes; their numbers differ from those of all that are in play."""
        self._acting.update((episode.number, episode) for episode in episodes)
        self.stage.send("reset", [(e.number, (e.start.example, e.start.seed)) for e in episodes])

    def advance(self, seconds: float | None = None) -> list[Episode]:
        """Let all act that can; where nobody can, wait at most `seconds` for an environment (None: as long as it
        takes). Returns the episodes that are settled since the last time."""
        self._hear(0.0 if self._ready else seconds)
        ready, self._ready = [episode for _, episode in sorted(self._ready.items())], {}
        led = [episode for episode in ready if episode.led is not None]
        living = self.table.room(ready)
        for episode in ready:
            if not episode.alive:
                self._settling.begin(episode, episode.number)
        for budget, rows in living.items():
            if given := [episode for episode in rows if episode in led]:
                self._act(given, given_turns(given))
            if own := [episode for episode in rows if episode not in led]:
                self._act(own, self.decode(own, budget))
        done, self._done = self._done, []
        return done

    def _act(self, rows: Sequence[Episode], sampled: Rollout) -> None:
        texts = self.table.act(rows, sampled)
        self._acting.update((episode.number, episode) for episode in rows)
        self.stage.send("step", [(e.number, (text,)) for e, text in zip(rows, texts, strict=True)])

    def _hear(self, seconds: float | None) -> None:
        answered: list[tuple[Episode, object]] = []
        for number, answer in self.stage.receive(seconds):
            if number in self._settling:
                episode = self._settling.hear(number, answer)
                self._done += [episode] if episode is not None else []
            else:
                answered.append((self._acting.pop(number), answer))
        self.table.see(answered)
        for episode, _ in answered:
            if episode.alive:
                self._ready[episode.number] = episode
            else:
                self._settling.begin(episode, episode.number)


def given_turns(episodes: Sequence[Episode]) -> Rollout:
    """Return the next turns of episodes whose prefix has them."""
    return written([list(episode.led or ()) for episode in episodes])


def written(ids: list[list[int]]) -> Rollout:
    """Return turns that no policy sampled: log-probs are 0."""
    zeros_bt = torch.zeros(len(ids), max(map(len, ids), default=0))
    return Rollout(Tokens(((0,),) * len(ids), tuple(map(tuple, ids))), zeros_bt, zeros_bt, torch.zeros(len(ids)))
