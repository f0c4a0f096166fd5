"""A text adventure: find a thing and bring it to a room."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns

OPPOSITE = {"n": "s", "e": "w", "s": "n", "w": "e"}
FOUND, DELIVERED = 0.25, 0.75
"""Rewards for taking the wanted thing for the first time, and for dropping it in its target room."""


class Adventure(Game):
    """A house of rooms, each visible only from inside; the wanted thing is in one of them and must be brought to
    another.

    Columns: `doors` (room -> direction -> room), `things` (thing -> room), `start`, `wanted` and `target`. An
    observation is the room, its exits, the things in it and '>': "cave ne cup>". Actions are the directions n, e, s, w,
    "take cup" and "drop cup"; the agent carries at most one thing. Anything else, and any action that is not possible
    here, is invalid and answered with '!' before the observation. The state is the room, the thing carried and the room
    of the wanted thing.
    """

    def __init__(self, max_turns: int, noise: float = 0.3) -> None:
        """Prepare an episode of at most `max_turns` actions; a demonstrated action is random with chance `noise`."""
        super().__init__(max_turns)
        self.noise = noise
        self.doors: Mapping[str, Mapping[str, str]] = {}
        self.things: dict[str, str] = {}
        self.room = self.wanted = self.target = self.carried = ""
        self.found = False

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Read the map."""
        self.doors, self.things = columns["doors"], dict(columns["things"])
        self.room, self.wanted, self.target = columns["start"], columns["wanted"], columns["target"]

    @property
    def state(self) -> str:
        """The room, the thing carried, and the room of the wanted thing."""
        return f"{self.room}+{self.carried}:{self.things.get(self.wanted, '')}"

    @property
    def legal(self) -> tuple[str, ...]:
        """The exits, and the things that can be taken or dropped."""
        if self.carried:
            return (*self.doors[self.room], f"drop {self.carried}")
        return (*self.doors[self.room], *(f"take {thing}" for thing in self._here()))

    @property
    def correct(self) -> bool:
        """True if the wanted thing is in its target room."""
        return self.things.get(self.wanted) == self.target

    def look(self) -> str:
        """Return the present observation."""
        return " ".join([self.room, "".join(self.doors[self.room]), *self._here()]) + ">"

    def act(self, action: str) -> Outcome:
        """Go, take or drop."""
        if action not in self.legal:
            return Outcome(f"!{self.look()}", valid=False)
        reward = 0.0
        if action in self.doors[self.room]:
            self.room = self.doors[self.room][action]
        elif action.startswith("take "):
            reward = self._take(action[5:])
        else:
            self.things[self.carried], self.carried = self.room, ""
        reward += DELIVERED * self.correct
        return Outcome(self.look(), reward, self.correct)

    def demonstrate(self, rng: random.Random) -> str:
        """Return the best action, or with a certain chance any legal one."""
        return rng.choice(self.legal) if rng.random() < self.noise else self.best()

    def best(self) -> str:
        """Return an action that leads to the goal by the shortest way."""
        if self.carried and self.carried != self.wanted:
            return f"drop {self.carried}"
        goal = self.target if self.carried else self.things[self.wanted]
        if self.room != goal:
            return self.way(self.room, goal)[0]
        return f"drop {self.wanted}" if self.carried else f"take {self.wanted}"

    def way(self, start: str, goal: str) -> str:
        """Return the directions of a shortest way from one room to another; "" if there is none."""
        paths, waiting = {start: ""}, deque([start])
        while waiting and goal not in paths:
            here = waiting.popleft()
            for direction, there in self.doors[here].items():
                if there not in paths:
                    paths[there] = paths[here] + direction
                    waiting.append(there)
        return paths.get(goal, "")

    def _take(self, thing: str) -> float:
        self.carried = thing
        del self.things[thing]
        first = thing == self.wanted and not self.found
        self.found = self.found or first
        return FOUND * first

    def _here(self) -> list[str]:
        return sorted(thing for thing, room in self.things.items() if room == self.room)
