"""Verdicts of a judge, stored in the run folder, so that a resumed run gives the same rewards as before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from grouprl.storage.run_folder import replacing


@dataclass(frozen=True)
class VerdictStore:
    """Scores by request to the judge, each in its own file that is written atomically; safe for several processes."""

    folder: Path

    def find(self, request: object, count: int) -> tuple[float, ...] | None:
        """Return the `count` scores that the judge gave for this request; None if none are stored."""
        try:
            found = json.loads(self._file(request).read_bytes())["scores"]
        except (OSError, ValueError, KeyError, TypeError):
            return None  # a damaged file counts as absent: the request is sent again
        usable = isinstance(found, list) and len(found) == count and all(map(_is_score, found))
        return tuple(map(float, found)) if usable else None

    def keep(self, request: object, scores: Sequence[float]) -> None:
        """Store the judge's scores; raise RunError if the disk is full or the folder is not writable."""
        with replacing(self._file(request)) as temporary:
            temporary.write_text(json.dumps({"scores": list(scores)}), encoding="utf-8")

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


_GUARD = Lock()
_LOCKS: WeakValueDictionary[Path, Lock] = WeakValueDictionary()
"""A lock for each request that is being answered."""


def _is_score(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= 1
