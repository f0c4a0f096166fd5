"""From a laptop to a cluster: the page's configuration, through every environment that a test can have."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import Config, load_config
from grouprl.orchestrator.rank_refusals import rank_refusals
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = re.findall(r"`((?:grouprl|torchrun) [^`]+)`", TEXT) + re.findall(r"^((?:grouprl|torchrun) .+)$", TEXT, re.M)
SMALL = ("steps=1", "warmup.steps=1", "batch.prompts=2", "eval.final_prompts=2", "run.threads=1", "reward.workers=0")


def described() -> str:
    (block,) = re.findall(r"```yaml\n(.+?)```", TEXT, re.S)
    return str(block)


def settings(command: str) -> list[str]:
    """What a command sets."""
    words = shlex.split(command)
    return [value for word, value in pairwise(words) if word == "--set"]


def load(folder: Path, *changes: str) -> Config:
    path = folder / "run.yaml"
    path.write_text(described())
    return load_config(str(path), list(changes))


@pytest.mark.parametrize("command", [c for c in COMMANDS if " train run.yaml" in c and "--profile" not in c])
def test_every_way_to_train_is_a_configuration_that_says_no_more_than_it_changes(command: str, tmp_path: Path) -> None:
    plain, changed = load(tmp_path).model_dump(), load(tmp_path, *settings(command)).model_dump()
    keys = {change.partition("=")[0].partition(".")[0] for change in settings(command)}
    assert {key for key in plain if plain[key] != changed[key]} == keys


@pytest.mark.parametrize("precision", ["float32", "auto", "mixed"])
def test_on_one_machine_it_trains(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(tmp_path)
    monkeypatch.chdir(tmp_path)
    changes: list[Any] = [word for each in (*SMALL, f"model.precision={precision}") for word in ("--set", each)]
    done = CliRunner().invoke(app, ["train", "run.yaml", "-q", *changes])
    assert done.exit_code == 0, done.output
    kept = yaml.safe_load((tmp_path / "runs" / "addition-grpo-s0" / "config.yaml").read_text())
    assert kept.get("model", {}).get("precision", "float32") == ("mixed" if precision == "mixed" else "float32")


def test_nothing_of_it_is_refused_on_several_processes(tmp_path: Path) -> None:
    assert list(rank_refusals(resolve(load(tmp_path)), 2)) == []


def test_the_server_is_asked_for_and_its_absence_is_named(tmp_path: Path) -> None:
    (command,) = [c for c in COMMANDS if "engine: vllm" in c]
    config = load(tmp_path, *settings(command))
    assert config.sampling.vllm.command == ("/opt/vllm/bin/vllm",)
    refusals = plan(resolve(config)).refusals
    assert any("/opt/vllm/bin/vllm" in refusal for refusal in refusals)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("grouprl plan")])
def test_plans_are_made(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
