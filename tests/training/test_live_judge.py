"""Runs with a judge behind a real endpoint: killed, without the endpoint for a while, or answered too late."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.training.loop import train
from judge_server import judging, material, scores
from killed_runs import child, evidence, finished, log_of

TINY = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}}
AT_ONCE = 2
KINDS = {
    "pairs": ("online_dpo", {"compare": True}),
    "nash": ({"name": "nash_md", "by": "judge"}, {"compare": True}),
    "groups": ("grpo", {}),
}
"""Methods and their judges: one that is asked about pairs, one that ranks groups."""


def deterministic(request: dict[str, Any]) -> str:
    """A judge whose taste is in the texts alone."""
    told = material(request)
    if "trajectories" in told:
        return scores(request, taste)
    best = max(told["completions"], key=lambda each: (taste(each["text"]), each["text"]))
    return json.dumps({"better": best["id"]})


def taste(text: str) -> float:
    return (sum(map(ord, text)) * 7919 % 101) / 101


def settings(url: str, kind: str, **judge: Any) -> dict[str, Any]:
    method, own = KINDS[kind]
    return {
        "task": "addition",
        "model": TINY,
        "method": method,
        "reward": {"judge": {"url": url, "at_once": AT_ONCE, **own, **judge}},
        "batch": {"prompts": 2, "group_size": 4},
        "warmup": {"steps": 2},
        "steps": 4,
        "eval": {"every": 0, "final_prompts": 2, "samples": 2},
        "run": {"checkpoint_every": 2, "threads": 1, "keep": 100},
    }


def trained(given: dict[str, Any], folder: Path, *, resume: bool = False) -> None:
    train(parse_config(given), folder=folder, resume=resume, console=Console(file=io.StringIO()))


def asked(request: dict[str, Any]) -> str:
    return json.dumps([request["messages"], request["seed"]])


def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "verdicts").iterdir()}


def killed_at(given: dict[str, Any], folder: Path) -> Any:
    """Begin a run in a process of its own."""
    from multiprocessing import get_context

    config = folder.with_suffix(".yaml")
    config.write_text(json.dumps(given))  # JSON is YAML
    process = get_context("spawn").Process(target=child, args=(config, folder, False, log_of(folder)))
    process.start()
    return process


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_run_killed_while_it_is_judged_goes_on_to_the_same_bytes_and_asks_nothing_twice(
    kind: str, tmp_path: Path
) -> None:
    folder, deadly = tmp_path / "killed", threading.Event()
    process: list[Any] = []

    def answer(request: dict[str, Any]) -> str:
        if deadly.is_set() and (folder / "rollouts" / "step-000003.parquet").exists():
            deadly.clear()
            os.kill(process[0].pid, signal.SIGKILL)
        return deterministic(request)

    with judging(answer) as (url, got):
        given = settings(url, kind)
        trained(given, tmp_path / "whole")
        alone = len(got)
        deadly.set()
        process.append(killed_at(given, folder))
        finished(process[0], folder, code=-signal.SIGKILL)
        assert not deadly.is_set(), "it was killed in the middle of its fourth step"
        trained(given, folder, resume=True)
    whole, second = (Counter(map(asked, each)) for each in (got[:alone], got[alone:]))
    assert set(second) == set(whole)
    assert max(whole.values()) == 1
    assert sum((second - whole).values()) <= AT_ONCE, "only what was not yet answered is asked again"
    assert evidence(folder) == evidence(tmp_path / "whole")
    assert kept(folder) == kept(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["pairs", "groups"])
def test_an_endpoint_that_is_restarted_during_a_run_changes_nothing(kind: str, tmp_path: Path) -> None:
    with judging(deterministic) as (url, got):
        trained(settings(url, kind), tmp_path / "whole")
        half = len(got) // 2
    with ExitStack() as first:
        url, got = first.enter_context(judging(deterministic))
        again = restarted(first, url, got, after=half)
        trained(settings(url, kind), tmp_path / "run")
        again.close()
    assert evidence(tmp_path / "run") == evidence(tmp_path / "whole")


def restarted(first: ExitStack, url: str, got: list[Any], after: int) -> ExitStack:
    """Close an endpoint after so many requests, and open it again at its port a little later."""
    second = ExitStack()

    def work() -> None:
        while len(got) < after:
            time.sleep(0.01)
        first.close()
        time.sleep(0.7)
        second.enter_context(judging(deterministic, port=int(url.rsplit(":", 1)[1].removesuffix("/v1"))))

    threading.Thread(target=work, daemon=True).start()
    return second


@pytest.mark.parametrize("kind", ["pairs", "groups"])
def test_an_answer_that_comes_too_late_is_never_taken_for_another(kind: str, tmp_path: Path) -> None:
    with judging(deterministic) as (url, _):
        trained(settings(url, kind), tmp_path / "whole")
    with judging(late_at_first(kind)) as (url, got):
        trained(settings(url, kind, timeout=0.5), tmp_path / "run")
    assert max(Counter(map(asked, got)).values()) == 2
    assert evidence(tmp_path / "run") == evidence(tmp_path / "whole")


def late_at_first(kind: str) -> Callable[[dict[str, Any]], str]:
    """Answer every fifth question the first time too late, and then with the opposite of what is meant."""
    seen, guard = Counter[str](), threading.Lock()

    def answer(request: dict[str, Any]) -> str:
        with guard:
            seen[asked(request)] += 1
            late = len(seen) % 5 == 2 and seen[asked(request)] == 1
        if not late:
            return deterministic(request)
        time.sleep(1.0)
        return scores(request, lambda text: 1 - taste(text)) if kind == "groups" else '{"better": "neither"}'

    return answer
