"""The display of a run: a live screen on a terminal, elsewhere an occasional compact line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from grouprl.core.terminal import Terminal
from grouprl.monitor.screen import RunScreen, line
from grouprl.monitor.summary import side_by_side, summary_table
from grouprl.protocols.run_events import (
    EvaluationEnded,
    FindingChanged,
    PhaseBegan,
    Progress,
    RunBegan,
    RunEnded,
    RunListener,
    StepEnded,
    UserMessage,
)

REDRAWS_PER_SECOND = 2
"""Redraws of the live screen per second; each costs a few milliseconds of one core."""
LINE_EVERY = 5.0
"""Least seconds between two lines without a terminal."""
LINES_PER_PHASE = 20
"""Largest number of lines per phase without a terminal, so that the log of a long run stays readable."""


class Display(RunListener):
    """Shows the progress of a run. Use it as a context manager, or call `close` at the end.

    `live=None` decides by the console: live on a real terminal that can move its cursor, lines otherwise (CI, files).
    """

    def __init__(
        self,
        console: Console | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or Terminal()
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal if live is None else live
        self._clock = clock
        self._screen = RunScreen(clock)
        self._live: Live | None = None
        self._told: dict[str, str] = {}
        self._last_shown = float("-inf")
        self._last_line_step = -1
        self._note: Callable[[str], None] | None = None
        self._unsaid: list[str] | None = None
        """What the run said since its console was closed, until `note` took it; None while the console is open."""

    def keep_going(self, note: Callable[[str], None] | None = None) -> None:
        """Let the run continue when the console is closed: `note` gets what the run says then, also before this."""
        if isinstance(self.console, Terminal):
            self.console.lost = self._lost
        self._note = note
        self._hand_over()

    def _lost(self, reason: str) -> None:
        self._unsaid = []
        said = f"the output was closed ({reason}): the run continues without it"
        with suppress(OSError, ValueError):
            print(said, file=sys.stderr, flush=True)
        self._noted(said)

    def _noted(self, text: str) -> None:
        if self._unsaid is not None:
            self._unsaid.append(text)
            self._hand_over()

    def _hand_over(self) -> None:
        while self._note is not None and self._unsaid:
            self._note(self._unsaid.pop(0))

    def __enter__(self) -> Display:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the terminal."""
        self.close()

    def begin(self, event: RunBegan) -> None:
        """Note whether to speak of completions and tokens, or of episodes and actions."""
        self._screen.actions = event.actions

    def phase_begin(self, event: PhaseBegan) -> None:
        """Begin a phase (one of `screen.TITLES`)."""
        self._screen.begin(event.name, event.total, event.done)
        self._last_shown, self._last_line_step = float("-inf"), -1
        if self.live:
            self._start()
            return
        steps = f", {event.total} steps" if event.total and event.name != "eval" else ""
        self._print(Text(f"── {self._screen.title}{steps}"))

    def progress(self, event: Progress) -> None:
        """Move the progress bar of an evaluation that is its own phase; others are shown with the next record."""
        if self._screen.name == "eval":
            self._screen.move(event.done, event.total)

    def step(self, event: StepEnded) -> None:
        """Show a record of metrics.jsonl, and a few completions of the step."""
        self._screen.take(event.record, event.samples)
        self._show(event.record)

    def evaluation(self, event: EvaluationEnded) -> None:
        """Show the numbers of an evaluation."""
        self._screen.take(event.record, None)
        self._show(event.record)

    def finding(self, event: FindingChanged) -> None:
        """Show a finding; without a terminal, print it once, and again only if its severity changes."""
        found = event.finding
        self._screen.judge(found)
        if not self.live and found.persists and self._told.get(found.code) != found.severity:
            self._told[found.code] = found.severity
            self._print(Text(f"{found.severity} (step {found.last_step}): {found}"))

    def message(self, event: UserMessage) -> None:
        """Print a line that stays (above the live screen)."""
        self._noted(event.text)
        self._print(Text(event.text))

    def end(self, event: RunEnded) -> None:
        """Print the numbers and completions before and after, or how to continue."""
        if event.error is not None:
            self._noted(f"the run ended with {type(event.error).__name__}: {event.error}")
            return
        self._noted(event.verdict or f"stopped in {event.phase} after step {event.step}; a checkpoint is written")
        console, actions = self.console, self._screen.actions
        if event.before is not None and event.after is not None:
            console.print(summary_table(event.before.record, event.after.record, actions=actions))
            console.print(side_by_side(event.before.samples, event.after.samples, actions=actions))
            console.print(event.verdict, soft_wrap=True, markup=False)
        elif event.after is None:
            console.print(f"Interrupted in {event.phase} after step {event.step}; a checkpoint is written.")
            console.print(f"Continue with: grouprl train {event.folder} --resume", soft_wrap=True, markup=False)
        for remark in event.remarks:
            console.print(remark, soft_wrap=True)
        console.print(f"Report: {event.report}", soft_wrap=True, markup=False)

    def close(self) -> None:
        """Draw the last state, stop the live screen and restore the terminal. May be called twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _start(self) -> None:
        if self._live is None:
            self._live = Live(self._screen, console=self.console, refresh_per_second=REDRAWS_PER_SECOND)
            self._live.start(refresh=True)

    def _show(self, record: Mapping[str, object]) -> None:
        if self.live:
            self._start()
            return
        screen, now = self._screen, self._clock()
        last = screen.done >= screen.total > 0
        evaluation = record.get("phase") == "eval"
        apart = screen.done - self._last_line_step >= max(1, screen.total // LINES_PER_PHASE)
        if evaluation or last or self._last_line_step < 0 or (apart and now - self._last_shown >= LINE_EVERY):
            self._print(line(screen, record))
            if not evaluation:
                self._last_shown, self._last_line_step = now, screen.done

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True, highlight=False)
