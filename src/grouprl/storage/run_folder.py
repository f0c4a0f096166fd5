"""Files that are either complete or absent, and the folder of a run."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from grouprl.core.errors import InputError, RunError, suggest
from grouprl.core.json_types import JsonObject

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; if the block succeeds, it replaces `path` atomically, otherwise it is
    removed.

    Works for files and folders. Raises RunError with an explanation if the disk is full or the folder cannot be written
    to.
    """
    temporary = _beside(path, "part")
    with in_words(path):
        try:
            path.parent.mkdir(exist_ok=True)  # the user may have removed files from the folder of a running run
            _remove(temporary)
            yield temporary
            _open_to_readers(temporary)
            _sync(temporary)
            _put(temporary, path)
        except BaseException:
            _remove(temporary)
            raise


@contextmanager
def in_words(path: Path) -> Iterator[None]:
    """Turn an error of the system while writing `path` into a RunError that states which data are safe."""
    try:
        yield
    except OSError as error:
        raise _in_words(error.errno, error, path) from error
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        raise _in_words(int(code[1]) if code else None, error, path) from error


def settle(folder: Path) -> None:
    """Clean up after a killed process in `folder`: undo a replacement that was not finished, and remove incomplete
    files.
    """
    for old in folder.glob(".*.old"):
        path = folder / old.name[1:-4]
        if not path.exists():
            os.rename(old, path)
    for left in (*folder.glob(".*.old"), *folder.glob(".*.part")):
        _remove(left)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, data: object) -> None:
    """Write JSON atomically; raises ValueError for NaN."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


class RunFolder:
    """The folder of one run, and the paths of its files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.facts = path / "run.json"
        self.code = path / "code.json"
        self.data = path / "data.json"
        self.rollouts = path / "rollouts"
        self.checkpoints = path / "checkpoints"
        self.verdicts = path / "verdicts"
        self.probe = path / "judge_probe.json"
        self.reference = path / "reference.safetensors"
        self.before = path / "before.json"
        self.best = path / "best.json"
        self.samples = path / "samples.json"
        self.summary = path / "summary.json"
        self.notes = path / "notes.log"
        self.health = path / "health.json"
        self.model = path / "model"
        self.lock = path / ".lock"
        self.pace = path / ".pace"

    def note(self, text: str) -> None:
        """Append a sentence and the time to notes.log: what a run says when its output is closed."""
        with in_words(self.notes), self.notes.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Create a new run folder; raises InputError if the path exists or cannot be created, RunError if the disk is
        full.

        A folder left by a process that was killed before its run began (before config.yaml was written) is used again.
        """
        run = cls(path)
        if path.exists() and not run._unbegun():
            raise InputError(
                f"the run folder {path} exists already",
                "a run never overwrites another",
                "Continue it with --resume, or choose another with --folder",
            )
        with in_words(path):
            try:
                for folder in (path, run.rollouts, run.checkpoints):
                    folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                if error.errno in FULL:
                    raise
                raise InputError(
                    f"the run folder {path} cannot be made: {error.strerror or error}",
                    "a run writes into a folder of its own",
                    "Choose another place with --folder",
                ) from error
        return run

    def _unbegun(self) -> bool:
        """Return whether the folder holds only files that a run makes before its config.yaml."""
        if not self.path.is_dir():
            return False
        made = {self.rollouts, self.checkpoints, self.lock, self.pace, self.facts, self.code, self.data}
        halves = {_beside(each, "part") for each in (self.facts, self.config, self.code, self.data)}
        inside = [x for folder in (self.rollouts, self.checkpoints) if folder.is_dir() for x in folder.iterdir()]
        return not inside and set(self.path.iterdir()) <= made | halves

    def discard(self) -> None:
        """Remove a folder in which nothing has been recorded, and the `runs` folder around it if that is then empty."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.parent.name == "runs":
            with suppress(OSError):
                self.path.parent.rmdir()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run folder; raises InputError if it is not one."""
        run = cls(path)
        if not path.exists():
            raise InputError(f"there is no run {path}", "a run is named by its folder", runs_meant(path))
        if not run.config.is_file():
            raise InputError(f"{path} is not a run folder", "a run folder holds config.yaml", "Check the path")
        return run

    def append_metrics(self, record: Mapping[str, object]) -> None:
        """Add one line to metrics.jsonl."""
        line = json.dumps(dict(record), allow_nan=False) + "\n"
        with in_words(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.write(line)

    def read_metrics(self) -> list[dict[str, object]]:
        """Return all complete records in metrics.jsonl; damaged lines are skipped, as nothing depends on the log."""
        if not self.metrics.is_file():
            return []
        # After the last line break there is nothing, or a record whose writing was cut off.
        *lines, _ = self.metrics.read_bytes().split(b"\n")
        return [record for line in lines if (record := _record(line)) is not None]

    def mend_metrics(self, size: int, steps: int) -> list[int]:
        """Rewrite metrics.jsonl with the complete records of its first `size` bytes, up to a training step.

        Return the training steps that it has no record of.
        """
        lines = self.metrics.read_bytes()[:size].split(b"\n") if self.metrics.is_file() else []
        found = [(line, _record(line) or {}) for line in lines]
        known = [(line, record) for line, record in found if {"phase", "step"} <= record.keys()]
        retained = [line for line, record in known if record["phase"] != "train" or record["step"] <= steps]
        write_text(self.metrics, "".join(line.decode() + "\n" for line in retained))
        recorded = {record["step"] for _, record in known if record["phase"] == "train"}
        return [step for step in range(1, steps + 1) if step not in recorded]

    def sync_metrics(self) -> None:
        """Flush metrics.jsonl to disk."""
        with in_words(self.metrics), self.metrics.open("ab") as file:
            os.fsync(file.fileno())

    def rewind(self, metrics_size: int, step: int) -> None:
        """Remove everything recorded after a checkpoint: metrics beyond `metrics_size` bytes, and rollouts beyond
        `step`.
        """
        have = self.metrics.stat().st_size if self.metrics.exists() else 0
        if have < metrics_size:
            raise RunError(
                f"{self.metrics} has {have} bytes, but the checkpoint was taken at {metrics_size}: it was cut off"
            )
        with in_words(self.path):
            if self.metrics.exists():
                os.truncate(self.metrics, metrics_size)
            for folder in (self.path, self.rollouts, self.verdicts):
                settle(folder)
            for path in self.rollouts.glob("step-*.parquet"):
                if int(path.stem.removeprefix("step-")) > step:
                    path.unlink()

    def reference_of(self, renewed: int | None) -> Path:
        """Return the path of the reference's weights: the initial ones, or those of the policy at step `renewed`."""
        return self.reference if renewed is None else self.path / f"reference-{renewed:06d}.safetensors"

    def rollout_file(self, step: int) -> Path:
        """Return the path of the rollouts of `step` (counted from 1)."""
        return self.rollouts / f"step-{step:06d}.parquet"


def _record(line: bytes) -> JsonObject | None:
    """Return the record in a line of metrics.jsonl; None if the line is damaged."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(isinstance(v, str) or _is_number(v) for v in found.values()):
        return None
    return found if isinstance(found.get("phase", ""), str) and isinstance(found.get("step", 0), int) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def digest(path: Path, size: int | None = None) -> str:
    """Return the SHA-256 of a file, or of its first `size` bytes, in hexadecimal."""
    found, left = hashlib.sha256(), path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            found.update(block)
            left -= len(block)
    return found.hexdigest()


def cannot_be_made(path: Path) -> str:
    """Return why no run folder can be created at `path`, "" if it can; the check briefly creates an empty folder next
    to it.
    """
    try:
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
    except OSError as error:  # its name is too long, or its links form a circle
        return error.strerror or str(error)
    if not there.is_dir():
        return f"{there} is not a folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"nothing may be written to {there}"
    if there == path:
        return ""
    try:  # for /proc and similar folders only an attempt can tell, even for root
        os.rmdir(tempfile.mkdtemp(prefix=".grouprl-", dir=there))
    except OSError as error:
        return f"nothing can be made in {there}: {error.strerror or error}"
    return ""


def runs_meant(path: Path) -> str:
    """Return a remedy that lists the runs next to `path` that may have been meant."""
    try:
        there = [each.name for each in path.parent.iterdir() if (each / "config.yaml").is_file()]
    except OSError:
        there = []
    return suggest(path.name, there) if there else f"There are no runs in {path.parent}."


def free_folder(path: Path) -> Path:
    """Return `path` if nothing has that name, otherwise the first of `path-2`, `path-3` … that is free."""
    candidate, n = path, 1
    while candidate.exists():
        n += 1
        candidate = path.with_name(f"{path.name}-{n}")
    return candidate


def _in_words(code: int | None, error: Exception, path: Path) -> RunError:
    safe = "Everything written before is intact"
    if code in FULL:
        return RunError(
            f"the disk is full: {path} could not be written ({error}). {safe}; free some space and continue with "
            "--resume."
        )
    if code in FORBIDDEN:
        return RunError(
            f"{path} could not be written: {error}. {safe}; make the folder writable and continue with --resume."
        )
    if code == errno.ENOENT:
        return RunError(
            f"{path} could not be written: its folder was removed. Leave the folder of a run alone while it runs"
        )
    return RunError(f"{path} could not be written: {error}. {safe}.")


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{what}")


def _put(temporary: Path, path: Path) -> None:
    """Move `temporary` to `path`; an existing folder is kept next to it until the new one is in place."""
    old = _beside(path, "old")
    _remove(old)
    if path.is_dir():
        # No system call replaces a folder that is not empty; `settle` undoes this if the process is killed in
        # between.
        os.rename(path, old)
    try:
        os.replace(temporary, path)
    except OSError:
        if old.exists():
            os.rename(old, path)
        raise
    # The new name has to be on disk before the old content goes: a power cut must leave one of them.
    sync_folder(path.parent)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _open_to_readers(path: Path) -> None:
    """Give files the permissions that the user's umask allows, because some libraries make them readable by their owner
    only.
    """
    # The mask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    for entry in [path] if path.is_file() else [path, *path.rglob("*")]:
        if not entry.is_symlink():
            entry.chmod((0o777 if entry.is_dir() else 0o666) & ~mask)


def _sync(path: Path) -> None:
    for entry in [path] if path.is_file() else [*path.rglob("*"), path]:
        if entry.is_dir():
            sync_folder(entry)
        elif entry.is_file():
            with entry.open("rb+") as handle:
                os.fsync(handle.fileno())


def sync_folder(path: Path) -> None:
    """Flush the entries of a folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
