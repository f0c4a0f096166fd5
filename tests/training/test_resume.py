"""A run killed at any moment and resumed ends as if it had never been interrupted, to the bit."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
import zlib
from collections.abc import Callable
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import yaml

from killed_runs import PRELOADED, child, evidence, finished, log_of

SETTINGS = {
    "grpo": {"name": "grpo"},
    "dapo": {"name": "dapo"},
    "ppo": {"name": "ppo"},
    "remax": {"name": "remax"},
    "trpo": {"name": "trpo"},
    "reference": {"name": "grpo", "kl_coef": 0.05},
    "lora": {"name": "cispo"},
    "dots": {"name": "dots"},
    "vade": {"name": "vade"},
    "palu": {"name": "palu"},
    "skywork_r1v2": {"name": "skywork_r1v2"},
    "dvpo": {"name": "dvpo", "pretraining_steps": 5},
    "remix": {"name": "remix", "reincarnation": 3},
    "archer": {"name": "archer", "critic_steps": 5, "critic_batch": 8, "actions": 12, "warmup": 1, "baseline": True},
}
"""Methods with and without state of their own: critics, references, curricula, budgets, stored rows, preludes."""


def small_run(method: str) -> dict:
    return {
        "task": {"name": "reverse", "length": 2},
        "data": {"prompts": 12},
        "model": {
            "name": "tiny",
            "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32},
            "lora": {"r": 4, "dropout": 0.1} if method == "lora" else None,
        },
        "method": SETTINGS[method],
        "steps": 6,
        "seed": 3,
        "warmup": {"steps": 60, "batch": 32, "warmup_steps": 2, "lr": 1e-2},
        "batch": {"prompts": 4, "group_size": 4, "minibatches": 1 if method in ("remax", "trpo", "archer") else 2},
        "optim": {"lr": 1e-3, "warmup_steps": 2},
        "eval": {"every": 2, "prompts": 8, "final_prompts": 8},
        "run": {"checkpoint_every": 2, "threads": 1},
        # Adapters on random weights hardly learn the task in a few steps: a reward that needs no skill instead.
        "reward": {"function": f"{__file__}:coin"} if method == "lora" else {},
    }


def coin(completion: str, *, answer: str) -> float:
    """A reward that depends on nothing but the texts."""
    return float(zlib.crc32(f"{answer}/{completion}".encode()) & 1)


def launch(config: Path, folder: Path, resume: bool) -> BaseProcess:
    """Start or resume a run in a fresh process that has its imports done already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=child, args=(config, folder, resume, log_of(folder)))
    process.start()
    return process


Whole = Callable[[str], tuple[Path, dict]]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """By method, once it is asked for: its config file and what an uninterrupted run leaves."""

    @cache
    def run(method: str) -> tuple[Path, dict]:
        home = tmp_path_factory.mktemp(method)
        config = home / "run.yaml"
        config.write_text(yaml.safe_dump(small_run(method)))
        finished(launch(config, home / "whole", resume=False), home / "whole")
        left = evidence(home / "whole")
        trained = [r["grad_norm"] for r in left["metrics"] if r["phase"] == "train"]
        assert sum(norm > 0 for norm in trained) >= 3, f"{method}: a run without gradients shows nothing"
        return config, left

    return run


def test_same_seed_same_bytes(uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected = uninterrupted("grpo")
    finished(launch(config, tmp_path / "again", resume=False), tmp_path / "again")
    assert evidence(tmp_path / "again") == expected


@pytest.mark.parametrize("method", SETTINGS)
def test_killed_at_random_moments(method: str, uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected = uninterrupted(method)
    folder, rng = tmp_path / "killed", random.Random(method)
    process, kills = launch(config, folder, resume=False), 0
    while kills < 4:
        if not wait_for_records(process, folder, rng):
            break
        process.kill()
        process.join()
        kills += 1
        process = launch(config, folder, resume=True)
    finished(process, folder)
    assert kills >= 2
    assert evidence(folder) == expected


def wait_for_records(process: BaseProcess, folder: Path, rng: random.Random) -> bool:
    """Wait until the run has written a few more records and a random moment has passed; False if it ended before."""
    metrics = folder / "metrics.jsonl"
    before = metrics.stat().st_size if metrics.exists() else 0
    while process.is_alive():
        if metrics.exists() and metrics.stat().st_size > before:
            time.sleep(rng.uniform(0, 0.25))
            return process.is_alive()
        time.sleep(0.002)
    return False


def test_interrupt_leaves_a_checkpoint_and_resumes(uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected = uninterrupted("grpo")
    folder = tmp_path / "stopped"
    process = launch(config, folder, resume=False)
    assert wait_for_records(process, folder, random.Random(1))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    assert "a checkpoint is written" in finished(process, folder, code=130)
    assert list((folder / "checkpoints").iterdir())
    finished(launch(config, folder, resume=True), folder)
    assert evidence(folder) == expected


def test_damaged_checkpoint_is_passed_over_in_words(uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected = uninterrupted("grpo")
    folder = tmp_path / "damaged"
    finished(launch(config, folder, resume=False), folder)
    newest = max((folder / "checkpoints").glob("step-*"))
    weights = newest / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    output = finished(launch(config, folder, resume=True), folder)
    assert "is damaged (policy.safetensors is cut off: it has" in " ".join(output.split())
    assert evidence(folder) == expected
