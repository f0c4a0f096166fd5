"""Adapter to TextArena."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError, MissingExtra, suggest
from grouprl.core.json_types import JsonObject
from grouprl.envs.adapters.textarena import TextArenaEnvironment, players_of
from grouprl.envs.success import Success
from grouprl.tasks.environments import SeededTask
from grouprl.tasks.options import BoundedTurns
from grouprl.tasks.registry import register_task

if TYPE_CHECKING:
    import textarena

MOST_PLAYERS = 6


@register_task("textarena", argument="id")
class TextArena(BoundedTurns, SeededTask):
    """Play a TextArena game alone or against yourself: textarena:TicTacToe-v0.

    A prompt is the seed of a game. Several players are the agents '0', '1', … of one policy, each with its own context;
    rewards come at the end of the game. Demonstrations are random choices among the texts that a game shows in
    brackets, which show only how actions are spelt.
    """

    id: str = Field(min_length=1, description="what textarena.make takes; its wrappers of observations are left out")
    config: JsonObject = Field(default_factory=dict, description="further arguments of textarena.make")
    players: int | None = Field(
        None, ge=1, le=MOST_PLAYERS, description="the number of players; none: the smallest possible"
    )
    turns: int = Field(40, ge=1, description="the largest number of turns of a game, of all players together")
    tokens: int = Field(16, ge=1, description="token budget of one turn, its end included")
    prompt: str | None = Field(None, description="text in place of the game's own explanation")
    actions: tuple[str, ...] = Field(
        (), description="the actions that demonstrations choose from; none: the texts in brackets"
    )
    success: float | None = Field(None, description="the lowest outcome of a correct player; none: any above 0")
    boards: bool = Field(False, description="whether the acting player and the board form the key of the state")

    _players: int = PrivateAttr()

    needs_clock: ClassVar[bool] = True
    """True: the game is not part of this package."""

    def model_post_init(self, context: object) -> None:
        """Start a game once, to find the number of players.

        Raises:
            MissingExtra: if textarena is not installed.
            InputError: if there is no such game, or it cannot start with this number of players.
        """
        try:
            found = self.players or players_of(self._make, MOST_PLAYERS)
        except OSError as error:
            raise InputError(f"TextArena's '{self.id}' does not run here: {error}") from error
        if found is None:
            raise InputError(f"TextArena's '{self.id}' did not begin", f"1 to {MOST_PLAYERS} players were tried")
        self._players = found
        try:
            self._begin(self.example("train", 0))
        except (AssertionError, ValueError, KeyError, IndexError) as error:
            raise InputError(
                f"TextArena's '{self.id}' does not begin with {found} player{'s' * (found != 1)}", str(error)
            ) from error

    def _make(self) -> textarena.Env:
        try:
            import textarena
            from textarena.envs.registration import ENV_REGISTRY
        except ImportError as error:
            raise MissingExtra("textarena", "agents", f"The task 'textarena:{self.id}'") from error
        if self.id not in ENV_REGISTRY:
            raise InputError(f"TextArena has no game '{self.id}'", remedy=suggest(self.id, ENV_REGISTRY))
        try:
            return textarena.make(self.id, **self.config)
        except (TypeError, ValueError) as error:
            raise InputError(f"TextArena refuses '{self.id}' with {self.config}", str(error)) from error
        except (ImportError, SyntaxError, OSError) as error:
            raise InputError(f"TextArena's '{self.id}' does not run here: {error}") from error
        except LookupError as error:  # an error of nltk, with a page of advice
            lacking = next((line.strip() for line in str(error).splitlines() if "not found" in line), str(error))
            raise InputError(
                f"TextArena's '{self.id}' lacks its words: {lacking}", remedy="Fetch them with nltk.download."
            ) from error

    @property
    def name(self) -> str:
        """The game's name after "textarena:"."""
        return f"textarena:{self.id}"

    @property
    def description(self) -> str:
        """A sentence with the game and the number of players."""
        return f"TextArena's {self.id}, {self._players} player{'s' * (self._players != 1)}."

    @property
    def agents(self) -> tuple[str, ...]:
        """The players' numbers; '' for a single one."""
        return tuple(map(str, range(self._players))) if self._players > 1 else ("",)

    def environment(self) -> TextArenaEnvironment:
        """Return a fresh game."""
        return TextArenaEnvironment(
            self._make,
            self._players,
            max_turns=self.turns,
            prompt=self.prompt,
            actions=self.actions,
            boards=self.boards,
            success=Success.of(self.success),
        )
