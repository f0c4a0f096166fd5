"""The listener that gives a tracker what a run records, without ever holding the run up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from grouprl.core.errors import described
from grouprl.protocols.run_events import EvaluationEnded, RunBegan, RunEnded, RunListener, StepEnded
from grouprl.storage.run_folder import RunFolder
from grouprl.trackers.choice import ChosenTracker
from grouprl.trackers.feed import Feed
from grouprl.trackers.tracker import Outcome, Tracker, tracked_run

PATIENCE = 60.0
"""Seconds that the end of a run waits for a tracker."""
PAUSE = 30.0
"""Seconds from a failure of a tracker to the next attempt, unless the run ends before."""
SILENCE = 60.0
"""Seconds without an answer after which the user is told: clients of servers try again for minutes before they fail."""
LAST_TRIES = 3
"""Attempts that may fail after the run has ended."""


class TrackerListener(RunListener):
    """Sends a run's records to one tracker from a thread of its own.

    A tracker that is slow, unreachable or broken never stops the run: its first failure is reported, and what it lacks
    is sent again later. At the end the user is told how many records it did not get.
    """

    def __init__(self, chosen: ChosenTracker, say: Callable[[str], None]) -> None:
        """Prepare; `say` tells the user a sentence."""
        self._chosen, self._say = chosen, say
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._outcome: Outcome = "failed"
        self._troubled, self._left = False, False
        self._asked: float | None = None
        self._lacking: int | None = None

    def begin(self, event: RunBegan) -> None:
        """Start the thread, which opens the tracker and sends it what an earlier process could not."""
        name = f"grouprl-{self._chosen.name}"
        self._thread = threading.Thread(target=self._work, args=(event.folder,), name=name, daemon=True)
        self._thread.start()
        self._wake.set()

    def step(self, event: StepEnded) -> None:
        """Have the record of the step sent."""
        self._tell_silence(SILENCE)
        self._wake.set()

    def evaluation(self, event: EvaluationEnded) -> None:
        """Have the record of the evaluation sent."""
        self._tell_silence(SILENCE)
        self._wake.set()

    def end(self, event: RunEnded) -> None:
        """Have everything sent and the tracker closed, and wait for that."""
        if self._thread is None:
            return
        self._outcome = "failed" if event.error is not None else "finished" if event.after is not None else "stopped"
        self._ended.set()
        self._wake.set()
        self._thread.join(PATIENCE)
        self._tell_silence(PATIENCE / 2)
        self._left = True
        if self._lacking != 0:
            amount = "some records" if self._lacking is None else f"{self._lacking} records"
            self._say(
                f"{self._chosen.name} lacks {amount} of this run. Send them with: {self._chosen.command(event.folder)}"
            )

    def _work(self, folder: Path) -> None:
        """Open the tracker, and send when there is something new, until the run ends; then try a few times more."""
        tracker, feed, tries = None, None, LAST_TRIES
        while tries:
            self._wake.wait()
            self._wake.clear()
            self._ask()
            try:
                if tracker is None or feed is None:
                    tracker = self._chosen.open(tracked_run(folder))
                    feed = Feed(RunFolder(folder).metrics, tracker)
                feed.send(self._ask)
                self._asked = None
                if self._ended.is_set():
                    break
            except Exception as error:
                self._asked = None
                self._report(error)
                tries -= self._ended.is_set()
                self._ended.wait(PAUSE)
                self._wake.set()
        self._close(tracker, feed)

    def _close(self, tracker: Tracker | None, feed: Feed | None) -> None:
        """Close the tracker; count what it lacks only after that, because some write nothing earlier."""
        self._ask()
        try:
            if tracker is not None:
                tracker.close(self._outcome)
        except Exception as error:
            self._report(error)
            return
        with suppress(OSError):
            self._lacking = feed.lacking() if feed is not None else None

    def _ask(self) -> None:
        """Note that the tracker is asked for something from now on."""
        self._asked = time.monotonic()

    def _report(self, error: Exception) -> None:
        """Say that the tracker fails."""
        self._say_once(f"failed ({described(error).splitlines()[0]})")

    def _tell_silence(self, limit: float) -> None:
        """Say that the tracker does not answer, if what it was asked has taken as long as the limit."""
        asked = self._asked
        if asked is not None and (waited := time.monotonic() - asked) >= limit:
            self._say_once(f"has not answered for {waited:.0f} s: see whether its address and login are right")

    def _say_once(self, trouble: str) -> None:
        """Say the first trouble of the tracker; after the run nobody waits for another."""
        if not self._troubled and not self._left:
            self._troubled = True
            self._say(f"the tracker {self._chosen.name} {trouble}. The run continues; records are sent later.")
