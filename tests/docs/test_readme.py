"""What the README shows works."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.rewards import load_reward, score

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_library_example_runs() -> None:
    example = next(block for block in blocks("python") if "grouprl.Batch" in block)
    names: dict = {}
    exec(example, names)
    assert names["prepared"].advantage_bt[:, 0].tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-4)
    assert names["logp_bt"].grad.abs().sum() > 0


def test_the_reward_and_the_configuration_fit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_config(yaml.safe_load(blocks("yaml")[0]))
    monkeypatch.chdir(tmp_path)
    Path("my_rewards.py").write_text(next(b for b in blocks("python") if "def short_and_right" in b))
    rows = [json.dumps({"question": f"{i}?", "answer": str(i)}) for i in range(30)]
    Path("questions.jsonl").write_text("\n".join(rows))
    assert config.reward.function is not None
    scores = score(load_reward(config.reward.function), ["so 7"], [{"answer": "7"}], ids=["a"])
    assert scores.reward_b.tolist() == pytest.approx([1.1])
    assert scores.correct_b.tolist() == [True]


def test_every_command_shown_exists() -> None:
    known = {info.name for info in app.registered_commands} | {group.name for group in app.registered_groups}
    shown = set(re.findall(r"^grouprl ([\w-]+)", README, flags=re.MULTILINE))
    assert shown <= known
    assert {"train", "plan", "eval", "export", "methods"} <= shown


@pytest.mark.parametrize("words", re.findall(r"^grouprl (methods[^#\n]*)", README, flags=re.MULTILINE))
def test_the_catalogue_commands_run(words: str) -> None:
    assert CliRunner().invoke(app, words.split()).exit_code == 0
