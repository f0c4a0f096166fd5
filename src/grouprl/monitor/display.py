"""What the user sees during a run: a live screen on a terminal, one compact line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from grouprl.core.json_types import JsonMapping
from grouprl.core.terminal import Terminal
from grouprl.evaluation.sampling import Sample
from grouprl.monitor.finding import Finding
from grouprl.monitor.screen import RunScreen, line
from grouprl.monitor.summary import side_by_side, summary_table

__all__ = ["Display", "Sample", "side_by_side", "summary_table"]

REDRAWS_PER_SECOND = 2
"""A redraw costs a few milliseconds of one core."""
LINE_EVERY = 5.0
"""Seconds between two lines where there is no terminal."""
LINES_PER_PHASE = 20
"""... and at most this many lines per phase, so that a long run leaves a readable log."""


class Display:
    """Shows the progress of a run. Use it as a context manager, or call `close` at the end.

    `live=None` decides by the console: live on a real terminal that can move its cursor, lines otherwise (CI, files).
    """

    def __init__(
        self,
        total_steps: int,
        console: Console | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        actions: bool = False,
    ) -> None:
        """`actions`: the policy takes actions, and writes no tokens."""
        self.console = console or Terminal()
        self.total_steps = total_steps
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal if live is None else live
        self._clock = clock
        self._screen = RunScreen(clock, actions=actions)
        self._live: Live | None = None
        self._told: dict[str, str] = {}
        self._last_shown = float("-inf")
        self._last_line_step = -1

    def __enter__(self) -> Display:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the terminal."""
        self.close()

    def phase(self, name: str, total: int | None = None, done: int = 0) -> None:
        """Begin a phase (one of `screen.TITLES`) of `total` steps (None: the run's), `done` already made."""
        total = self.total_steps if total is None else total
        self._screen.begin(name, total, done)
        self._last_shown, self._last_line_step = float("-inf"), -1
        if self.live:
            self._start()
        else:
            self._print(Text(f"── {self._screen.title}" + (f", {total} steps" if total and name != "eval" else "")))

    def progress(self, done: int, total: int) -> None:
        """Move the bar of a phase that has no records (an evaluation: completions sampled of all)."""
        self._screen.move(done, total)

    def step(
        self,
        record: JsonMapping,
        samples: Sequence[Sample] | None = None,
        findings: Sequence[Finding] = (),
    ) -> None:
        """Show one record of `metrics.jsonl`, a few completions of the step, and the findings so far."""
        self._screen.take(record, samples, findings)
        if self.live:
            self._start()
        else:
            self._log(record)
            self._tell(findings)

    def message(self, text: str) -> None:
        """Print a line that stays (above the live screen)."""
        self._print(Text(text))

    def close(self) -> None:
        """Draw the last state, stop the live screen and restore the terminal. May be called twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _start(self) -> None:
        if self._live is None:
            self._live = Live(self._screen, console=self.console, refresh_per_second=REDRAWS_PER_SECOND)
            self._live.start(refresh=True)

    def _log(self, record: Mapping[str, object]) -> None:
        screen, now = self._screen, self._clock()
        last = screen.done >= screen.total > 0
        evaluation = record.get("phase") == "eval"
        apart = screen.done - self._last_line_step >= max(1, screen.total // LINES_PER_PHASE)
        if evaluation or last or self._last_line_step < 0 or (apart and now - self._last_shown >= LINE_EVERY):
            self._print(line(screen, record))
            if not evaluation:
                self._last_shown, self._last_line_step = now, screen.done

    def _tell(self, findings: Sequence[Finding]) -> None:
        """Say each finding once, and again only when its severity changes."""
        for finding in findings:
            if finding.persists and self._told.get(finding.key) != finding.severity:
                self._told[finding.key] = finding.severity
                self._print(Text(f"{finding.severity} (step {finding.last_step}): {finding.words} {finding.remedy}"))

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True, highlight=False)
