"""A temporary folder that is removed with its run; the next run removes the folders of killed runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

PREFIX, LOCK, NEW = "grouprl-servers-", "lock", "lock.new"


class ServerFolder:
    """A folder of this process, which holds a lock on it while the folder is in use."""

    def __init__(self) -> None:
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # The lock is taken before the folder gets its final name, so if another process can take it, the owner is dead.
        lock = os.open(self.path / NEW, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        (self.path / NEW).rename(self.path / LOCK)
        self.remove = weakref.finalize(self, _remove, self.path, lock)
        """Removes the folder; a second call does nothing."""


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def remove_abandoned() -> None:
    """Remove the folders of processes that were killed; those of other users stay."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        try:
            lock = os.open(path, os.O_RDWR)
        except OSError:  # another user's, or removed in the meantime
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
        else:
            _remove(path.parent, lock)
