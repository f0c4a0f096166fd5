"""Text games: an episode of any game that TextWorld can start, including ALFWorld's."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from grouprl.core.errors import InputError
from grouprl.core.hashing import digest
from grouprl.envs.environment import Observation, Step

if TYPE_CHECKING:
    import textworld

    from grouprl.records.examples import Example

Choices = Literal["none", "listed", "numbered"]
"""Whether the admissible commands are shown, and whether an action is one of them or its number."""
PROMPT = ">"
STATUS = re.compile(r"\n>[^\n]*\Z")
"""The line in which an interpreter of stories waits for input, with the status bar after it."""
BLANKS = re.compile(r"\n\s*\n\s*")
FILES = frozenset({"save", "restore", "script", "noscript", "unscript", "transcrip"})
"""Commands that write files or read those of other episodes; games read nine letters of a word."""
SLIP = 0.3
"""The chance that a demonstration does something else that is admissible."""


class TextGame:
    """An episode of a text game.

    An observation is the text of the game, its objective first, then the admissible commands, if they are shown, and
    '>'. An action is a command or, if commands are numbered, its number. A command that is not admissible is invalid:
    it costs a turn, and the game says why. Each point earns 1 / (maximum score of the game), and reaching the game's
    goal is `correct`.
    """

    def __init__(
        self,
        start: Callable[[Example], object],
        *,
        max_turns: int,
        choices: Choices = "none",
        invalid: float = 0.0,
        listed: bool = True,
    ) -> None:
        """Prepare an episode.

        Args:
            start: returns the TextWorld environment of an example, with its game loaded, not yet reset.
            max_turns: actions after which the episode is cut off.
            choices: whether the admissible commands are shown.
            invalid: reward of a command that is not admissible.
            listed: whether the game knows its admissible commands.
        """
        if choices != "none" and not listed:
            raise InputError("choices are requested of a game that does not list its commands")
        self._start, self._max_turns, self._choices = start, max_turns, choices
        self._invalid, self._listed = invalid, listed
        self._env: textworld.Environment = None
        self._phase, self._turns, self._score, self._won = "new", 0, 0.0, False
        self._admissible: tuple[str, ...] = ()
        self._plan: tuple[str, ...] = ()

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the game. Raises InputError if the object was used before."""
        if self._phase != "new":
            raise self._misuse("reset() was called twice")
        self._env, self._phase = self._start(example), "playing"
        if callable(sown := getattr(self._env, "seed", None)):
            sown(seed % 2**31)
        return self._observe(self._env.reset(), first=True)

    def step(self, action: str) -> Step:
        """Apply an action. Raises InputError before `reset` and after the end."""
        if self._phase != "playing":
            raise self._misuse(f"step({action!r}) was called when no game was under way")
        self._turns += 1
        command = self._command(action)
        if command is None:
            late = self._late(False)
            return Step(self._shown("That is none of the commands."), self._invalid, truncated=late, valid=False)
        valid = not self._listed or command in self._admissible
        state, points, done = self._env.step(command)
        gained, self._score = float(points) - self._score, float(points)
        late = self._late(bool(done))
        reward = gained / max(1.0, self._most) + (0.0 if valid else self._invalid)
        return Step(self._observe(state), reward, terminated=bool(done), truncated=late, valid=valid)

    def score(self) -> dict[str, float]:
        """Return `correct`: whether the game was won."""
        return {"correct": float(self._won)}

    def close(self) -> None:
        """Close the game."""
        if self._env is not None:
            self._env.close()
        self._env, self._phase = None, "closed"

    def demonstrate(self, rng: random.Random) -> str:
        """Return the next command of the game's own plan, or with a certain chance another admissible one."""
        commands = self._admissible or ("look",)
        command = rng.choice(commands) if rng.random() < SLIP or not self._plan else self._plan[0]
        if self._choices != "numbered":
            return command
        return str(commands.index(command) if command in commands else rng.randrange(len(commands)))

    def _command(self, action: str) -> str | None:
        """Return the command that an action means; None for a number without a command, and for commands that use
        files.
        """
        # the interpreter takes text after a backslash as orders to itself, and keeps waiting for a command
        said = " ".join("".join(c if c.isprintable() and c != "\\" else " " for c in action).split())
        if self._choices != "numbered":
            orders = FILES & {word[:9] for word in re.findall("[a-z]+", said.lower())}
            return None if orders and said not in self._admissible else said
        if not (said.isascii() and said.isdigit() and len(said) < 6) or int(said) >= len(self._admissible):
            return None
        return self._admissible[int(said)]

    def _late(self, done: bool) -> bool:
        late = self._turns >= self._max_turns and not done
        if done or late:
            self._phase = "ended"
        return late

    def _observe(self, state: textworld.GameState, first: bool = False) -> Observation:
        self._won = bool(state.get("won"))
        self._most = float(state.get("max_score") or 1)
        self._admissible = tuple(state.get("admissible_commands") or ())
        self._plan = tuple(state.get("policy_commands") or ())
        facts = state.get("_facts") or state.get("facts")
        self._state = digest(sorted(map(str, facts))) if facts else ""
        return self._shown(_opening(state) if first else cleaned(state.get("feedback") or ""))

    def _shown(self, text: str) -> Observation:
        playing = self._phase == "playing"
        numbered = self._choices == "numbered"
        lines = [f"{i} {c}" if numbered else c for i, c in enumerate(self._admissible)]
        shown = [text, *lines] if playing and self._choices != "none" else [text]
        legal = self._admissible if playing and self._listed else ()
        if numbered:
            legal = tuple(str(i) for i in range(len(legal)))
        return Observation("\n".join([*shown, PROMPT]), self._state if playing else "", legal=legal)

    def _misuse(self, what: str) -> InputError:
        return InputError(what, "an object is one game: reset, step until the end, score, close")


def cleaned(text: str) -> str:
    """Return a game's text without the line in which it waits for input, and without repeated empty lines."""
    return BLANKS.sub("\n\n", STATUS.sub("", text.rstrip(" "))).strip()


def _opening(state: textworld.GameState) -> str:
    """Return the first text shown: objective and room if they are known, otherwise everything that the game says."""
    parts = [state.get("objective"), state.get("description")]
    return "\n\n".join(cleaned(part) for part in parts if part) if all(parts) else cleaned(state.get("feedback") or "")


def requested_facts(names: Sequence[str] = ()) -> dict[str, bool]:
    """Return the facts to request from TextWorld (`textworld.EnvInfos`), including `names`."""
    facts = ("admissible_commands", "score", "max_score", "won", "lost", "objective", "description", "facts")
    return dict.fromkeys((*facts, *names), True)
