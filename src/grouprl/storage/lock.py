"""The lock that allows only one process at a time to work on a run folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import weakref
from pathlib import Path

from grouprl.core.errors import InputError
from grouprl.storage.run_folder import RunFolder, in_words

TRIES, PAUSE = 5, 0.05
"""Tries for the lock, and seconds between them: a process that asks whether a run is active holds it briefly."""
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class FolderLock:
    """The lock of a run folder, held from construction to `release`.

    It belongs to the process, not to the file, so it vanishes with the process, however that ends.

    Raises:
        InputError: another process holds it; the message names it.
        RunError: the lock file cannot be written.
    """

    def __init__(self, run: RunFolder) -> None:
        self.works = True
        """False on a file system without locks, where two runs on one folder would not be noticed."""
        self._handle = _open(run.lock)
        try:
            _take(self._handle)
        except BlockingIOError:
            os.close(self._handle)
            raise _in_use(run) from None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                os.close(self._handle)
                raise
            self.works = False
        self._owner = os.getpid()
        _HELD.add(self)
        try:
            with in_words(run.lock):
                _sign(self._handle)
        except BaseException:  # for instance if the disk is full: the caller has no lock to release
            self.release()
            raise

    def release(self) -> None:
        """Release the lock; may be called twice. In a forked child this releases the copy, not the lock."""
        handle, self._handle = self._handle, -1
        if handle < 0:
            return
        # A fork shares the open file that the lock belongs to, so unlocking it here would unlock it for the parent.
        if os.getpid() == self._owner:
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _let_go() -> None:
    """Close the inherited descriptors in a forked child, so that a child that outlives its parent holds no lock."""
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_let_go)


def _take(handle: int) -> None:
    """Lock a file for this process alone.

    Raises:
        BlockingIOError: another process keeps it.
    """
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                raise
            time.sleep(PAUSE)


def _open(path: Path) -> int:
    with in_words(path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _sign(handle: int) -> None:
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(holder).encode(), 0)


def _in_use(run: RunFolder) -> InputError:
    try:
        holder = json.loads(run.lock.read_bytes())
        who = f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        who = "another process"
    return InputError(
        f"the run folder {run.path} is in use by {who}",
        "one process at a time works on a run",
        "Wait until it ends, stop it, or choose another folder with --folder",
    )
