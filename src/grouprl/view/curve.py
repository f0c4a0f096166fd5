"""The learning curve as a picture, for a README or a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError, MissingExtra
from grouprl.storage.run_folder import replacing
from grouprl.view.curves import reaches_one
from grouprl.view.runfiles import RunData, read_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = (
    ("eval/pair_accuracy", "pair accuracy, held out", "#1f6feb"),
    ("eval/greedy", "greedy, held out", "#1f6feb"),
    ("eval/pass@1", "sampled (pass@1), held out", "#d9730d"),
    ("eval/reward", "mean reward, held out", "#2da44e"),
)


def save_curve_png(run_folder: Path, path: Path) -> Path:
    """Draw correct completions and reward over the steps of a run as a PNG.

    Raise MissingExtra without matplotlib, and InputError if the folder has no training records.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot", "Drawing a learning curve") from error
    run = read_run(Path(run_folder))
    if not run.of_phase("train"):
        raise InputError(f"{run_folder} has no training records", "a curve needs at least one", "Train first")
    figure = Figure(figsize=(7.2, 3.6), dpi=160, layout="constrained")
    _draw(figure.add_subplot(), run)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
    return path


def _draw(axes: Axes, run: RunData) -> None:
    train = [r for r in run.of_phase("train") if r.get("reward_mean") is not None]
    axes.plot(
        [r["step"] for r in train], [r["reward_mean"] for r in train], color="#8b949e", lw=1, label="reward, training"
    )
    evals = run.of_phase("eval")
    shares = reaches_one(run, evals)
    for name, label, colour in LINES if shares else LINES[-1:]:
        found = [r for r in evals if r.get(name) is not None]
        steps, values = [r["step"] for r in found], [r[name] for r in found]
        axes.plot(steps, values, color=colour, marker="o", ms=4, lw=1.6, label=label)
        if found and all(f"{name}_low" in r and f"{name}_high" in r for r in found):
            low, high = ([r[f"{name}_{end}"] for r in found] for end in ("low", "high"))
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, lw=0)
    axes.set_xlabel("reinforcement step")
    axes.set_ylabel(
        "share of correct completions; reward" if shares else f"reward{', ' * bool(run.reward_is)}{run.reward_is}"
    )
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    axes.set_title(" · ".join(str(run.summary[key]) for key in ("task", "method") if run.summary.get(key)), loc="left")
