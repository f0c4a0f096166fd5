"""The page of a run: curves, health, completions before and after training, and rollouts token by token."""

from grouprl.view.curve import save_curve_png
from grouprl.view.report import write_report

__all__ = ["save_curve_png", "write_report"]
