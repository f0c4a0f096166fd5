"""Measure the control path beside Stable-Baselines3's PPO: CartPole, eight environments, the same hyper-parameters.

Run `python bench/control_speed.py PYTHON`, PYTHON that of an environment with stable-baselines3. Both train in
processes of their own, which take turns; a warm-up comes before what is measured, so that no import counts. Writes
docs/control_speed.json: the actions per second of processor time of each, and their ratio, round by round.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECORD = Path(__file__).parent.parent / "docs" / "control_speed.json"
ACTIONS, STEPS, ROUNDS = 256, 40, 3
"""Actions per step of training (8 environments of 32), steps that are measured, and rounds."""


def ours(steps: int) -> None:
    """Train by grouprl, rollouts not recorded (nor are the other's)."""
    from rich.console import Console

    from grouprl.config.run import parse_config
    from grouprl.training.loop import train

    optim = {"lr": 1e-3, "schedule": "linear", "min_lr_ratio": 0, "grad_clip": 0.5, "betas": [0.9, 0.999]}
    config = {
        "task": {"name": "control:CartPole-v1", "horizon": 32},
        "model": {"name": "mlp", "settings": {"hidden": [64, 64]}},
        "method": {"name": "ppo_control", "gamma": 0.98, "lam": 0.8, "size": 256},
        "steps": steps,
        "batch": {"prompts": 8, "group_size": 1, "epochs": 20},
        "optim": {**optim, "settings": {"eps": 1e-5}},
        "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
        "run": {"threads": 1, "rollouts_every": 1000},
    }
    with tempfile.TemporaryDirectory() as kept:
        train(parse_config(config), folder=Path(kept) / "run", console=Console(quiet=True))


def theirs(steps: int) -> None:
    """Train by Stable-Baselines3."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    shared = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98, "ent_coef": 0.0}
    env = make_vec_env("CartPole-v1", n_envs=8, seed=0)
    PPO("MlpPolicy", env, learning_rate=lambda left: left * 1e-3, seed=0, device="cpu", **shared).learn(steps * ACTIONS)


def measured(who: str) -> None:
    """Print the actions per second of processor time of one of the two."""
    act = ours if who == "ours" else theirs
    act(2)
    begun = time.process_time()
    act(STEPS)
    print(STEPS * ACTIONS / (time.process_time() - begun))


def compare(python: str) -> dict[str, object]:
    """Let both train, round by round, and return their speeds."""
    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(ROUNDS):
        for who in sorted(found, reverse=bool(number % 2)):
            command = [sys.executable if who == "ours" else python, __file__, who]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[who].append(round(float(said.split()[-1])))
        print({who: speeds[-1] for who, speeds in found.items()}, flush=True)
    ratios = [round(a / b, 2) for a, b in zip(found["ours"], found["theirs"], strict=True)]
    return {**found, "ratios": ratios}


if __name__ == "__main__":
    if sys.argv[1] in ("ours", "theirs"):
        measured(sys.argv[1])
    else:
        RECORD.write_text(json.dumps(compare(sys.argv[1])) + "\n")
