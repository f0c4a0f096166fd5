"""Rewards of routes through a grid."""

from __future__ import annotations

from collections.abc import Collection

from grouprl.rewards.contract import known_examples

MOVES = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
_GRID = {"size": 3, "start": "00", "goal": "02", "walls": ["01"]}


def walk(moves: str, size: int, start: str, walls: Collection[str]) -> str | None:
    """Return the cell "row column" where a route ends; None if it leaves the grid, meets a wall or is not a route."""
    row, column = int(start[0]), int(start[1])
    for move in moves:
        if move not in MOVES:
            return None
        row, column = row + MOVES[move][0], column + MOVES[move][1]
        if not (0 <= row < size and 0 <= column < size) or f"{row}{column}" in walls:
            return None
    return f"{row}{column}"


@known_examples(("drru", _GRID, True), ("rr", _GRID, False), ("drr", _GRID, False), ("", _GRID, False))
def whole_path(completion: str, size: int, start: str, goal: str, walls: Collection[str]) -> dict[str, float]:
    """Return 0.2 per move of a route that reaches the goal, and 1 for a text of moves only: AlphaMaze's reward.

    Dao and Vu 2025, arXiv 2502.14669; their 0.125 per thinking tag is left out, since completions have no tags here. A
    route to a farther goal earns more. A route may not visit a cell twice, or detours would pay.
    """
    way = completion.strip()
    spelt = bool(way) and set(way) <= MOVES.keys()
    reached = spelt and len(way) < size * size and _reaches(way, size, start, goal, walls)
    return {"path": 0.2 * len(way) * reached, "moves": float(spelt), "correct": float(reached)}


def _reaches(way: str, size: int, start: str, goal: str, walls: Collection[str]) -> bool:
    """Return whether a route ends at the goal, visits no cell twice and has no more moves than the grid has cells."""
    cells = [start]
    for move in way:
        cell = walk(move, size, cells[-1], walls)
        if cell is None:
            return False
        cells.append(cell)
    return cells[-1] == goal and len(set(cells)) == len(cells)
