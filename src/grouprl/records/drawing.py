"""A solution in the plane, as a page draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.core.json_types import JsonObject


@dataclass(frozen=True)
class PlaneDrawing:
    """Dots in the plane, and a line through some of them."""

    dots: Sequence[tuple[float, float]]
    line: Sequence[int] = ()
    """Numbers of the dots in the order in which the line joins them."""
    marked: Sequence[int] = ()
    """Numbers of the dots that are set apart, such as a depot."""

    def data(self) -> JsonObject:
        """Return the drawing as JSON data; places are rounded to four digits."""
        dots = [[float(f"{x:.4g}"), float(f"{y:.4g}")] for x, y in self.dots]
        return {"dots": dots, "line": list(map(int, self.line)), "marked": list(map(int, self.marked))}
