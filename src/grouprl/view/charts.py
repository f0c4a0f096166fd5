"""Small line charts as inline SVG, with their numbers for the hover script, without dependencies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, isfinite, log10

POINTS = 500
"""Largest number of points per curve: more than the pixels of a small chart, but few enough for small pages."""
NARROW, WIDE = (360, 180), (1120, 300)
"""Width and height of a chart in SVG units, for small and wide charts."""
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 24
UNITS = ((999.5e9, 1.0, ""), (999.5e6, 1e9, "B"), (999.5e3, 1e6, "M"), (9999.5, 1e3, "k"))
"""Sizes from which a number, rounded, is written in a unit: what is below would be rounded up to an exponent."""
SHORT = 5
"""Largest number of characters of a name of the x axis that stands beside its ticks."""


@dataclass(frozen=True)
class Series:
    """One curve: values `y` at `x`, as a line or as points, with optional intervals: of a line, a band."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    points: bool = False
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    def finite(self) -> Series:
        """Return the series without values that are not finite numbers."""
        keep = [i for i, v in enumerate(self.y) if isinstance(v, (int, float)) and isfinite(v)]
        low, high = ([column[i] for i in keep] if column else () for column in (self.low, self.high))
        return Series(self.name, [self.x[i] for i in keep], [float(self.y[i]) for i in keep], self.points, low, high)


def downsample(series: Series) -> Series:
    """Thin a curve to at most `POINTS` points: its ends, and the smallest and largest value of each stretch between
    them, so that spikes remain.
    """
    count = len(series.y)
    if count <= POINTS:
        return series
    buckets, inner = POINTS // 2 - 1, count - 2
    keep = [0]
    for b in range(buckets):
        stretch = range(1 + b * inner // buckets, 1 + (b + 1) * inner // buckets)
        keep += sorted({min(stretch, key=series.y.__getitem__), max(stretch, key=series.y.__getitem__)})
    keep.append(count - 1)  # the legend states it as where the curve stands
    low, high = ([column[i] for i in keep] if column else () for column in (series.low, series.high))
    return Series(series.name, [series.x[i] for i in keep], [series.y[i] for i in keep], series.points, low, high)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round numbers within [low, high], spaced by 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    size = 10.0 ** floor(log10(raw))
    gap = next(m * size for m in (1, 2, 5, 10) if m * size >= raw * 0.999)
    first = -floor(-low / gap + 1e-9)
    return [round(k * gap, 12) for k in range(first, floor(high / gap + 1e-9) + 1)]


def whole_ticks(low: float, high: float, count: int) -> list[float]:
    """Return round whole numbers within [low, high], because steps have no fractions."""
    return [tick for tick in ticks(low, high, count) if tick == int(tick)]


def number(value: float) -> str:
    """Return a short text of a number: 0.031, 12.4, 12.5k, 2.4M, 1.3B, 1.3e-7."""
    size = abs(value)
    for least, unit, letter in UNITS:
        if size >= least:
            return f"{value / unit:.3g}{letter}"
    if value == 0 or size >= 1e-3:
        return f"{value:.4g}"
    return f"{value:.2g}"


def at_each_width(draw: Callable[[tuple[int, int]], str]) -> str:
    """Return what `draw` makes for wide and for narrow screens; the style sheet shows one of them."""
    return draw(WIDE) + f'<div class="only-narrow">{draw(NARROW)}</div>'


def chart(
    title: str,
    words: str,
    series: Sequence[Series],
    floor_at: float | None = None,
    size: tuple[int, int] = NARROW,
    across: str = "step",
) -> str:
    """Draw a figure: title, legend, SVG, explanation. `floor_at` widens the y axis down to that value, and `across`
    names the x axis.

    Return "" if no series has a finite value.
    """
    drawn = [downsample(s) for s in (s.finite() for s in series) if s.y]
    if not drawn:
        return ""
    frame = _Frame.around(drawn, floor_at, size)
    marks = "".join(_marks(s, i, frame) for i, s in enumerate(drawn))
    last = "; ".join(f"{s.name}: first {number(s.y[0])}, last {number(s.y[-1])}" for s in drawn)
    legend = "".join(
        f'<span class="key s{i}">{escape(s.name)} <b>{number(s.y[-1])}</b></span>' for i, s in enumerate(drawn)
    )
    svg = (
        f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{escape(title)}. {escape(last)}">'
        f'{frame.axes(across)}{marks}<line class="cross" y1="{TOP}" y2="{size[1] - BOTTOM}" hidden></line></svg>'
    )
    data = {
        "box": frame.box(),
        "across": across,
        "series": [{"n": s.name, "x": _short(s.x, 12), "y": _short(s.y, 5)} for s in drawn],
    }
    packed = escape(json.dumps(data, separators=(",", ":")))
    kind = "chart wide" if size == WIDE else "chart"
    about = f"<figcaption><details><summary>What this is</summary>{escape(words)}</details></figcaption>"
    head = f'<h3>{escape(title)}</h3><div class="legend">{legend}</div>'
    return f'<figure class="{kind}" data-curves="{packed}">{head}{svg}{about}</figure>'


@dataclass(frozen=True)
class _Frame:
    """The data range of a chart and its mapping to pixels."""

    x0: float
    x1: float
    y0: float
    y1: float
    width: int
    height: int

    @classmethod
    def around(cls, series: Sequence[Series], floor_at: float | None, size: tuple[int, int]) -> _Frame:
        xs = [x for s in series for x in s.x]
        ys = [y for s in series for y in (*s.y, *s.low, *s.high)]
        y0, y1 = min(ys), max(ys)
        if floor_at is not None:
            y0 = min(y0, floor_at)
        pad = 0.06 * (y1 - y0) or abs(y1) * 0.1 or 1.0
        y0 = y0 if y0 == floor_at else y0 - pad
        beside = 0.0 if max(xs) > min(xs) else 0.5  # a single step is drawn in the middle, with the only tick
        return cls(min(xs) - beside, max(xs) + beside, y0, y1 + pad, *size)

    def box(self) -> list[float]:
        return [self.x0, self.x1, LEFT, self.width - RIGHT, self.width]

    def at(self, x: float, y: float) -> tuple[float, float]:
        px = LEFT + (x - self.x0) / (self.x1 - self.x0) * (self.width - LEFT - RIGHT)
        py = self.height - BOTTOM - (y - self.y0) / (self.y1 - self.y0) * (self.height - TOP - BOTTOM)
        return round(px, 1), round(py, 1)

    def axes(self, across: str) -> str:
        parts = []
        for y in ticks(self.y0, self.y1):
            _, py = self.at(self.x0, y)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{py}" y2="{py}"></line>')
            parts.append(f'<text class="tick y" x="{LEFT - 6}" y="{py + 3.5}">{number(y)}</text>')
        label = across if len(across) <= SHORT else ""  # a longer name has no room beside the ticks: the title says it
        places = whole_ticks if self.x1 - self.x0 > 1 or across == "step" else ticks
        for x in places(self.x0, self.x1, self.width // 60):
            px, _ = self.at(x, self.y0)
            parts.append(f'<text class="tick x" x="{px}" y="{self.height - 8}">{number(x)}</text>')
        parts.append(f'<text class="tick y" x="{LEFT - 6}" y="{self.height - 8}">{escape(label)}</text>')
        return "".join(parts)


def _marks(series: Series, index: int, frame: _Frame) -> str:
    places = [frame.at(x, y) for x, y in zip(series.x, series.y, strict=True)]
    path = " ".join(f"{px},{py}" for px, py in places)
    marks = f'<polyline class="curve s{index}" points="{path}"></polyline>' if len(places) > 1 else ""
    if series.low and not series.points:
        ends = [*zip(series.x, series.high, strict=True), *reversed([*zip(series.x, series.low, strict=True)])]
        outline = " ".join(f"{px},{py}" for px, py in (frame.at(x, y) for x, y in ends))
        marks = f'<polygon class="band s{index}" points="{outline}"></polygon>{marks}'
    if series.points or len(places) == 1:
        for i, (px, py) in enumerate(places):
            if series.low and series.low[i] is not None:
                top, bottom = frame.at(series.x[i], series.high[i])[1], frame.at(series.x[i], series.low[i])[1]
                marks += f'<line class="bar s{index}" x1="{px}" x2="{px}" y1="{top}" y2="{bottom}"></line>'
            marks += f'<circle class="dot s{index}" cx="{px}" cy="{py}" r="2.6"></circle>'
    return marks


def _short(values: Sequence[float], digits: int) -> list[float]:
    return [float(f"{v:.{digits}g}") for v in values]
