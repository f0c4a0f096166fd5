"""TensorBoard: event files in the run folder, written by the package tensorboardX."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event

from grouprl.trackers.tracker import Outcome, TrackedRecord, TrackedRun

FILES = "events.out.tfevents.*"
HEADER = struct.Struct("<QI")
"""Of each record of an event file: its length, and a checksum of that; another checksum of four bytes follows it."""


class TensorBoard:
    """Writes scalars below `trackers/tensorboard`; each process adds a file, and TensorBoard shows them as one run."""

    def __init__(self, folder: Path) -> None:
        self._last = _last_steps(folder)
        number = len(
            list(folder.glob(FILES))
        )  # names hold a second; a process soon after another would overwrite its file
        self._writer = SummaryWriter(str(folder), flush_secs=10, filename_suffix=f".{number}")

    def last_steps(self) -> Mapping[str, int]:
        """Return what the event files hold."""
        return self._last

    def log(self, record: TrackedRecord) -> None:
        """Write each number as a scalar at the step of its phase."""
        for name, value in record.values.items():
            self._writer.add_scalar(name, value, record.step)
        self._writer.flush()

    def close(self, outcome: Outcome) -> None:
        """Close the file."""
        self._writer.close()


def open_tensorboard(run: TrackedRun, *, folder: str | None = None) -> TensorBoard:
    """Return the tracker; `folder` holds a folder for each run (default: `trackers/tensorboard` of the run itself)."""
    return TensorBoard(run.own / "tensorboard" if folder is None else Path(folder) / f"{run.name}-{run.id}")


def _last_steps(folder: Path) -> dict[str, int]:
    last: dict[str, int] = {}
    for file in sorted(folder.glob(FILES)):
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
