"""Hold PPO and A2C beside Stable-Baselines3's: the same environments, widths, hyper-parameters and numbers of actions.

Run `python scripts/control_rivals.py runs PYTHON [CASE …]`, PYTHON that of an environment with stable-baselines3 (it
needs no grouprl), and `… page` for the table of docs/control.md. Every run has a process of its own, with one thread;
ours and theirs take turns. Writes docs/control_rivals.json: per case the return of each seed's final policy and the
actions per second of processor time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from page_record import fill, keep

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "control_rivals.json", DOCS / "control.md"
EPISODES, FIRST_SEED = 32, 10_000

Play = Callable[[np.ndarray], np.ndarray]
"""The likeliest actions of a policy, by observations [N, ...]."""


@dataclass(frozen=True)
class Case:
    """An algorithm on an environment, in the words of Stable-Baselines3, whose zoo the numbers are from."""

    algorithm: str
    env: str
    actions: int
    n_envs: int
    n_steps: int
    gamma: float = 0.99
    gae_lambda: float = 0.95
    learning_rate: float = 3e-4
    falls: bool = False
    """Whether the rate falls to 0."""
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    batch_size: int = 64
    n_epochs: int = 10
    normalize: bool = False
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def rollout(self) -> int:
        """Actions per step of training."""
        return self.n_envs * self.n_steps

    @property
    def steps(self) -> int:
        """Steps of training."""
        return self.actions // self.rollout


A2C: dict[str, Any] = {"gae_lambda": 1.0, "learning_rate": 7e-4, "n_epochs": 1}
CASES = {
    f"{case.algorithm} {case.env}": case
    for case in (
        Case("PPO", "CartPole-v1", 51_200, 8, 32, 0.98, 0.8, 1e-3, True, batch_size=256, n_epochs=20),
        Case("PPO", "Acrobot-v1", 98_304, 16, 256, 0.99, 0.94, n_epochs=4, normalize=True),
        Case("PPO", "Pendulum-v1", 65_536, 4, 1024, 0.9, 0.95, 1e-3),
        Case("PPO", "LunarLander-v3", 327_680, 16, 1024, 0.999, 0.98, ent_coef=0.01, n_epochs=4),
        Case("PPO", "InvertedPendulum-v5", 65_536, 4, 512, normalize=True),
        Case("PPO", "Hopper-v5", 204_800, 4, 512, normalize=True),
        Case("A2C", "CartPole-v1", 50_000, 8, 5, **A2C, seeds=tuple(range(24))),
        Case("A2C", "MountainCarContinuous-v0", 60_000, 4, 100, **A2C, normalize=True),
    )
}


def settings(case: Case, seed: int, steps: int) -> dict[str, Any]:
    """Return the configuration of a run of ours."""
    ppo = case.algorithm == "PPO"
    adam = {"name": "adamw", "betas": [0.9, 0.999], "settings": {"eps": 1e-5}}
    optim = adam if ppo else {"name": "rmsprop", "settings": {"alpha": 0.99, "eps": 1e-5}}
    return {
        "task": {"name": f"control:{case.env}", "horizon": case.n_steps},
        "model": {"name": "mlp", "settings": {"hidden": [64, 64], **({"normalise": True} if case.normalize else {})}},
        "method": {
            "name": "ppo_control",
            "gamma": case.gamma,
            "lam": case.gae_lambda,
            "size": case.batch_size if ppo else case.rollout,
            "whiten": ppo,
            "value_coef": 2 * case.vf_coef,
            "entropy_coef": case.ent_coef,
            "scale_rewards": case.normalize,
        },
        "steps": steps,
        "seed": seed,
        "batch": {"prompts": case.n_envs, "group_size": 1, "epochs": case.n_epochs},
        "optim": {
            **optim,
            "lr": case.learning_rate,
            "schedule": "linear" if case.falls else "constant",
            "min_lr_ratio": 0,
            "grad_clip": 0.5,
        },
        "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
        "run": {"threads": 1, "rollouts_every": 10**6, "checkpoint_every": 10**6},
    }


def ours(case: Case, seed: int, steps: int) -> Play:
    """Train by grouprl, rollouts not recorded (nor are the other's)."""
    from safetensors.torch import load_file

    from finished import finished
    from grouprl.envs.environment import ArrayObservation
    from grouprl.policy import Build, Mlp
    from grouprl.protocols import Request
    from grouprl.rollout.local.array_sampler import ArraySampler
    from grouprl.tasks import load_task

    config = settings(case, seed, steps)
    with tempfile.TemporaryDirectory() as kept:
        finished(config, Path(kept) / "run")
        state = load_file(Path(kept) / "run" / "model" / "policy.safetensors")
    spaces = load_task(config["task"]).spaces
    policy = Mlp(Build(spaces=spaces, seed=seed, values=True), **config["model"]["settings"])
    policy.load_trainable_state(state)
    sampler = ArraySampler(policy)

    def play(seen: np.ndarray) -> np.ndarray:
        asked = [Request(ArrayObservation(values=each), 1, seed=0, greedy=True) for each in seen]
        return np.array([actions[0] for actions in sampler.sample(asked).actions])

    return play


def theirs(case: Case, seed: int, steps: int) -> Play:
    """Train by Stable-Baselines3."""
    import torch
    from stable_baselines3 import A2C, PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    env = make_vec_env(case.env, n_envs=case.n_envs, seed=seed)
    env = VecNormalize(env, gamma=case.gamma) if case.normalize else env
    shared = {name: getattr(case, name) for name in ("n_steps", "gamma", "gae_lambda", "ent_coef", "vf_coef")}
    shared["learning_rate"] = (lambda left: left * case.learning_rate) if case.falls else case.learning_rate
    if case.algorithm == "PPO":
        shared |= {"batch_size": case.batch_size, "n_epochs": case.n_epochs}
    model = {"PPO": PPO, "A2C": A2C}[case.algorithm]("MlpPolicy", env, seed=seed, device="cpu", **shared)
    model.learn(steps * case.rollout)

    def play(seen: np.ndarray) -> np.ndarray:
        return np.asarray(model.predict(env.normalize_obs(seen) if case.normalize else seen, deterministic=True)[0])

    return play


def mean_return(play: Play, env: str) -> float:
    """Return the mean return of whole episodes that no run has seen, by the likeliest actions."""
    import gymnasium

    worlds = [gymnasium.make(env) for _ in range(EPISODES)]
    seen = {i: world.reset(seed=FIRST_SEED + i)[0] for i, world in enumerate(worlds)}
    total = 0.0
    while seen:
        actions = play(np.stack(list(seen.values())))
        for i, action in zip(list(seen), actions, strict=True):
            space = worlds[i].action_space
            legal = np.clip(action, space.low, space.high) if hasattr(space, "low") else int(action)
            seen[i], reward, over, cut, _ = worlds[i].step(legal)
            total += float(reward) / EPISODES
            if over or cut:
                del seen[i]
    return round(total, 1)


def measured(who: str, name: str, seed: int) -> dict[str, float]:
    """Train one of the two, and return its speed and its policy's return; a warm-up comes before what is measured."""
    act, case = {"ours": ours, "theirs": theirs}[who], CASES[name]
    act(replace(case, n_steps=min(case.n_steps, 32)), seed, 1)
    begun = time.process_time()
    play = act(case, seed, case.steps)
    speed = case.steps * case.rollout / (time.process_time() - begun)
    return {"speed": round(speed), "return": mean_return(play, case.env)}


def record(python: str, names: list[str]) -> None:
    """Let both train on each case, on each of its seeds, and put what was measured into the record."""
    for name, seed in [(each, seed) for each in names for seed in CASES[each].seeds]:
        row: dict[str, Any] = {"case": name, "seed": seed, "actions": CASES[name].steps * CASES[name].rollout}
        for who in sorted(("ours", "theirs"), reverse=bool(seed % 2)):
            command = [sys.executable if who == "ours" else python, __file__, who, name, str(seed)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            row[who] = json.loads(said.splitlines()[-1])
        keep(RECORD, row, ("case", "seed"))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the record as a table, in the order of the cases."""
    lines = ["| | actions | Stable-Baselines3 | mean, interval | here | mean | speeds' ratio |", "| --- " * 7 + "|"]
    for name in CASES:
        runs = sorted((row for row in rows if row["case"] == name), key=lambda row: int(row["seed"]))
        if len(runs) == len(CASES[name].seeds):
            lines.append(f"| {name} | {runs[0]['actions']:,} | {' | '.join(compared(runs))} |")
    return "\n".join(lines)


def compared(runs: list[dict[str, Any]]) -> list[str]:
    """Return the cells of a case: their returns, mean and interval, ours and their mean, the ratio of the speeds."""
    from grouprl.evaluation.pass_at_k import mean_interval

    paid = {who: [run[who]["return"] for run in runs] for who in ("theirs", "ours")}
    told = {who: listed(values) for who, values in paid.items()}
    found = mean_interval(np.array(paid["theirs"]))
    ratio = sum(run["ours"]["speed"] for run in runs) / sum(run["theirs"]["speed"] for run in runs)
    theirs = f"{found.value:.1f} [{found.low:.1f}, {found.high:.1f}]"
    return [told["theirs"], theirs, told["ours"], f"{np.mean(paid['ours']):.1f}", f"{ratio:.2f}"]


def listed(values: list[float]) -> str:
    """Return the returns of all seeds, or of many their number and range."""
    few = ", ".join(f"{x:g}" for x in values)
    return few if len(values) <= 8 else f"{len(values)} seeds, {min(values):g} to {max(values):g}"


if __name__ == "__main__":
    if sys.argv[1] in ("ours", "theirs"):
        print(json.dumps(measured(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    elif sys.argv[1] == "runs":
        record(sys.argv[2], sys.argv[3:] or list(CASES))
    else:
        fill(PAGE, {"rivals": table(json.loads(RECORD.read_text(encoding="utf-8")))})
