"""Processes of a run that was refused at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.training.opening import start
from reward_processes import FILE, children


def test_a_run_that_may_not_begin_in_its_folder_leaves_no_workers(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    settings = {"task": "addition", "reward": {"function": f"{FILE}:about", "self_test": False, "workers": 1}}
    before = children()
    with pytest.raises(InputError, match="exists already") as refused:
        start(parse_config(settings), tmp_path)
    assert children() == before, "also while the error and its frames are held"
    del refused
