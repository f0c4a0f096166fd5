"""Distances of places by TSPLIB's names: Reinelt 1991, and FLOOR_2D of the package vrplib."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

PI, EARTH = 3.141592, 6378.388
"""The two constants as TSPLIB prints them: known optima hold for these digits alone."""


def _apart(place_n2: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.abs(place_n2[:, None] - place_n2[None])
    return found


def _squared(place_n2: np.ndarray) -> np.ndarray:
    found: np.ndarray = (_apart(place_n2) ** 2).sum(-1)
    return found


def _nearest(length_nn: np.ndarray) -> np.ndarray:
    """Round as TSPLIB's nint does: a half goes up, where numpy takes the even neighbour."""
    found: np.ndarray = np.floor(length_nn + 0.5)
    return found


def _geographical(place_n2: np.ndarray) -> np.ndarray:
    """Return kilometres on a sphere between latitudes and longitudes, each written as degrees.minutes."""
    # TSPLIB's text rounds to degrees, but its known optima are of degrees cut off: ulysses16 has 6859, else 6809.
    degree_n2 = np.trunc(place_n2)
    radian_n2 = PI * (degree_n2 + 5 * (place_n2 - degree_n2) / 3) / 180
    north_n, east_n = radian_n2.T
    turn_nn = np.cos(east_n[:, None] - east_n)
    near_nn, far_nn = np.cos(north_n[:, None] - north_n), np.cos(north_n[:, None] + north_n)
    cosine_nn = ((1 + turn_nn) * near_nn - (1 - turn_nn) * far_nn) / 2
    length_nn: np.ndarray = np.trunc(EARTH * np.arccos(np.clip(cosine_nn, -1, 1)) + 1)
    np.fill_diagonal(length_nn, 0)
    return length_nn


EDGE_WEIGHTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "EUC_2D": lambda place_n2: _nearest(np.sqrt(_squared(place_n2))),
    "CEIL_2D": lambda place_n2: np.ceil(np.sqrt(_squared(place_n2))),
    "FLOOR_2D": lambda place_n2: np.floor(np.sqrt(_squared(place_n2))),
    "MAN_2D": lambda place_n2: _nearest(_apart(place_n2).sum(-1)),
    "MAX_2D": lambda place_n2: _nearest(_apart(place_n2)).max(-1),
    "ATT": lambda place_n2: np.ceil(np.sqrt(_squared(place_n2) / 10)),
    "GEO": _geographical,
}
"""Whole distances [N,N] of places [N,2], by EDGE_WEIGHT_TYPE."""
