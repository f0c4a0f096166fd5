"""Measure the control path beside Stable-Baselines3 on CartPole: PPO and A2C, eight environments, its zoo's settings.

Run `python bench/control_speed.py PYTHON`, PYTHON that of an environment with stable-baselines3. Both train in
processes of their own, which take turns; a warm-up comes before what is measured, so that no import counts. Writes
docs/control_speed.json: by case the actions per second of processor time of each, and their ratio, round by round.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

from control_rivals import CASES, DOCS, ours, theirs

RECORD = DOCS / "control_speed.json"
MEASURED = ("PPO CartPole-v1", "A2C CartPole-v1")
ACTIONS, ROUNDS = 10_240, 3
"""Actions that are measured, and rounds."""


def measured(who: str, name: str) -> None:
    """Print the actions per second of processor time of one of the two."""
    act, case = {"ours": ours, "theirs": theirs}[who], CASES[name]
    act(case, 0, 2)
    steps, begun = ACTIONS // case.rollout, time.process_time()
    act(case, 0, steps)
    print(steps * case.rollout / (time.process_time() - begun))


def compare(name: str, python: str) -> dict[str, object]:
    """Let both train, round by round, and return their speeds."""
    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(ROUNDS):
        for who in sorted(found, reverse=bool(number % 2)):
            command = [sys.executable if who == "ours" else python, __file__, who, name]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[who].append(round(float(said.split()[-1])))
        print(name, {who: speeds[-1] for who, speeds in found.items()}, flush=True)
    ratios = [round(a / b, 2) for a, b in zip(found["ours"], found["theirs"], strict=True)]
    return {**found, "ratios": ratios}


if __name__ == "__main__":
    if sys.argv[1] in ("ours", "theirs"):
        measured(sys.argv[1], sys.argv[2])
    else:
        RECORD.write_text(json.dumps({name: compare(name, sys.argv[1]) for name in MEASURED}) + "\n")
