"""A run killed at any moment and resumed ends as if it had never been interrupted, to the bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

TIMING = ("seconds", "tokens_per_second", "memory_mb")

SETTINGS = {
    "grpo": {"name": "grpo"},
    "dapo": {"name": "dapo"},
    "ppo": {"name": "ppo"},
    "remax": {"name": "remax"},
}


def small_run(method: str) -> dict:
    return {
        "task": {"name": "addition", "digits": 1},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": SETTINGS[method],
        "steps": 6,
        "seed": 3,
        "warmup": {"steps": 25, "batch": 16, "rise": 2},
        "batch": {"prompts": 4, "group": 4, "minibatches": 2},
        "optim": {"lr": 1e-3, "rise": 2},
        "eval": {"every": 2, "questions": 8, "final_questions": 8},
        "run": {"checkpoint_every": 2, "threads": 1},
    }


def launch(config: Path, folder: Path, resume: bool) -> subprocess.Popen:
    code = (
        "import sys; from pathlib import Path; from grouprl.train.loop import train; "
        "from grouprl.train.config import load_config; "
        "train(load_config(sys.argv[1]), folder=Path(sys.argv[2]), resume_run=sys.argv[3] == 'resume')"
    )
    command = [sys.executable, "-c", code, str(config), str(folder), "resume" if resume else "start"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def evidence(folder: Path) -> dict[str, object]:
    """Everything a run leaves that must not depend on interruptions."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: v for k, v in line.items() if not k.startswith(TIMING)} for line in lines]
    rollouts = {path.name: path.read_bytes() for path in sorted((folder / "rollouts").iterdir())}
    last = max((folder / "checkpoints").glob("step-*"))
    states = {name: (last / name).read_bytes() for name in ("policy.safetensors", "optimizer.pt")}
    model = (folder / "model" / "model.safetensors").read_bytes()
    return {"metrics": metrics, "rollouts": rollouts, "model": model, "samples": (folder / "samples.json").read_text(), **states}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict]]:
    """For each method: its config file and what an uninterrupted run leaves."""
    found = {}
    for method in SETTINGS:
        home = tmp_path_factory.mktemp(method)
        config = home / "run.yaml"
        config.write_text(yaml.safe_dump(small_run(method)))
        finished(launch(config, home / "whole", resume=False))
        found[method] = (config, evidence(home / "whole"))
    return found


def test_same_seed_same_bytes(uninterrupted, tmp_path: Path) -> None:
    config, expected = uninterrupted["grpo"]
    finished(launch(config, tmp_path / "again", resume=False))
    assert evidence(tmp_path / "again") == expected


@pytest.mark.slow
@pytest.mark.parametrize("method", SETTINGS)
def test_killed_at_random_moments(method: str, uninterrupted, tmp_path: Path) -> None:
    config, expected = uninterrupted[method]
    folder, rng = tmp_path / "killed", random.Random(method)
    process, kills = launch(config, folder, resume=False), 0
    while kills < 4:
        if not wait_for_records(process, folder, rng):
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        process = launch(config, folder, resume=True)
    finished(process)
    assert kills >= 2
    assert evidence(folder) == expected


def wait_for_records(process: subprocess.Popen, folder: Path, rng: random.Random) -> bool:
    """Wait until the run has written a few more records and a random moment has passed; False if it ended before."""
    metrics = folder / "metrics.jsonl"
    before = metrics.stat().st_size if metrics.exists() else 0
    while process.poll() is None:
        if metrics.exists() and metrics.stat().st_size > before:
            time.sleep(rng.uniform(0, 0.25))
            return process.poll() is None
        time.sleep(0.002)
    return False


def test_interrupt_leaves_a_checkpoint_and_resumes(uninterrupted, tmp_path: Path) -> None:
    config, expected = uninterrupted["grpo"]
    folder = tmp_path / "stopped"
    process = launch(config, folder, resume=False)
    assert wait_for_records(process, folder, random.Random(1))
    process.send_signal(signal.SIGINT)
    output = finished(process)
    assert "checkpoint" in output
    assert list((folder / "checkpoints").iterdir())
    finished(launch(config, folder, resume=True))
    assert evidence(folder) == expected


def test_damaged_checkpoint_is_passed_over_in_words(uninterrupted, tmp_path: Path) -> None:
    config, expected = uninterrupted["grpo"]
    folder = tmp_path / "damaged"
    finished(launch(config, folder, resume=False))
    newest = max((folder / "checkpoints").glob("step-*"))
    weights = newest / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    output = finished(launch(config, folder, resume=True))
    assert "is damaged (policy.safetensors does not match its checksum)" in " ".join(output.split())
    assert evidence(folder) == expected
