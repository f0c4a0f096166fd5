"""Adapter to TextWorld: games that it generates, and game files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError, suggest
from grouprl.core.hashing import content_number, generator
from grouprl.core.json_types import JsonObject
from grouprl.envs.adapters.textgame import Choices, TextGame
from grouprl.envs.adapters.textworld_games import (
    GENERATED,
    brings_commands,
    games_at,
    kinds,
    made_game,
    started,
    textworld,
)
from grouprl.records.examples import Example, Split
from grouprl.rewards import KnownExample, Reward
from grouprl.tasks.environments import EpisodeReward
from grouprl.tasks.options import BoundedTurns, KnownCharacters, OptionTask
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import check_request, split_of, without_folder

if TYPE_CHECKING:
    from textworld import Environment as GameSession

FOLDER = "~/.cache/grouprl/textworld"


class TextGameTask(BoundedTurns, KnownCharacters, OptionTask):
    """The base of tasks with text games: games as prompts, and the limits of an episode.

    A subclass provides the games of each split (`file`), and starts one (`start`).
    """

    choices: Choices = Field(
        "listed", description="whether admissible commands are shown; numbered: an action is a number"
    )
    invalid: float = Field(0.0, description="reward of a command that is not admissible")
    turns: int = Field(50, ge=1, description="the largest number of actions of an episode")
    tokens: int = Field(16, ge=1, description="token budget of one turn, its end included")
    characters: str = Field("", description="the characters that texts and actions are made of, if known")

    needs_clock: ClassVar[bool] = True
    """True: the interpreter of the games is not part of this package."""

    @property
    def listed(self) -> bool:
        """True if the games know their admissible commands."""
        return True

    def file(self, split: Split, index: int) -> Path:
        """Return the file of a game."""
        raise NotImplementedError

    def start(self, file: Path) -> GameSession:
        """Return the environment of a game."""
        return started(file)

    @property
    def reward(self) -> Reward:
        """The sum of the rewards for the actions, one per line."""
        return EpisodeReward(self)

    def example(self, split: Split, index: int) -> Example:
        """Return game `index` of a split; its prompt is the first text of the game.

        Raises:
            InputError: on an unknown split or an index beyond the size.
        """
        check_request(self.name, split, index, self.size(split))
        file = self.file(split, index)
        columns = {"game": str(file), "seed": content_number(file.name) % 2**31}
        bare = Example(f"{self.name}/{split}/{index}", "", columns)
        return Example(bare.id, _first_text(self.environment(), bare), columns)

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return nothing, because no right actions are known."""
        return ()

    def environment(self) -> TextGame:
        """Return a fresh game."""
        choices = self.choices if self.listed else "none"
        return TextGame(self._start_of, max_turns=self.turns, choices=choices, invalid=self.invalid, listed=self.listed)

    def _start_of(self, example: Example) -> object:
        return self.start(Path(example.columns["game"]))


def _first_text(game: TextGame, example: Example) -> str:
    try:
        return game.reset(example, example.columns["seed"]).text
    finally:
        game.close()


@register_task("textworld", argument="game")
class TextWorld(TextGameTask):
    """Play text games that TextWorld generates, textworld:generated, or a game file or a folder of them.

    Games to train on and held-out ones are made from different seeds. TextWorld's challenges are used by name:
    textworld:coin_collector. The reward is the game's score, and a won game is correct.
    """

    game: str = Field(GENERATED, min_length=1, description="generated, a challenge of TextWorld, a file or a folder")
    rooms: int = Field(1, ge=1, description="rooms of a generated game")
    objects: int = Field(4, ge=1, description="objects of a generated game")
    quest_length: int = Field(2, ge=1, description="commands that a quest of a generated game takes")
    quests: int = Field(1, ge=1, description="quests of a generated game that do not build on each other")
    settings: JsonObject = Field(default_factory=dict, description="settings of a challenge, such as {level: 5}")
    games: int = Field(32, ge=1, description="number of different games to train on, made when first needed")
    held_out: int = Field(8, ge=1, description="number of different games to evaluate on")
    folder: str = Field(FOLDER, description="the folder in which generated games are kept")
    seed: int = Field(0, description="which stream of games is sampled")

    _files: dict[str, tuple[Path, ...]] = PrivateAttr(default_factory=dict)
    _listed: bool = PrivateAttr(True)

    def model_post_init(self, context: object) -> None:
        """Find the games, or check that they can be made.

        Raises:
            MissingExtra: if textworld is not installed.
            InputError: if there is no such game.
        """
        textworld(f"The task '{self.name}'")
        known = {GENERATED, *kinds()}
        if self.game in known:
            if self.settings and self.game == GENERATED:
                raise InputError("Generated games have no settings", "they have rooms, objects and quests")
            self.file("train", 0)
            return
        if not any(sign in self.game for sign in (os.sep, ".")) and not Path(self.game).exists():
            raise InputError(f"TextWorld has no game '{self.game}'", remedy=suggest(self.game, known))
        self._files = _split(games_at(self.game))
        self._listed = all(brings_commands(file) for files in self._files.values() for file in files)
        if self.choices == "numbered" and not self._listed:
            raise InputError(
                f"The commands of '{self.game}' cannot be numbered",
                "its admissible commands are not known: only a game of TextWorld with a .json next to it lists them",
                "Take choices: none.",
            )

    def options(self) -> JsonObject:
        """Return every option except the folder of generated games."""
        return {name: value for name, value in super().options().items() if name != "folder"}

    def file(self, split: Split, index: int) -> Path:
        """Return the file of a game, made if it does not exist yet."""
        if self._files:
            return self._files[split][index]
        sizes = {"rooms": self.rooms, "objects": self.objects, "quest_length": self.quest_length, "quests": self.quests}
        sizes = sizes if self.game == GENERATED else {}
        rng = generator(self.seed, "textworld", split, index)
        seed = next(each for each in iter(lambda: rng.randrange(2**31), None) if split_of(str(each)) == split)
        return made_game(self.game, sizes, self.settings, seed, Path(self.folder).expanduser())

    @property
    def name(self) -> str:
        """The game after "textworld:"."""
        return f"textworld:{without_folder(self.game)}"

    @property
    def description(self) -> str:
        """A sentence that describes the games."""
        sizes = ((self.rooms, "room"), (self.objects, "object"))
        made = ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in sizes)
        return (
            f"TextWorld's game {self.game}."
            if self.game != GENERATED
            else f"Games of TextWorld's: {made}, quests of {self.quest_length}."
        )

    def size(self, split: Split) -> int:
        """Return how many games a split has."""
        check_request(self.name, split, 0, None)
        if self._files:
            return len(self._files[split])
        return self.games if split == "train" else self.held_out

    @property
    def listed(self) -> bool:
        """True if the games know their admissible commands."""
        return self._listed


def _split(files: tuple[Path, ...]) -> dict[str, tuple[Path, ...]]:
    """Return the games to train on and to evaluate on: one in ten is held out, at least one; a single game is used for
    both.
    """
    if len(files) == 1:
        return {"train": files, "eval": files}
    order = sorted(files, key=lambda file: content_number(file.name))
    apart = set(order[: max(1, round(len(files) / 10))])
    return {"train": tuple(f for f in files if f not in apart), "eval": tuple(f for f in files if f in apart)}
