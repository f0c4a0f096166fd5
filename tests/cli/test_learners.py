"""What `grouprl train` starts where the configuration asks for learners."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from grouprl.cli import launch, learners, train
from grouprl.cli.app import app
from grouprl.cli.learners import LearnerJob, heard_signals
from grouprl.cli.results import apart
from grouprl.training import starting
from placed_runs import run_config


@pytest.fixture
def asked(monkeypatch):
    """Notes which runs would be started, and starts none."""
    found: list[tuple[object, LearnerJob]] = []
    monkeypatch.setattr(train, "run_learners", lambda config, job: found.append((config, job)) or 0)
    monkeypatch.delenv("RANK", raising=False)
    return found


def written(folder: Path, **cluster: object) -> str:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run_config(folder, cluster)))
    return str(path)


@pytest.mark.parametrize("flag", ["-q", "--quiet", "--debug"])
@pytest.mark.parametrize("first", [True, False])
def test_flags_of_the_whole_command_line_reach_the_ranks(monkeypatch, flag, first):
    """They are taken from anywhere on the line, so that ranks would never hear of them."""
    started: list[list[str]] = []
    monkeypatch.setattr(launch, "run_ranks", lambda command, count: started.append(list(command[3:])) or 0)
    words = ["launch", "-n", "2", "train", "addition", "--set", "steps=1"]
    assert CliRunner().invoke(app, [flag, *words] if first else [*words, flag]).exit_code == 0
    assert started == [["train", "addition", "--set", "steps=1", flag if flag == "--debug" else "--quiet"]]


def run(*arguments: str) -> int:
    return CliRunner().invoke(app, ["train", *arguments]).exit_code


@pytest.mark.parametrize("cluster", [{"learners": 2}, {"ray": "auto", "learners": 1}])
def test_learners_are_started_with_the_words_of_the_user(asked, tmp_path, monkeypatch, cluster):
    monkeypatch.chdir(tmp_path)
    source = written(tmp_path, **cluster)
    assert run(source, "--set", "steps=2", "--seed", "7", "--json") == 0
    ((config, job),) = asked
    assert (config.steps, config.seed, config.cluster.learners) == (2, 7, cluster["learners"])
    folder = str(tmp_path / "runs" / "addition-grpo-s7")
    sets = ["--set", "steps=2", "--set", "seed=7"]
    assert job.arguments() == ["train", source, "--folder", folder, *sets, "--json"]


@pytest.mark.parametrize("cluster", [{}, {"learners": 1}, {"ray": "off", "learners": 0}])
def test_one_process_trains_by_itself(asked, tmp_path, cluster):
    assert starting.placed_config(starting.choose(written(tmp_path, **cluster))) is None


def test_a_learner_starts_no_others(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert run(written(tmp_path, learners=2), "--folder", str(tmp_path / "run")) == 2  # another number was started
    assert asked == []


def test_a_run_that_has_begun_is_continued(tmp_path):
    job = LearnerJob("run.yaml", tmp_path / "run", ("seed=1",), False, ("--quiet",))
    assert job.arguments() == ["train", "run.yaml", "--folder", str(tmp_path / "run"), "--set", "seed=1", "--quiet"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    assert job.arguments() == ["train", str(tmp_path / "run"), "--resume", "--quiet"]
    again = LearnerJob("run.yaml", tmp_path / "run", ("steps=9",), True, ())
    assert again.arguments() == ["train", str(tmp_path / "run"), "--resume", "--set", "steps=9"]


def test_a_resumed_run_may_change_its_learners(asked, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(run_config(tmp_path, {})))
    assert run(str(folder), "--resume", "--set", "cluster.learners=3") == 0
    ((config, job),) = asked
    assert config.cluster.learners == 3
    assert job.arguments() == ["train", str(folder), "--resume", "--set", "cluster.learners=3"]


def test_without_ray_the_learners_are_processes_of_this_machine(monkeypatch, tmp_path):
    found = []
    monkeypatch.setattr(learners, "run_ranks", lambda command, count: found.append((command[1:], count)) or 130)
    monkeypatch.delenv("RANK", raising=False)
    source = written(tmp_path, learners=2)
    assert run(source, "--folder", str(tmp_path / "run")) == 130
    assert found == [(["-m", "grouprl", "train", source, "--folder", str(tmp_path / "run")], 2)]


def test_results_of_a_learner_go_where_results_go(capfdbinary):
    with apart():
        learners.show(0, b'{"folder": "run"}\n', b"careful\n")
        learners.show(1, b"more\n", b"here too\n")
    said = capfdbinary.readouterr()
    assert said.out == b'{"folder": "run"}\n'
    assert said.err == b"careful\nhere too\n"


def test_a_run_is_never_overwritten(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    source = written(tmp_path, learners=2)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    assert run(source, "--folder", str(tmp_path / "run")) == 2


def test_signals_are_put_down_to_be_passed_on():
    before = signal.getsignal(signal.SIGTERM)
    with heard_signals() as heard:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert list(heard) == [signal.SIGTERM, signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) is before
