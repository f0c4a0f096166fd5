"""TextArena's games for one or more players; each player is an agent with its own context."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.envs.environment import Observation, Step
from grouprl.envs.success import End, Success

if TYPE_CHECKING:
    import textarena

    from grouprl.records.examples import Example

BRACKETED = re.compile(r"\[[^\[\]\n]{1,40}\]")
"""The form in which TextArena's games write actions."""
LUCK = threading.Lock()
"""The lock held while Python's global generator, which the games use, has the state of one episode."""


class TextArenaEnvironment:
    """An episode of a TextArena game. Player i is the agent 'i'; a single player is the agent ''.

    The game begins with the example's seed, so that completions of a group begin alike. A player is shown everything
    new since its last turn, without its own words. Rewards come at the end only, in `scores`: `outcome` for each player
    as the game gives it, 0 for a game that was cut off. The games draw from Python's global generator, of which each
    episode keeps its own state.
    """

    def __init__(
        self,
        make: Callable[[], object],
        players: int,
        *,
        max_turns: int,
        prompt: str | None = None,
        actions: Sequence[str] = (),
        boards: bool = False,
        success: Success = Success(),  # noqa: B008 (it is frozen)
    ) -> None:
        """Prepare an episode.

        Args:
            make: returns the game, as `textarena.make` does; its wrappers of observations are left out.
            players: the number of players.
            max_turns: turns, of all players together, after which the game is cut off.
            prompt: text in place of the game's own explanation.
            actions: the actions that demonstrations choose from; (): those in brackets in the latest
                observation.
            boards: whether states have a key, made of the acting player and the board.
            success: the lowest outcome of a correct player.
        """
        self._make, self.players, self._prompt, self._actions = make, players, prompt, tuple(actions)
        self._boards, self._board, self._success = boards, "", success
        self._max_turns, self._turns = max_turns, 0
        self._phase, self._seen = "new", ""
        self._outcomes: dict[int, float] = {}
        self._over = False

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the game. Raises InputError if the object was used before or the example has no seed."""
        if self._phase != "new":
            raise self._misuse("reset() was called twice")
        if "seed" not in example.columns:
            raise InputError(f"Example '{example.id}' has no column 'seed'", "it says how the game begins")
        begin = int(example.columns["seed"])
        self._luck, self._phase = random.Random(begin).getstate(), "playing"
        with self._own_luck():
            self._game, self._change = unwrapped(self._make())
            self._game.reset(num_players=self.players, seed=begin)
        return self._observe()

    def step(self, action: str) -> Step:
        """Apply an action. Raises InputError before `reset` and after the end."""
        if self._phase != "playing":
            raise self._misuse(f"step({action!r}) was called when no game was under way")
        state = self._game.state
        player = state.current_player_id
        for change in self._change:
            action = change(action)
        with self._own_luck():
            done, _ = self._game.step(action=action)
        failed = bool(state.game_info.get(player, {}).get("invalid_move"))
        valid = not failed and not getattr(state, "error_count", 0)
        self._turns += 1
        late = self._turns >= self._max_turns and not done
        if done or late:
            self._phase = "ended"
        if done:
            self._over = True
            self._outcomes = _numbers(self._game.close()[0] or {})
        return Step(self._observe(), terminated=bool(done), truncated=late, valid=valid)

    def scores(self) -> dict[str, dict[str, float]]:
        """Return for each player its `outcome`, and `correct`, whether that is a success.

        A game that was cut off has no outcome: it counts as 0, and nobody is correct.
        """
        outcomes = {self._name(player): self._outcomes.get(player, 0.0) for player in range(self.players)}
        end: End = "own" if self._over else "none"
        return {name: {"outcome": x, "correct": float(self._success.reached(x, end))} for name, x in outcomes.items()}

    def score(self) -> dict[str, float]:
        """Return the score of the first player."""
        return self.scores()[self._name(0)]

    def close(self) -> None:
        """End the episode, which holds nothing else."""
        self._phase = "closed"

    def demonstrate(self, rng: random.Random) -> str:
        """Return a random action that is configured or in brackets, which shows only how actions are spelt."""
        return rng.choice(self._actions or BRACKETED.findall(self._seen) or ["[0]"])

    def _name(self, player: int) -> str:
        return str(player) if self.players > 1 else ""

    def _observe(self) -> Observation:
        from textarena import ObservationType

        player, messages = self._game.get_observation()
        lines = []
        for sender, text, kind in messages:
            if kind == ObservationType.GAME_BOARD:
                self._board = text
            if kind == ObservationType.PROMPT and self._prompt is not None:
                text = self._prompt
            own = kind == ObservationType.PLAYER_ACTION and sender == player
            if not own and isinstance(text, str):  # some games confuse the sender and the text in echoes of actions
                lines.append(text if sender < 0 else f"Player {sender}: {text}")
        self._seen = "\n".join(line for line in lines if line) + "\n"
        errors = getattr(self._game.state, "error_count", 0)
        key = f"{player}/{errors}/{self._board}" if self._boards else ""
        return Observation(self._seen, key, self._name(player))

    @contextmanager
    def _own_luck(self) -> Iterator[None]:
        """Let the game draw from its own state of the global generator within the block."""
        with LUCK:
            others = random.getstate()
            random.setstate(self._luck)
            try:
                yield
            finally:
                self._luck = random.getstate()
                random.setstate(others)

    def _misuse(self, what: str) -> InputError:
        return InputError(what, "an object is one game: reset, step until the end, score, close")


def _numbers(rewards: Mapping[int | str, float]) -> dict[int, float]:
    """Return rewards by player. Raises RuntimeError if one is not a number, as in games that put the reason there."""
    for player, reward in rewards.items():
        if not isinstance(reward, (int, float)):
            raise RuntimeError(f"the game gave player {player} the reward {reward!r}, not a number")
    return {int(player): float(reward) for player, reward in rewards.items()}


def unwrapped(game: object) -> tuple[textarena.Env, list[Callable[[str], str]]]:
    """Return a game without its wrappers, and the functions of its action wrappers, outermost first."""
    from textarena.core import ActionWrapper, Wrapper

    changes: list[Callable[[str], str]] = []
    while isinstance(game, Wrapper):
        if isinstance(game, ActionWrapper):
            changes.append(game.action)
        game = game.env
    return game, changes


def players_of(make: Callable[[], object], most: int) -> int | None:
    """Return the smallest number of players, up to `most`, with which a game begins; None if it begins with none of
    them.
    """
    for count in range(1, most + 1):
        before = random.getstate()
        game, _ = unwrapped(make())
        try:
            game.reset(num_players=count, seed=0)
            return count
        except (AssertionError, ValueError, KeyError, IndexError):
            continue
        finally:
            random.setstate(before)
    return None
