"""Adapter to ALFWorld's text games."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError, MissingExtra, suggest
from grouprl.core.json_types import JsonObject
from grouprl.envs.adapters.textgame import requested_facts
from grouprl.envs.adapters.textworld_games import textworld
from grouprl.records.examples import Split
from grouprl.tasks.adapters.textworld import TextGameTask
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import check_request

if TYPE_CHECKING:
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld import Environment as GameSession

KINDS = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
GAME = "game.tw-pddl"


@register_task("alfworld")
class AlfWorld(TextGameTask):
    """Do household chores in ALFWorld's text games; its data must be installed (alfworld-download).

    Prompts are the games of its split `train`, held-out ones those of `valid_seen` or `valid_unseen`. An episode earns
    1 if the chore is done.
    """

    data: str | None = Field(None, description="folder of its data; none: $ALFWORLD_DATA, or else ~/.cache/alfworld")
    held_out: Literal["valid_seen", "valid_unseen"] = Field(
        "valid_unseen", description="whether held-out games are in rooms like those of training, or in others"
    )
    kinds: tuple[str, ...] = Field(KINDS, min_length=1, description="kinds of chores")
    plans: bool = Field(False, description="whether its planner shows what to do, for demonstrations; it takes time")

    _games: dict[str, tuple[Path, ...]] = PrivateAttr()

    name: ClassVar[str] = "alfworld"
    """The name of the task."""

    def model_post_init(self, context: object) -> None:
        """Find the games.

        Raises:
            MissingExtra: if alfworld is not installed.
            InputError: if its data is missing, or has no game of these kinds.
        """
        textworld("The task 'alfworld'", "alfworld")
        _wrapper()
        for kind in self.kinds:
            if kind not in KINDS:
                raise InputError(f"ALFWorld has no chore '{kind}'", remedy=suggest(kind, KINDS))
        root = Path(self.data or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld").expanduser()
        self._games = {"train": self._found(root, "train"), "eval": self._found(root, self.held_out)}

    def _found(self, root: Path, split: str) -> tuple[Path, ...]:
        folders = [each for each in (root, *sorted(root.glob("json_*"), reverse=True)) if (each / split).is_dir()]
        files = sorted((folders[0] / split).rglob(GAME)) if folders else []
        if not files:
            raise InputError(
                f"There are no games of ALFWorld's split '{split}' in '{root}'",
                f"they belong in json_2.1.1/{split}/CHORE/TRIAL/{GAME}, with traj_data.json next to each",
                "While there is a connection, fetch them with alfworld-download (it comes with the package), and name "
                "their folder in task.data or ALFWORLD_DATA.",
            )
        kept = tuple(file.resolve() for file in files if _kind(file) in self.kinds and _solvable(file))
        if not kept:
            raise InputError(
                f"None of the {len(files)} games of ALFWorld's split '{split}' is a solvable one of "
                f"{', '.join(self.kinds)}",
                remedy="Choose other kinds.",
            )
        return kept

    @property
    def description(self) -> str:
        """A sentence with the number of games."""
        return f"ALFWorld's chores in text, {len(self._games['train'])} games to train on."

    def options(self) -> JsonObject:
        """Return every option except the folder of the data, and the number of games."""
        kept = {name: value for name, value in super().options().items() if name != "data"}
        return {**kept, "games": [len(self._games[split]) for split in ("train", "eval")]}

    def file(self, split: Split, index: int) -> Path:
        """Return the file of a game."""
        return self._games[split][index]

    def size(self, split: Split) -> int:
        """Return how many games a split has."""
        check_request(self.name, split, 0, None)
        return len(self._games[split])

    def start(self, file: Path) -> GameSession:
        """Return the environment of a game, in which things have readable names."""
        library = textworld("The task 'alfworld'", "alfworld")
        facts = library.EnvInfos(**requested_facts(("policy_commands",) if self.plans else ()))
        return library.start(str(file), facts, wrappers=[_wrapper()])


def _wrapper() -> type[AlfredDemangler]:
    """Return the wrapper that gives things readable names. Raises MissingExtra."""
    try:
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    except ImportError as error:
        raise MissingExtra(str(error.name or "alfworld"), "alfworld", "The task 'alfworld'") from error
    return AlfredDemangler


def _kind(file: Path) -> str:
    beside = file.with_name("traj_data.json")
    if not beside.is_file() or "movable" in str(file.parent) or "Sliced" in str(file.parent):
        return ""
    return str(json.loads(beside.read_text(encoding="utf-8")).get("task_type", ""))


def _solvable(file: Path) -> bool:
    return bool(json.loads(file.read_text(encoding="utf-8")).get("solvable"))
