"""The lines of metrics.jsonl that a tracker still lacks, sent in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from grouprl.storage.run_folder import RunFolder
from grouprl.trackers.choice import ChosenTracker
from grouprl.trackers.tracker import Outcome, TrackedRecord, Tracker, tracked_record, tracked_run


class Feed:
    """Sends the records of a metrics.jsonl to a tracker: each once, none backwards, whatever happened before.

    The file is read, and not the events of the run, so that records which a killed process or an unreachable tracker
    lost are sent with the next ones. A resumed run repeats the steps after its checkpoint; the tracker has them.
    """

    def __init__(self, metrics: Path, tracker: Tracker) -> None:
        self._metrics, self._tracker = metrics, tracker
        self._read_to, self._last = 0, dict(tracker.last_steps())

    def send(self, ask: Callable[[], None] = lambda: None) -> None:
        """Send every complete line that the tracker lacks; the next call begins with the one for which it raises.

        `ask` is called before each record.
        """
        for end, record in self._lines():
            ask()
            if record.step > self._last.get(record.phase, -1):
                self._tracker.log(record)
                self._last[record.phase] = record.step
            self._read_to = end

    def lacking(self) -> int:
        """Return the number of unsent records that the tracker lacks."""
        return sum(record.step > self._last.get(record.phase, -1) for _, record in self._lines())

    def _lines(self) -> Iterator[tuple[int, TrackedRecord]]:
        return records(self._metrics, self._read_to)


def records(metrics: Path, start: int = 0) -> Iterator[tuple[int, TrackedRecord]]:
    """Yield (offset of the line's end, record) for each complete line after the offset `start`."""
    if not metrics.is_file():
        return
    with metrics.open("rb") as file:
        end = file.seek(start)
        *lines, _ = file.read().split(b"\n")
    for line in lines:
        end += len(line) + 1
        with suppress(ValueError):  # a damaged line has no record, as for every reader of the file
            read = json.loads(line)
            record = tracked_record(read) if isinstance(read, dict) else None
            if record is not None:
                yield end, record


def send_run(folder: Path, chosen: ChosenTracker) -> tuple[int, int]:
    """Send the records of a run that its tracker lacks; return their number, and the number of those it had.

    Raises:
        InputError: the folder is not that of a run.
    """
    run, found = tracked_run(folder), RunFolder(folder)
    all_of_them = sum(1 for _ in records(found.metrics))
    tracker = chosen.open(run)
    try:
        feed = Feed(found.metrics, tracker)
        lacking = feed.lacking()
        feed.send()
    finally:
        tracker.close(_outcome(found))
    return lacking, all_of_them - lacking


def _outcome(run: RunFolder) -> Outcome:
    """Return how a run ended by its summary, which one that was interrupted has, too."""
    try:
        summary = json.loads(run.summary.read_bytes())
    except (FileNotFoundError, ValueError):  # none yet, or a damaged one, as for every reader of it
        return "stopped"
    return "finished" if isinstance(summary, dict) and summary.get("finished") is True else "stopped"
