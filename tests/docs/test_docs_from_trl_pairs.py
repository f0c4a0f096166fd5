"""The guides from TRL's preference trainers are followed to the letter: every run of the page takes a tiny step."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.core.foreign.trl import TRL
from grouprl.policy import load_policy
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.training.loop import train

PAGE = (Path(__file__).parents[2] / "docs" / "from_trl_pairs.md").read_text(encoding="utf-8")
RUNS = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
SIZES = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 1024}


def files_of_the_page() -> None:
    """Write the files that the runs of the page read, each with a few rows."""
    numbers = range(12)
    rows = {
        "preferences": [{"prompt": f"pear {n}", "chosen": "yes", "rejected": "no"} for n in numbers],
        "labels": [{"prompt": f"pear {n}", "completion": "yes", "label": n % 2 == 0} for n in numbers],
        "steps": [{"prompt": f"{n}", "completions": ["a", "b", "c"], "labels": [True, True, False]} for n in numbers],
        "questions": [{"question": f"pear {n}", "answer": "yes"} for n in numbers],
    }
    for name, each in rows.items():
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, each)))
    load_policy("tiny", seed=1, **{**SIZES, "layers": 2}).save("teacher")
    load_reward_model("tiny", dtype="float32", **{**SIZES, "layers": 1}).save("runs/rm")


@pytest.mark.parametrize("block", RUNS, ids=lambda block: re.findall(r"\w+@trl|process_reward|ppo|minillm", block)[0])
def test_a_run_of_the_page_takes_a_step(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files_of_the_page()
    config: dict[str, Any] = yaml.safe_load(block)
    small: dict[str, Any] = {"model": {"name": "tiny", "tiny": SIZES}, "steps": 1, "sampling": {"max_new_tokens": 4}}
    if "reference" in config["model"]:
        small["model"]["reference"] = "teacher"
    if "questions" not in str(config["task"]):
        small.pop("sampling")
    batch = {**config["batch"], "prompts": 4}
    config |= {**small, "batch": batch, "eval": {"every": 0, "final_prompts": 1}}
    folder = train(parse_config(config), folder=tmp_path / "run", console=Console(file=StringIO())).folder
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (step,) = [line for line in lines if line["phase"] == "train"]
    assert step["rows_trained"] > 0
    assert (folder / "model" / "config.json").is_file()


def test_every_argument_of_the_code_from_trl_has_a_place_here() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    arguments = re.findall(r"^    (\w+)=", code, flags=re.MULTILINE)
    assert len(arguments) == 9
    assert [name for name in arguments if name not in TRL] == []
