"""The files of a first run: a configuration, a reward and ten rows of data."""

from __future__ import annotations

import json
from pathlib import Path

from grouprl.core.errors import InputError
from grouprl.storage.run_folder import in_words

CONFIG = """\
# What this run does: grouprl plan run.yaml      Train it: grouprl train run.yaml
task: {name: "jsonl:questions.jsonl", prompt: question, demonstration: answer, eval_fraction: 0.2}
reward: {function: "my_rewards.py:right"}

# `tiny` is built from scratch, for a try of a minute; the warm-up imitates the answers.
# A model of yours: a folder or a Hub id, without `warmup` and with `sampling: {max_new_tokens: 256}`.
model: tiny
warmup: {steps: 60, batch: 16}

method: grpo
steps: 20
batch: {prompts: 8, group_size: 8, minibatches: 2}
sampling: {max_new_tokens: 8}
eval: {every: 10, prompts: 2, final_prompts: 2}
run: {checkpoint_every: 10}
"""
REWARD = '''\
"""The reward: try it with `grouprl check-reward my_rewards.py:right --task run.yaml`."""


def right(completion: str, answer: str) -> dict[str, float]:
    """Return 1 for the right answer, and a little for a number.

    The completion comes first, then the columns of the data that are named. The values of a dict are added up.
    """
    text = completion.strip()
    return {"right": float(text == answer), "number": 0.1 * text.isdigit()}
'''
ROWS = [{"question": f"{a} and {b} are ", "answer": str(a + b)} for a, b in ((n, 2 * n + 1) for n in range(1, 11))]
FILES = {
    "run.yaml": CONFIG,
    "my_rewards.py": REWARD,
    "questions.jsonl": "".join(f"{json.dumps(row)}\n" for row in ROWS),
}


def write_starter(folder: Path) -> list[Path]:
    """Write the files of a first run into a folder, and return their paths.

    Raises:
        InputError: one of the files exists, or the folder cannot be made.
        RunError: the disk is full.
    """
    paths = [folder / name for name in FILES]
    if there := [path for path in paths if path.exists()]:
        raise InputError(f"{there[0]} exists already", "init never overwrites anything", "Name another folder")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file", "init writes into a folder", "Name another")
    with in_words(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, FILES.values(), strict=True):
            path.write_text(text, encoding="utf-8")
    return paths
