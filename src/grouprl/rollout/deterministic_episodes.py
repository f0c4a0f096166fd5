"""Episodes whose numbers are bitwise reproducible, however fast their environments are.

All running episodes are decoded together, turn by turn, so that the composition of a batch, and with it the last bit of
log-probs, depends on the episodes alone. While some environments keep a round waiting, drafts of the other episodes run
ahead: they sample the turns that the next rounds will most likely sample (the same seeds in a different batch) and act
    them out, so that the environments have answered by the time the rounds get there. A round uses such an answer if
    its own action equals the drafted one, which it does except for very rare rounding; otherwise the environment is
    replaced and replays the actions. Drafts therefore only change the time that it takes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from grouprl.rewards.contract import Failure
from grouprl.rollout.episode import Episode
from grouprl.rollout.episode_scheduler import Decode, Settling, given_turns
from grouprl.rollout.episode_table import EpisodeTable

PATIENCE = 0.05
"""Seconds for which a round waits before the other episodes are drafted; the duration of two rounds, if that is
longer.
"""


@dataclass(eq=False)
class _Line:
    """An episode, the actions and answers of its environment, and the draft that runs ahead of it."""

    episode: Episode
    number: int
    """Number of its environment in the pool."""
    acts: list[str] = field(default_factory=list)
    answers: list[object] = field(default_factory=list)
    called: bool = True
    """Whether the environment still has to answer."""
    waits: bool = True
    """Whether the episode waits for that answer."""
    draft: Episode | None = None

    @property
    def drafting(self) -> bool:
        """True if the draft of this episode can act."""
        return self.draft is not None and self.draft.alive and not self.called


class LockstepRounds:
    """Plays `episodes` to their ends. `decode` samples the turns that count, `draft` those that run ahead."""

    def __init__(self, table: EpisodeTable, decode: Decode, draft: Decode, episodes: Sequence[Episode]) -> None:
        self.table, self.stage, self.decode, self.draft = table, table.stage, decode, draft
        self.lines = [_Line(episode, episode.number) for episode in episodes]
        self._by_number = {line.number: line for line in self.lines}
        self._numbers = itertools.count(len(episodes))
        self._settling = Settling(table.stage)
        self._gone: dict[int, str] = {}
        """Expected answers of environments that were given up."""
        self._patience, self._blocked_since = PATIENCE, time.monotonic()

    def play(self) -> None:
        """Play until every episode is settled."""
        self.stage.send("reset", [(e.number, (e.start.example, e.start.seed)) for e in self._episodes(self.lines)])
        self._blocked_since = time.monotonic()
        while True:
            if any(line.waits for line in self.lines if line.episode.alive):
                self._wait()
                continue
            living = self.table.room(line.episode for line in self.lines if line.episode.alive)
            self._settle()
            if not living:
                break
            self._round(living)
        while self._gone or not all(line.episode.settled for line in self.lines):
            self._hear(None)

    @staticmethod
    def _episodes(lines: Sequence[_Line]) -> list[Episode]:
        return [line.episode for line in lines]

    # ------------------------------------------------------------------------------------------ the rounds that count

    def _round(self, living: dict[int, list[Episode]]) -> None:
        """Let every running episode act once; if some still have turns of a prefix, only those."""
        begun = time.monotonic()
        if led := [episode for rows in living.values() for episode in rows if episode.led is not None]:
            self._take(led, self.table.act(led, given_turns(led)))
        else:
            for budget, rows in living.items():
                self._take(rows, self.table.act(rows, self.decode(rows, budget)))
        self._blocked_since = time.monotonic()
        self._patience = max(PATIENCE, 2 * (self._blocked_since - begun))

    def _take(self, rows: Sequence[Episode], texts: Sequence[str]) -> None:
        """Pass actions to the environments, unless a draft has already done so."""
        known: list[tuple[Episode, object]] = []
        for episode, text in zip(rows, texts, strict=True):
            line, turn = self._line_of(episode), len(episode.turns) - 1
            if turn < len(line.acts) and line.acts[turn] != text:
                self._bring_back(line, turn)
            if turn == len(line.acts):
                line.draft = None
                self._call(line, text)
            line.waits = turn >= len(line.answers)
            if not line.waits:
                known.append((episode, line.answers[turn]))
        self.table.see(known)

    def _line_of(self, episode: Episode) -> _Line:
        return self.lines[episode.number]

    def _call(self, line: _Line, text: str) -> None:
        line.acts.append(text)
        line.called = True
        self.stage.send("step", [(line.number, (text,))])

    def _bring_back(self, line: _Line, turn: int) -> None:
        """Give an episode whose draft differs a fresh environment, and replay the first `turn` actions in it."""
        self._by_number.pop(line.number)
        if line.called:
            self._gone[line.number] = "step"
        else:
            self.stage.call("close", [(line.number, ())])
        line.number = next(self._numbers)
        self._by_number[line.number] = line
        line.draft, line.called, line.acts, line.answers = None, False, line.acts[:turn], line.answers[:turn]
        start = line.episode.start
        answer: object = self.stage.call("reset", [(line.number, (start.example, start.seed))])[0]
        for text in line.acts:
            if not isinstance(answer, Failure):  # later calls after a failure fail as well, when the episode acts
                answer = self.stage.call("step", [(line.number, (text,))])[0]

    def _settle(self) -> None:
        for line in self.lines:
            episode = line.episode
            if not episode.alive and not episode.settled and line.number in self._by_number and not line.called:
                self._by_number.pop(line.number)
                self._settling.begin(episode, line.number)

    # --------------------------------------------------------------------------------------------- drafts in the
    # meantime

    def _wait(self) -> None:
        """Wait for the environments that the round needs; if that takes long, let drafts run ahead."""
        drafting = any(line.draft is not None for line in self.lines)
        left = 0.0 if drafting else self._blocked_since + self._patience - time.monotonic()
        if self._hear(max(0.0, left)) or left > 0:
            return
        for line in self.lines:
            if line.draft is None and line.episode.alive and not line.waits:
                line.draft = line.episode.branch()
        if not self._draft([line for line in self.lines if line.drafting]):
            self._hear(None)

    def _draft(self, lines: Sequence[_Line]) -> bool:
        """Let drafts act; return whether any could."""
        drafts = {id(line.draft): line for line in lines if line.draft is not None}
        living = self.table.room(line.draft for line in lines if line.draft is not None)
        for budget, rows in living.items():
            led = [episode for episode in rows if episode.led is not None]
            own = [episode for episode in rows if episode.led is None]
            for some, sampled in ((led, given_turns), (own, lambda each, budget=budget: self.draft(each, budget))):
                texts = self.table.act(some, sampled(some)) if some else []
                for episode, text in zip(some, texts, strict=True):
                    self._call(drafts[id(episode)], text)
        return bool(living)

    def _hear(self, seconds: float | None) -> bool:
        """Receive the answers of environments; return whether there were any."""
        seen: list[tuple[Episode, object]] = []
        found = self.stage.receive(seconds)
        for number, answer in found:
            if number in self._settling:
                self._settling.hear(number, answer)
            elif number in self._gone:
                if self._gone.pop(number) != "close":
                    self._gone[number] = "close"
                    self.stage.send("close", [(number, ())])
            else:
                seen += self._answered(self._by_number[number], answer)
        self.table.see(seen)
        self._settle()
        return bool(found)

    def _answered(self, line: _Line, answer: object) -> list[tuple[Episode, object]]:
        """Note an answer; return who gets it: the episode if it waits for the answer, and its draft."""
        line.called = False
        if line.acts:
            line.answers.append(answer)
        turns = len(line.acts)
        seen: list[tuple[Episode, object]] = []
        if line.waits and len(line.episode.turns) == turns:
            line.waits = False
            seen.append((line.episode, answer))
        if line.draft is not None and line.draft.alive and len(line.draft.turns) == turns:
            seen.append((line.draft, answer))
        return seen
