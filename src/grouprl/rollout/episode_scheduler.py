"""Episodes that advance independently: each episode with an observation acts in the next batch, without waiting for
others.

Which episodes are decoded together depends on the speed of environments, and so do the last bits of log-probs. For runs
that must be bitwise reproducible, use `grouprl.rollout.deterministic_episodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grouprl.envs.environment_pool import Stage
from grouprl.rewards.contract import Failure
from grouprl.rollout.episode import Episode
from grouprl.rollout.episode_table import EpisodeTable, NextTurns

Decode = Callable[[Sequence[Episode], int], NextTurns]
"""Function (episodes, most tokens of a turn) -> the next turns of the episodes."""


class Settling:
    """Settles episodes that are over: requests their scores, then releases their environments."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._under_way: dict[int, tuple[str, Episode]] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, number: int) -> bool:
        return number in self._under_way

    def begin(self, episode: Episode, number: int) -> None:
        """Begin to settle an episode whose environment has the number `number` in the pool."""
        self._send("score" if episode.failure is None else "close", episode, number)

    def hear(self, number: int, answer: object) -> Episode | None:
        """Handle the answer of an environment; return its episode once it is settled."""
        method, episode = self._under_way.pop(number)
        if method == "score":
            episode.record_scores(answer)
            self._send("close", episode, number)
            return None
        episode.settled = True
        if isinstance(answer, Failure):
            episode.close_failed(answer)
        return episode

    def _send(self, method: str, episode: Episode, number: int) -> None:
        self._under_way[number] = (method, episode)
        self.stage.send(method, [(number, ())])


class Player:
    """Plays episodes that began at different times; more may begin while others are in play."""

    def __init__(self, table: EpisodeTable, decode: Decode) -> None:
        self.table, self.stage, self.decode = table, table.stage, decode
        self._acting: dict[int, Episode] = {}
        """Episodes whose environments have been called."""
        self._ready: dict[int, Episode] = {}
        """Episodes that have an observation and can act."""
        self._settling = Settling(table.stage)
        self._done: list[Episode] = []

    @property
    def busy(self) -> bool:
        """True if episodes are in play."""
        return bool(self._acting or self._ready or len(self._settling))

    def ready(self) -> bool:
        """Return whether an episode can act immediately."""
        if not self._ready:
            self._hear(0.0)
        return bool(self._ready)

    def begin(self, episodes: Sequence[Episode]) -> None:
        """Begin episodes; their numbers must differ from those of all episodes in play."""
        self._acting.update((episode.number, episode) for episode in episodes)
        self.stage.send("reset", [(e.number, (e.start.example, e.start.seed)) for e in episodes])

    def advance(self, seconds: float | None = None) -> list[Episode]:
        """Let all episodes act that can; if none can, wait at most `seconds` for an environment (None: without limit).
        Return the episodes settled since the last call.
        """
        self._hear(0.0 if self._ready else seconds)
        # By number, not by arrival: which rows are decoded side by side then depends less on the environments' speed.
        ready, self._ready = [episode for _, episode in sorted(self._ready.items())], {}
        led = [episode for episode in ready if episode.led is not None]
        living = self.table.room(ready)
        for episode in ready:
            if not episode.alive:  # `room` ended it: no turns or no positions are left
                self._settling.begin(episode, episode.number)
        for budget, rows in living.items():
            if given := [episode for episode in rows if episode in led]:
                self._act(given, given_turns(given))
            if own := [episode for episode in rows if episode not in led]:
                self._act(own, self.decode(own, budget))
        done, self._done = self._done, []
        return done

    def _act(self, rows: Sequence[Episode], turns: NextTurns) -> None:
        texts = self.table.act(rows, turns)
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


def given_turns(episodes: Sequence[Episode]) -> NextTurns:
    """Return the next turns of episodes from their prefixes."""
    return NextTurns.written([list(episode.led or ()) for episode in episodes])
