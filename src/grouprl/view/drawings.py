"""Solutions in the plane, as small pictures on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SIZE, MARGIN = 160, 8
"""Width and height of a picture, and its margin."""


def picture(found: object) -> str:
    """Return a stored drawing (`PlaneDrawing.data`) as SVG; "" if there is none or it is damaged."""
    if not isinstance(found, Mapping) or not found.get("dots"):
        return ""
    try:
        return _svg(_placed(found["dots"]), found.get("line") or (), found.get("marked") or ())
    except (TypeError, ValueError, IndexError):
        return ""


def _placed(dots: Sequence[Sequence[Any]]) -> list[tuple[float, float]]:
    """Return the dots in the picture, their shape kept, y upwards."""
    x_n, y_n = ([float(dot[axis]) for dot in dots] for axis in (0, 1))
    scale = (SIZE - 2 * MARGIN) / (max(max(x_n) - min(x_n), max(y_n) - min(y_n)) or 1.0)
    return [
        (round(MARGIN + (x - min(x_n)) * scale, 1), round(SIZE - MARGIN - (y - min(y_n)) * scale, 1))
        for x, y in zip(x_n, y_n, strict=True)
    ]


def _svg(places: Sequence[tuple[float, float]], line: Sequence[int], marked: Sequence[int]) -> str:
    path = " ".join(f"{places[number][0]},{places[number][1]}" for number in line)
    kinds = [("marked", 5) if number in marked else ("dot", 3) for number in range(len(places))]
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="{radius}" class="{kind}"/>'
        for (x, y), (kind, radius) in zip(places, kinds, strict=True)
    )
    return (
        f'<svg class="drawing" viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}" height="{SIZE}" role="img" '
        f'aria-label="picture of the solution"><polyline points="{path}"/>{dots}</svg>'
    )
