"""Verdicts of a judge, stored in the run folder, so that a resumed run gives the same rewards as before."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, get_ident
from typing import Any
from weakref import WeakValueDictionary

from grouprl.core.numbers import is_number
from grouprl.storage.run_folder import in_words


@dataclass(frozen=True)
class VerdictStore:
    """Scores by request to the judge, each in its own file that is written atomically; safe for several processes."""

    folder: Path

    def find(self, request: object, *counts: int) -> tuple[float, ...] | None:
        """Return the scores that the judge gave for this request, as many as one of `counts`; None if none are stored.

        A damaged file counts as absent: the request is sent again.
        """
        try:
            found = json.loads(self._file(request).read_bytes())["scores"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        usable = isinstance(found, list) and len(found) in counts and all(map(_is_score, found))
        return tuple(map(float, found)) if usable else None

    def keep(self, request: object, scores: Sequence[float], *counts: int) -> tuple[float, ...]:
        """Store the judge's scores, and return those that stand: another process may have stored its own first.

        Raises:
            RunError: the disk is full, or the folder cannot be written to.
        """
        file = self._file(request)
        # Threads and processes may store the same verdict at once, so each writes a file of its own.
        own = file.with_name(f".{file.stem}.{os.getpid()}.{get_ident()}.part")
        with in_words(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                _write(own, json.dumps({"scores": list(scores)}))
                # The first stands: others may have been paid by it already. A damaged one is replaced.
                if not _placed_first(own, file) and (first := self.find(request, len(scores), *counts)) is not None:
                    return first
                os.replace(own, file)
            finally:
                own.unlink(missing_ok=True)
        return tuple(map(float, scores))

    @contextmanager
    def alone(self, request: object) -> Iterator[None]:
        """Keep other threads of this process from the same request during the block."""
        file = self._file(request)
        with _GUARD:
            own = _LOCKS.setdefault(file, Lock())
        with own:
            yield

    def _file(self, request: object) -> Path:
        mark = json.dumps(request, sort_keys=True).encode()
        return self.folder / f"{hashlib.blake2b(mark, digest_size=20).hexdigest()}.json"


def _write(file: Path, text: str) -> None:
    """Write a file and flush it to disk."""
    with file.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())


def _placed_first(own: Path, file: Path) -> bool:
    """Put `own` at the path `file` if that is free, and return whether it was.

    Without links of files, one that another process stores in the same instant is overwritten.
    """
    try:
        os.link(own, file)
    except FileExistsError:
        return False
    except OSError:
        return not file.exists()
    return True


_GUARD = Lock()
_LOCKS: WeakValueDictionary[Path, Lock] = WeakValueDictionary()
"""A lock for each request that is being answered."""


def _is_score(value: Any) -> bool:
    number = is_number(value)
    return number and 0 <= value <= 1
