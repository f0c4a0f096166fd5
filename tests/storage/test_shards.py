"""Parts of a checkpoint that several processes write are all there, or the run says so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grouprl.core.errors import RunError
from grouprl.policy.sharded.rank_checkpoint import save_parts
from grouprl.storage.shards import write_parts


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_without_the_parts_of_another_rank_is_none(tmp_path: Path) -> None:
    """On a machine that does not share the run's folder a rank writes into one of the same name."""

    def written(work: object, folder: Path) -> list[None]:
        write_parts({"weights/a": torch.ones(3)}, folder, None)
        return [None, None]

    ranks: Any = SimpleNamespace(each=written)
    save_parts(ranks, tmp_path / "shared")

    def lost(work: object, folder: Path) -> list[None]:
        written(work, folder)
        next(folder.glob("*.distcp")).unlink()
        return [None, None]

    ranks.each = lost
    with pytest.raises(RunError, match=r"holds no __0_0\.distcp.*is not shared. Give --folder"):
        save_parts(ranks, tmp_path / "apart")
