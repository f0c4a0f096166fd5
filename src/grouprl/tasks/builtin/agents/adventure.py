"""The task of the text adventure."""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from grouprl.envs.builtin.adventure import OPPOSITE, Adventure
from grouprl.records.examples import Columns, Example
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.options import POOR
from grouprl.tasks.registry import register_task

ROOMS = ("hall", "cave", "barn", "loft", "yard", "dock", "cell", "mill")
THINGS = ("cup", "hat", "key", "map", "pin", "rod")


@register_task("adventure")
class AdventureTask(EnvironmentTask):
    """Bring a thing to a room; the places of things and the connections of rooms must be explored.

    The prompt is "cup to barn. hall ne>": the job, the current room, its exits, and the things in it. Actions are n,
    e, s, w, "take cup", "drop cup". Finding the thing gives 0.25, dropping it in its room 0.75.
    """

    levels = tuple(
        {"rooms": rooms, "things": things} for rooms, things in ((2, 1), (3, 1), (4, 1), (4, 2), (6, 3), (8, 4))
    )

    rooms: int = Field(3, ge=2, le=len(ROOMS), description="rooms of the map")
    things: int = Field(1, ge=1, le=len(THINGS), description="things in the rooms; one of them is wanted")
    turns: int | None = Field(None, ge=1, description="actions allowed; none: three per room and two more")
    noise: float = Field(0.5, ge=0, le=1, description=POOR)

    max_new_tokens: ClassVar[int] = 10
    """The token budget of a turn: "take" or "drop", a thing of three letters, the end, and one more."""

    @property
    def max_turns(self) -> int:
        """The number of actions allowed."""
        return self.turns or 3 * self.rooms + 2

    @property
    def alphabet(self) -> str:
        """The letters of rooms, things and commands, and the signs around them."""
        return "".join(sorted({*"".join((*ROOMS, *THINGS)), *"taketodropnesw"})) + " .>!"

    def environment(self) -> Adventure:
        """Return a fresh episode."""
        return Adventure(self.max_turns, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a map that is a tree of rooms, and things in some of them."""
        rooms, things = rng.sample(ROOMS, self.rooms), rng.sample(THINGS, self.things)
        places = {thing: rng.choice(rooms) for thing in things}
        wanted = things[0]
        columns = {
            "doors": _tree(rooms, rng),
            "things": places,
            "start": rng.choice(rooms),
            "wanted": wanted,
            "target": rng.choice([room for room in rooms if room != places[wanted]]),
        }
        game = self.environment()
        game.begin(columns, rng)
        return f"{wanted} to {columns['target']}. {game.look()}", columns

    def solve(self, example: Example) -> str:
        """Return the actions of a player who knows the map, one per line."""
        game = self.environment()
        game.begin(example.columns, random.Random(0))
        actions = []
        while not game.correct:
            actions.append(game.best())
            game.act(actions[-1])
        return "\n".join(actions)


def _tree(rooms: list[str], rng: random.Random) -> dict[str, dict[str, str]]:
    """Return doors that connect each room with an earlier one, in directions that are still free."""
    doors: dict[str, dict[str, str]] = {rooms[0]: {}}
    for room in rooms[1:]:
        free = [(other, way) for other, exits in doors.items() for way in OPPOSITE if way not in exits]
        other, way = rng.choice(free)
        doors[other][way] = room
        doors[room] = {OPPOSITE[way]: other}
    return {room: dict(sorted(exits.items(), key=lambda item: "nesw".index(item[0]))) for room, exits in doors.items()}
