"""Files that are either whole or absent, and the folder of a run."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
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
    """Yield a temporary path beside `path`; when the block succeeds it replaces `path` at once, else it is removed.

    Works for files and folders. Raises RunError, in words, for a full disk or a folder that cannot be written to.
    """
    temporary = _beside(path, "part")
    with in_words(path):
        try:
            path.parent.mkdir(exist_ok=True)  # somebody may have tidied up in a running run's folder
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
    """Turn an error of the system on writing `path` into a RunError that says what is safe."""
    try:
        yield
    except OSError as error:
        raise _in_words(error.errno, error, path) from error
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        raise _in_words(int(code[1]) if code else None, error, path) from error


def settle(folder: Path) -> None:
    """Finish what a killed process left in `folder`: a replacement that had begun is undone, halves are removed."""
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
    """Write JSON atomically; NaN is refused."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


class RunFolder:
    """The folder of one run and the places of its files."""

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
        self.reference = path / "reference.safetensors"
        self.before = path / "before.json"
        self.samples = path / "samples.json"
        self.summary = path / "summary.json"
        self.health = path / "health.json"
        self.model = path / "model"
        self.lock = path / ".lock"

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make a new run folder; InputError if something is there already or it cannot be made, RunError if the disk
        is full.

        A folder left by a process killed before its run had begun (before config.yaml was written) is used again.
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
        """Whether the folder holds nothing but what a run makes before its config.yaml."""
        if not self.path.is_dir():
            return False
        made = {self.rollouts, self.checkpoints, self.lock, self.facts, self.code, self.data}
        halves = {_beside(each, "part") for each in (self.facts, self.config, self.code, self.data)}
        inside = [x for folder in (self.rollouts, self.checkpoints) if folder.is_dir() for x in folder.iterdir()]
        return not inside and set(self.path.iterdir()) <= made | halves

    def discard(self) -> None:
        """Remove a folder in which nothing has been recorded, and `runs` around it where it is empty then."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.parent.name == "runs":
            with suppress(OSError):
                self.path.parent.rmdir()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run folder; InputError if it is not one."""
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
        """All whole lines of metrics.jsonl that are records; damaged ones are left out, as nothing depends on a log."""
        if not self.metrics.is_file():
            return []
        *lines, _ = self.metrics.read_bytes().split(b"\n")
        return [record for line in lines if (record := _record(line)) is not None]

    def mend_metrics(self, size: int, steps: int) -> int:
        """Write metrics.jsonl anew with the records that are whole in its first `size` bytes, up to a training step.

        Returns how many lines are left out.
        """
        lines = self.metrics.read_bytes()[:size].split(b"\n") if self.metrics.is_file() else []
        found = [(line, _record(line) or {}) for line in lines]
        known = [(line, record) for line, record in found if {"phase", "step"} <= record.keys()]
        retained = [line for line, record in known if record["phase"] != "train" or record["step"] <= steps]
        write_text(self.metrics, "".join(line.decode() + "\n" for line in retained))
        return len([line for line in lines if line]) - len(retained)

    def sync_metrics(self) -> None:
        """Flush metrics.jsonl to disk."""
        with in_words(self.metrics), self.metrics.open("ab") as file:
            os.fsync(file.fileno())

    def rewind(self, metrics_size: int, step: int) -> None:
        """Forget what was recorded after a checkpoint: metrics beyond `metrics_size` bytes, rollouts beyond `step`."""
        have = self.metrics.stat().st_size if self.metrics.exists() else 0
        if have < metrics_size:
            raise RunError(
                f"{self.metrics} has {have} bytes, the checkpoint was taken at {metrics_size}: it was cut off"
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
        """Where the weights of the reference lie: the first one's, or those of the policy at step `renewed`."""
        return self.reference if renewed is None else self.path / f"reference-{renewed:06d}.safetensors"

    def rollout_file(self, step: int) -> Path:
        """Where the rollouts of `step` (counted from 1) lie."""
        return self.rollouts / f"step-{step:06d}.parquet"


def _record(line: bytes) -> JsonObject | None:
    """Return what a line of metrics.jsonl says; None where it is damaged."""
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
    """SHA-256 of a file, or of its first `size` bytes, in hexadecimal."""
    found, left = hashlib.sha256(), path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            found.update(block)
            left -= len(block)
    return found.hexdigest()


def cannot_be_made(path: Path) -> str:
    """Return why a run folder cannot be made there, "" where it can: by an empty one beside it, for a moment."""
    try:
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
    except OSError as error:  # its name is too long, or goes in a circle
        return error.strerror or str(error)
    if not there.is_dir():
        return f"{there} is no folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"nothing may be written to {there}"
    if there == path:
        return ""
    try:  # of /proc and its like only a trial tells, even for root
        os.rmdir(tempfile.mkdtemp(prefix=".grouprl-", dir=there))
    except OSError as error:
        return f"nothing can be made in {there}: {error.strerror or error}"
    return ""


def runs_meant(path: Path) -> str:
    """Return a remedy: runs next to `path` that may have been meant."""
    try:
        there = [each.name for each in path.parent.iterdir() if (each / "config.yaml").is_file()]
    except OSError:
        there = []
    return suggest(path.name, there) if there else f"There are no runs in {path.parent}."


def free_folder(path: Path) -> Path:
    """Return `path`, or `path-2`, `path-3` … the first that does not exist."""
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
    """Move `temporary` to `path`; a folder that is there already stays beside it until the new one is in its place."""
    old = _beside(path, "old")
    _remove(old)
    if path.is_dir():
        os.rename(path, old)
    try:
        os.replace(temporary, path)
    except OSError:
        if old.exists():
            os.rename(old, path)
        raise
    sync_folder(path.parent)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _open_to_readers(path: Path) -> None:
    """Give files the permissions that the user's umask allows: some libraries write them for their owner alone."""
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
