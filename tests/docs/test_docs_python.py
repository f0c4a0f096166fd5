"""The page on Python: its program runs as it stands, and learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import grouprl

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_program_of_the_page_runs_and_its_run_can_be_continued(tmp_path: Path) -> None:
    program = tmp_path / "words.py"
    program.write_text(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0])
    ended = subprocess.run([sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    finished, reward = re.findall(r"^(True|False) ([\d.]+)$", ended.stdout, re.MULTILINE)[0]
    assert finished == "True"
    assert ended.stdout.startswith(f"{program}:Words · tiny (")
    assert " · grpo with clip_high 0.28\n" in ended.stdout
    assert float(reward) > 0.6  # a quarter by chance
    run = grouprl.load_run(tmp_path / "words")
    assert run.config.task == {"name": f"{program}:Words", "letters": "abcd"}
    assert run.summary["method"] == "grpo"
    words = [sys.executable, "-m", "grouprl", "train", "words", "--resume", "--set", "steps=32", "-q"]
    more = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert more.returncode == 0, more.stderr
    assert grouprl.load_run(tmp_path / "words").summary["steps"] == 32
