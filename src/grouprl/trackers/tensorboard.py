"""TensorBoard: event files in the run folder, written by the package tensorboardX."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import scalar

from grouprl.trackers.tracker import Outcome, TrackedRecord, TrackedRun

FILES = "events.out.tfevents.*"
HEADER = struct.Struct("<QI")
"""Header of each record of a file: its length, and a checksum of that; a further checksum of four bytes follows."""


class TensorBoard:
    """Writes scalars below `trackers/tensorboard`; each process adds a file, and TensorBoard shows them as one run.

    A record is one event, on disk when `log` returns: tensorboardX's SummaryWriter queues each scalar as an event of
    its own for a thread, so that a process killed in between leaves a part of a record, which looks like the whole.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(folder.glob(FILES))
        self._last = _last_steps(files)
        # names hold a second; a process soon after another would overwrite its file
        self._writer = EventsWriter(str(folder / "events"), f".{len(files)}")

    def last_steps(self) -> Mapping[str, int]:
        """Return what the event files hold."""
        return self._last

    def log(self, record: TrackedRecord) -> None:
        """Write the numbers of a record as scalars at the step of its phase."""
        values = [value for name, number in record.values.items() for value in scalar(name, number).value]
        self._writer.write_event(Event(wall_time=time.time(), step=record.step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self, outcome: Outcome) -> None:
        """Close the file."""
        self._writer.close()


def open_tensorboard(run: TrackedRun, *, folder: str | None = None) -> TensorBoard:
    """Return the tracker; `folder` holds a folder for each run (default: `trackers/tensorboard` of the run itself)."""
    return TensorBoard(run.own / "tensorboard" if folder is None else Path(folder) / f"{run.name}-{run.id}")


def _last_steps(files: list[Path]) -> dict[str, int]:
    last: dict[str, int] = {}
    for file in files:
        for event in _events(file.read_bytes()):
            for value in event.summary.value:
                phase = value.tag.partition("/")[0]
                last[phase] = max(last.get(phase, -1), event.step)
    return last


def _events(data: bytes) -> Iterator[Event]:
    """Yield the complete events of a file; a killed process may have left half of one."""
    at = 0
    while at + HEADER.size <= len(data):
        length, _ = HEADER.unpack_from(data, at)
        begin, end = at + HEADER.size, at + HEADER.size + length
        if end + 4 > len(data):
            return
        yield Event.FromString(data[begin:end])
        at = end + 4
