"""What mixed precision does to the learning of a pretrained model: runs that are recorded in float32 and in mixed
precision, side by side, for docs/real.md."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from effects_report import interval
from grouprl.storage.run_folder import replacing

Record = dict[str, Any]
Runs = dict[int, Record]
"""Records of one recipe and mode in one precision, by seed."""
STYLES = {"float32": "#1f6feb", "mixed": "#d29922"}


def pairs(records: Sequence[Record]) -> dict[tuple[str, str], tuple[Runs, Runs]]:
    """Return, by recipe and mode, the runs in float32 and in mixed precision of the seeds with both; two at least."""
    found = {}
    for key in sorted({(r["recipe"], r["mode"]) for r in records}):
        here = [r for r in records if (r["recipe"], r["mode"]) == key]
        exact, mixed = ({r["seed"]: r for r in here if r["precision"] == kind} for kind in STYLES)
        seeds = sorted(exact.keys() & mixed.keys())
        if len(seeds) > 1:
            found[key] = ({s: exact[s] for s in seeds}, {s: mixed[s] for s in seeds})
    return found


def compare(records: Sequence[Record], path: Path) -> str:
    """Return the section of the page, empty without such runs, and draw their curves where matplotlib is installed."""
    found = pairs(records)
    if not found:
        return ""
    head = (
        "| recipe | trained | seeds | reward in training, all steps: float32 | mixed | difference | held-out reward "
        "afterwards, sampled: float32 | mixed | difference |\n" + "| --- " * 9 + "|\n"
    )
    rows = "".join(_row(*key, *runs) for key, runs in found.items())
    picture = ""
    if importlib.util.find_spec("matplotlib") is not None:
        draw(found, path)
        picture = f"\n![Rewards in training, in float32 and in mixed precision]({path.name})\n"
    return (
        "\nThe same runs in float32 and in mixed precision: means over the seeds, with the lowest and the highest; the "
        "difference\nis mixed less float32, by seed, with its 95 % interval (Student's t).\n\n"
        f"{head}{rows}{picture}"
    )


def _row(recipe: str, mode: str, exact: Runs, mixed: Runs) -> str:
    cells = [f"`{recipe}`", mode, ", ".join(map(str, exact))]
    for values in (_trained, _afterwards):
        both = [values(exact.values()), values(mixed.values())]
        cells += [*map(_range, both), _difference(*both)]
    return f"| {' | '.join(cells)} |\n"


def _trained(runs: Iterable[Record]) -> list[float]:
    return [statistics.fmean(run["reward"]) for run in runs]


def _afterwards(runs: Iterable[Record]) -> list[float]:
    return [run["after"]["reward"] for run in runs]


def _range(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _difference(exact: Sequence[float], mixed: Sequence[float]) -> str:
    low, mean, high = interval([b - a for a, b in zip(exact, mixed, strict=True)])
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def draw(found: dict[tuple[str, str], tuple[Runs, Runs]], path: Path) -> None:
    """Draw a panel per recipe and mode: the reward of each step, every seed thin and their mean thick."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(found), 3.4), dpi=130, layout="constrained")
    for axes, (key, both) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        for (kind, colour), runs in zip(STYLES.items(), both, strict=True):
            curves = [run["reward"] for run in runs.values()]
            steps = range(1, len(curves[0]) + 1)
            for curve in curves:
                axes.plot(steps, curve, color=colour, lw=0.7, alpha=0.5)
            axes.plot(steps, [statistics.fmean(at) for at in zip(*curves, strict=True)], color=colour, lw=2, label=kind)
        axes.set_title(", ".join(key), loc="left")
        axes.set_xlabel("step")
        axes.set_ylim(-0.02, 1.02)
        axes.grid(alpha=0.25)
        axes.legend(loc="lower right")
    figure.supylabel("reward in training")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
