"""A run that is killed while its judge is asked again about the same completions."""

from __future__ import annotations

import json
import os
import signal
import threading
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from test_train_judge import settings, trained

from judge_server import judging, scores
from killed_runs import child, evidence, finished, log_of


def taste(request: dict[str, Any]) -> str:
    """A judge that says the same of equal completions."""
    return scores(request, lambda text: sum(map(ord, text)) % 97 / 97)


@pytest.mark.parametrize("at", [1, 3])
def test_a_run_killed_while_its_judge_is_probed_goes_on_to_the_same_bytes(at: int, tmp_path: Path) -> None:
    run = {"checkpoint_every": 4, "threads": 1, "keep": 100}
    with judging(taste) as (url, got):
        trained(settings(url, steps=11, run=run), tmp_path / "whole")
        whole = [json.dumps(each["messages"]) for each in got]
    folder, seen, again, resumed = tmp_path / "killed", set[str](), list[str](), threading.Event()

    def answer(request: dict[str, Any]) -> str:
        told = json.dumps(request["messages"])
        again.extend([told] * (told in seen))  # only the probe asks what was asked before
        seen.add(told)
        if len(again) == at and not resumed.is_set():
            os.kill(process.pid, signal.SIGKILL)
        return taste(request)

    with judging(answer) as (url, got):
        given = settings(url, steps=11, run=run)
        config = folder.with_suffix(".yaml")
        config.write_text(json.dumps(given))
        process = get_context("spawn").Process(target=child, args=(config, folder, False, log_of(folder)))
        process.start()
        finished(process, folder, code=-signal.SIGKILL)
        assert not (folder / "judge_probe.json").exists()
        resumed.set()
        trained(given, folder, resume=True)
        assert len(got) - len(whole) <= at + 1, "only what the probe had asked is asked again"
    assert evidence(folder) == evidence(tmp_path / "whole")
    kept, known = (json.loads((each / "judge_probe.json").read_text()) for each in (folder, tmp_path / "whole"))
    assert kept == known
