"""MiniGrid's views as text: the things that an agent sees, and their distances."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import gymnasium
    import numpy as np

    from grouprl.core.json_types import JsonMapping

DIRECTIONS = ("east", "south", "west", "north")
STATES = ("open", "closed", "locked")
PLAIN = ("empty", "floor", "unseen", "wall", "agent")
"""Objects that are not listed as things; walls are described by their distance."""
COLOURED = ("door", "key", "ball", "box")


def describe(env: gymnasium.Env, found: JsonMapping) -> str:
    """Return an observation as "mission; facing; free squares ahead, left, right; things seen; what is carried".

    A thing's place is counted in squares: "yellow key 2 ahead 1 left". `found` is MiniGrid's own Dict observation,
    `image` [W,H,3] seen from the middle of its lower edge, looking up.
    """
    image = found["image"]
    width, height = image.shape[:2]
    middle, last = width // 2, height - 1
    ahead = _free(image[middle, row] for row in range(last - 1, -1, -1))
    left = _free(image[column, last] for column in range(middle - 1, -1, -1))
    right = _free(image[column, last] for column in range(middle + 1, width))
    places = [
        (column, row) for row in range(last, -1, -1) for column in range(width) if (column, row) != (middle, last)
    ]
    things = [
        _thing(image[place]) + _where(last - place[1], "ahead") + _aside(place[0] - middle)
        for place in places
        if _name(image[place]) not in PLAIN and place != (middle, last)
    ]
    carried = env.unwrapped.carrying
    parts = [
        str(found["mission"]),
        f"facing {DIRECTIONS[int(found['direction'])]}",
        f"free {ahead} ahead {left} left {right} right",
        *things,
        *([f"carrying {carried.color} {carried.type}"] if carried is not None else []),
    ]
    return "; ".join(parts)


def state_key(env: gymnasium.Env) -> str:
    """Return the key of the whole state: the grid, the agent's position and direction, and what it carries."""
    carried = env.unwrapped.carrying
    return str(env.unwrapped.hash()) + ("" if carried is None else f" {carried.color} {carried.type}")


def is_minigrid(env: gymnasium.Env) -> bool:
    """Return whether an environment is MiniGrid's and shows its own Dict observation."""
    from gymnasium import spaces

    space = env.observation_space
    own = isinstance(space, spaces.Dict) and {"image", "direction", "mission"} <= set(space.spaces)
    return own and any(kind.__module__.startswith("minigrid.") for kind in type(env.unwrapped).__mro__)


def _free(cells: Iterable[np.ndarray]) -> int:
    """Return the number of squares that the agent can walk before something blocks it."""
    count = 0
    for cell in cells:
        name, state = _name(cell), int(cell[2])
        if not (name in ("empty", "floor", "goal", "lava") or (name == "door" and state == 0)):
            break
        count += 1
    return count


def _thing(cell: np.ndarray) -> str:
    from minigrid.core.constants import IDX_TO_COLOR

    name = _name(cell)
    colour = f"{IDX_TO_COLOR[int(cell[1])]} " if name in COLOURED else ""
    return f"{STATES[int(cell[2])]} {colour}{name}" if name == "door" else f"{colour}{name}"


def _name(cell: np.ndarray) -> str:
    from minigrid.core.constants import IDX_TO_OBJECT

    return str(IDX_TO_OBJECT[int(cell[0])])


def _aside(squares: int) -> str:
    return _where(squares, "right") if squares > 0 else _where(-squares, "left")


def _where(squares: int, word: str) -> str:
    return f" {squares} {word}" if squares > 0 else ""
