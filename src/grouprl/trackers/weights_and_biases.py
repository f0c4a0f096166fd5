"""Weights & Biases: offline below the run folder unless `mode: online` is set."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import wandb
from wandb.proto.wandb_internal_pb2 import HistoryRecord, Record

from grouprl.core.errors import InputError
from grouprl.trackers.tracker import Outcome, TrackedRecord, TrackedRun

INIT_TIMEOUT = 30.0
"""Seconds for a server's first answer: W&B's own 90 would hold the end of a run up longer than the run waits."""
BLOCK, FILE_HEADER = 32768, 7
HEADER = struct.Struct("<IHB")
"""Header of each chunk: a checksum, its length, and its kind."""
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class WeightsAndBiases:
    """Logs to a run of W&B with this run's identity. Its own steps are numbered as the records come, and never go back;
    the charts of each phase have the phase's steps as their axis.
    """

    def __init__(self, run: TrackedRun, project: str, entity: str | None, mode: Literal["offline", "online"]) -> None:
        run.own.mkdir(exist_ok=True)
        self._last, self._number = _kept(run.own / "wandb")
        self._defined: set[str] = set()
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            init_timeout=INIT_TIMEOUT,
        )
        self._run = wandb.init(
            project=project,
            entity=entity,
            id=run.id,
            name=run.name,
            dir=str(run.own),
            config=dict(run.config),
            mode=mode,
            resume="allow",
            reinit="create_new",
            settings=settings,
        )
        if mode == "online":
            self._last, self._number = _resumed(self._run, self._last, self._number)

    def last_steps(self) -> Mapping[str, int]:
        """Return what the files of earlier processes hold, or the server."""
        return self._last

    def log(self, record: TrackedRecord) -> None:
        """Log the numbers, with the step of the phase beside them."""
        if record.phase not in self._defined:
            self._run.define_metric(f"{record.phase}/step")
            self._run.define_metric(f"{record.phase}/*", step_metric=f"{record.phase}/step")
            self._defined.add(record.phase)
        self._number += 1
        self._run.log({**record.values, f"{record.phase}/step": record.step}, step=self._number)

    def close(self, outcome: Outcome) -> None:
        """Finish the run in W&B; even an interrupted one can be continued later."""
        self._run.finish(exit_code=1 if outcome == "failed" else 0)


def open_wandb(
    run: TrackedRun, *, project: str = "grouprl", entity: str | None = None, mode: str = "offline"
) -> WeightsAndBiases:
    """Return the tracker. Offline, its files are in `trackers/wandb` of the run folder, for `wandb sync`.

    Raises:
        InputError: a `mode` that is neither offline nor online.
    """
    if mode not in ("offline", "online"):
        raise InputError(f"the tracker wandb has mode: {mode!r}", "modes are offline and online", "Choose one of them")
    return WeightsAndBiases(run, project, entity, mode)  # type: ignore[arg-type]


def _resumed(run: wandb.Run, last: dict[str, int], number: int) -> tuple[dict[str, int], int]:
    """Return what the server knows of a resumed run, where that is more than the files do."""
    known = {key.removesuffix("/step"): int(run.summary[key]) for key in dict(run.summary) if key.endswith("/step")}
    phases = {phase: max(known.get(phase, -1), last.get(phase, -1)) for phase in (*known, *last)}
    return phases, max(number, run.step - 1)


def _kept(folder: Path) -> tuple[dict[str, int], int]:
    """Return the last step of each phase in the files of earlier processes, and W&B's own last step."""
    last: dict[str, int] = {}
    number = -1
    for file in sorted(folder.glob("*run-*/run-*.wandb")):
        for history in _histories(file.read_bytes()):
            number = max(number, history.step.num)
            for item in history.item:
                name = item.key or ".".join(item.nested_key)
                phase, _, rest = name.rpartition("/")
                if rest == "step" and phase:
                    last[phase] = max(last.get(phase, -1), int(float(item.value_json)))
    return last, number


def _histories(data: bytes) -> Iterator[HistoryRecord]:
    for packed in _records(data):
        record = Record.FromString(packed)
        if record.WhichOneof("record_type") == "history":
            yield record.history


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the complete records of a file in LevelDB's log format: blocks of chunks, a record in one or several."""
    at, parts = FILE_HEADER, b""
    while at + HEADER.size <= len(data):
        if BLOCK - at % BLOCK < HEADER.size:  # the rest of a block is too short for a chunk
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(data, at)
        begin, at = at + HEADER.size, at + HEADER.size + length
        if at > len(data) or kind not in (WHOLE, FIRST, MIDDLE, LAST):
            return
        parts = data[begin:at] if kind in (WHOLE, FIRST) else parts + data[begin:at]
        if kind in (WHOLE, LAST):
            yield parts
