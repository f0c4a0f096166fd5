"""A lock that was not taken whole is not held."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from grouprl import RunError
from grouprl.storage.lock import FolderLock
from grouprl.storage.run_folder import RunFolder


def test_a_lock_that_cannot_be_signed_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(RunError, match="the disk is full") as met:
            FolderLock(RunFolder(tmp_path))
    assert met.value.__traceback__ is not None  # which holds the lock that was not made
    FolderLock(RunFolder(tmp_path)).release()
