"""Workers for tests of rewards, and what the system says about processes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from grouprl.rewards import load_reward, score
from grouprl.rewards.reward_workers import RewardWorkers

FILE = Path(__file__).with_name("hostile_rewards.py")
CLOCK = 1.5


def workers_of(name: str, count: int = 1, clock: float = CLOCK) -> RewardWorkers:
    return RewardWorkers(load_reward(f"{FILE}:{name}"), count, timeout=clock, memory_gb=2)


def scores_of(reward: Any, texts: list[str], columns: dict[str, Any] | None = None) -> Any:
    return score(reward, texts, [columns or {}] * len(texts), ids=[f"s{i}" for i in range(len(texts))])


def processes() -> dict[int, tuple[str, int, int]]:
    """State, parent and group of every process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(folder.name)] = (state, int(parent), int(group))
    return found


def alive(pid: int) -> bool:
    return processes().get(pid, ("Z",))[0] != "Z"


def gone(pid: int) -> bool:
    """Whether a process ends within some seconds."""
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def members(group: int) -> list[int]:
    """The processes of a group that stay."""
    return [pid for pid, (_, _, its) in processes().items() if its == group and not gone(pid)]


def children() -> set[int]:
    """The worker processes of this one, dead ones that nobody has waited for among them."""
    ours = {pid for pid, (_, parent, _) in processes().items() if parent == os.getpid()}
    return {pid for pid in ours if (line := Path(f"/proc/{pid}/cmdline").read_bytes()) == b"" or b"worker_main" in line}
