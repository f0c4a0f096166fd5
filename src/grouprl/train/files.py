"""Files that are either whole or absent, and the folder of a run."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grouprl.errors import InputError, RunError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends well it takes its place at once, else it is removed.

    Works for files and folders. A full disk becomes a RunError that says what is safe.
    """
    temporary = path.with_name(f".{path.name}.part")
    _remove(temporary)
    try:
        yield temporary
        _sync(temporary)
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        _remove(temporary)
        raise _in_words(error, path) from error
    except BaseException:
        _remove(temporary)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically; NaN is refused."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


class RunFolder:
    """The folder of one run and what lies where in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.facts = path / "run.json"
        self.rollouts = path / "rollouts"
        self.checkpoints = path / "checkpoints"
        self.reference = path / "reference.safetensors"
        self.before = path / "before.json"
        self.samples = path / "samples.json"
        self.summary = path / "summary.json"
        self.health = path / "health.json"
        self.model = path / "model"

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make a new run folder; InputError if something is there already."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(
                f"the run folder {path} exists already",
                "a run never overwrites another",
                "Continue it with --resume, or choose another with --folder",
            )
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path)
        run.rollouts.mkdir()
        run.checkpoints.mkdir()
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run folder; InputError if it is none."""
        run = cls(path)
        if not run.config.is_file():
            raise InputError(f"{path} is not a run folder", "a run folder holds config.yaml", "Check the path")
        return run

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, allow_nan=False) + "\n")
        except OSError as error:
            raise _in_words(error, self.metrics) from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines of metrics.jsonl."""
        if not self.metrics.is_file():
            return []
        lines = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def metrics_size(self) -> int:
        """Bytes of metrics.jsonl, all on disk."""
        if not self.metrics.exists():
            return 0
        with self.metrics.open("rb+") as file:
            os.fsync(file.fileno())
        return self.metrics.stat().st_size

    def rewind(self, metrics_size: int, step: int) -> None:
        """Forget what was recorded after a checkpoint: metrics beyond `metrics_size` bytes, rollouts beyond `step`."""
        have = self.metrics.stat().st_size if self.metrics.exists() else 0
        if have < metrics_size:
            raise RunError(
                f"{self.metrics} has {have} bytes, the checkpoint was taken at {metrics_size}: it was cut off"
            )
        if self.metrics.exists():
            os.truncate(self.metrics, metrics_size)
        for path in self.rollouts.glob("*.parquet"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()

    def reference_of(self, renewed: int | None) -> Path:
        """Where the weights of the reference lie: the first one's, or those of the policy at step `renewed`."""
        return self.reference if renewed is None else self.path / f"reference-{renewed:06d}.safetensors"

    def rollout_file(self, step: int) -> Path:
        """Where the rollouts of `step` (counted from 1) lie."""
        return self.rollouts / f"step-{step:06d}.parquet"


def free_folder(path: Path) -> Path:
    """Return `path`, or `path-2`, `path-3` … the first that does not exist."""
    candidate, n = path, 1
    while candidate.exists():
        n += 1
        candidate = path.with_name(f"{path.name}-{n}")
    return candidate


def _in_words(error: OSError, path: Path) -> RunError:
    if error.errno == errno.ENOSPC:
        return RunError(
            f"the disk is full: {path} could not be written. Everything written before is whole; free some space and "
            "continue with --resume."
        )
    return RunError(f"{path} could not be written: {error}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            with file.open("rb+") as handle:
                os.fsync(handle.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
