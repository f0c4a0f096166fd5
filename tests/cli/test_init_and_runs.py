"""A first run of one's own: its files plan and train as they are, and the run is found again."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import load_config
from grouprl.config.starter_files import FILES, write_starter
from grouprl.core.errors import InputError
from grouprl.core.terminal import Terminal
from grouprl.plan.plan import plan
from grouprl.training.loop import train
from grouprl.view.run_list import run_lines
from viewed_runs import run_folder


def test_the_files_of_init_plan_without_any_finding(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["init", str(tmp_path / "mine")])
    assert done.exit_code == 0, done.output
    found = plan(load_config(str(tmp_path / "mine" / "run.yaml")))
    assert [str(each) for each in found.findings] == []


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"my_rewards\.py exists already"):
        write_starter(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my_rewards.py"]
    assert len(FILES["questions.jsonl"].splitlines()) == 10


def test_a_run_of_it_trains_and_is_listed_with_how_it_ended(tmp_path: Path) -> None:
    config, *_ = write_starter(tmp_path)
    changes = ["steps=1", "warmup.steps=1", "run.threads=1", "run.check_model=false"]
    runs = tmp_path / "runs"
    train(load_config(str(config), changes), folder=runs / "first", console=Terminal(quiet=True))
    (line,) = run_lines(runs)
    assert [each.name for each in run_lines(runs / "first")] == ["first"], "a folder that is itself a run"
    assert (line.name, line.task, line.method) == ("first", "jsonl:questions.jsonl", "grpo")
    assert (line.steps, line.of_steps, line.state) == (1, 1, "finished")
    assert line.verdict in ("learned", "worse", "unclear")
    with (runs / "first" / ".lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run_lines(runs)[0].state == "running"
    (runs / "first" / "summary.json").unlink()
    assert run_lines(runs)[0].state == "stopped"
    (runs / "first" / "config.yaml").write_text("{", encoding="utf-8")
    assert run_lines(runs)[0].state == "unreadable"
    shown = CliRunner().invoke(app, ["runs", str(runs), "--json"])
    assert json.loads(shown.stdout)[0]["name"] == "first"
    assert "first" in CliRunner().invoke(app, ["runs", str(runs)]).stdout


def test_a_folder_without_runs_says_so(tmp_path: Path) -> None:
    assert "no runs" in CliRunner().invoke(app, ["runs", str(tmp_path)]).stdout
    assert CliRunner().invoke(app, ["runs", str(tmp_path / "nowhere")]).exit_code == 2


def test_the_name_of_a_run_is_not_markup(tmp_path: Path) -> None:
    run_folder(tmp_path / "first[bold]")
    run_folder(tmp_path / "method[clip_low=0.2]")
    said = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["runs", str(tmp_path)]).stdout
    assert "first[bold]" in said
    assert "method[clip_low=0.2]" in said
