"""The run that an earlier start of the same torchrun has begun: its agent remembers the folder for the next start.

A start that follows lost processes is told the same command as the first one, and cannot know from it which folder that
run has, or whether a folder that it names is of an earlier command.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.processes.current_ranks import own_rank

if TYPE_CHECKING:
    from torch.distributed import Store

PATIENCE = timedelta(seconds=60)
"""Time in which the agent's store answers."""


def remembers() -> bool:
    """Return whether this process is rank 0 of a torchrun whose agent keeps a store from start to start."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and own_rank() == 0


def remember_begun(settings: str, folder: Path) -> None:
    """Have torchrun, if it has started this process, remember the folder in which the run of some settings begins."""
    if remembers():
        _agents_store().set(_key(settings), str(folder.absolute()))


def begun_by_torchrun(settings: str) -> Path | None:
    """Return the folder in which an earlier start has begun the run of some settings; None if none has."""
    store = _agents_store()
    return Path(store.get(_key(settings)).decode()) if store.check([_key(settings)]) else None


def _key(settings: str) -> str:
    return f"grouprl/run/{settings}"


def _agents_store() -> Store:
    import torch.distributed as dist

    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=PATIENCE)
