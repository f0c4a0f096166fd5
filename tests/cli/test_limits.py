"""Inputs at their limits: large, deep, endless, of another kind. Each is served or refused in words, soon."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import load_config
from grouprl.core.errors import InputError
from grouprl.tasks import load_task, rows
from grouprl.tasks.task import without_folder


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_numbers_too_long_to_read_are_refused_without_the_advice_of_python(work):
    (work / "q.jsonl").write_text('{"prompt": "p", "answer": ' + "9" * 5000 + "}\n")
    (work / "run.yaml").write_text("steps: " + "9" * 5000)
    for load in (lambda: load_task("jsonl:q.jsonl"), lambda: load_config("run.yaml")):
        with pytest.raises(InputError, match="a number has more than 4,300 digits") as refused:
            load()
        assert "set_int_max_str_digits" not in str(refused.value)


def test_a_configuration_is_not_read_without_end(work):
    (work / "big.yaml").write_text("task: addition\n" + "# x\n" * 300_000)
    with pytest.raises(InputError, match="at most 1,000,000"):
        load_config("big.yaml")
    os.mkfifo(work / "pipe.yaml")
    for odd in ("pipe.yaml", "/dev/zero"):
        with pytest.raises(InputError, match="a pipe or a device"):
            load_config(odd)


def test_what_is_said_of_an_absolute_path_does_not_name_the_working_directory(work):
    with pytest.raises(InputError) as refused:
        load_task(f"jsonl:{work}/none.jsonl")
    assert "Looked in" not in str(refused.value)


def test_a_reward_is_looked_at_once_and_not_for_every_row(work, monkeypatch):
    (work / "q.jsonl").write_text("".join(json.dumps({"prompt": f"{i}", "answer": "a"}) + "\n" for i in range(50)))
    looked = []
    inspect = rows.inspect_reward
    monkeypatch.setattr(rows, "inspect_reward", lambda reward: (looked.append(reward), inspect(reward))[1])
    task = load_task({"name": "jsonl:q.jsonl", "reward": "exact_match"})
    task.check_columns(task.reward)
    assert len(looked) == 2
    with pytest.raises(InputError, match="missing in line 1"):
        load_task({"name": "jsonl:q.jsonl", "reward": "numeric_match", "prompt": "nope"})


@pytest.mark.parametrize(("path", "name"), [("/a/b.jsonl", "b.jsonl"), ("/a/b/", "b"), ("a/b", "a/b"), ("x", "x")])
def test_a_path_without_its_folder(path, name):
    assert without_folder(path) == name


def test_the_reward_of_a_run_is_attacked_by_the_name_of_its_file(work):
    (work / "paid.py").write_text("def paid(completion, answer):\n    return float(completion == answer)\n")
    (work / "run.yaml").write_text("task: addition\nreward: {function: 'paid.py:paid'}\n")
    found = CliRunner().invoke(app, ["check-reward", "run.yaml", "--examples", "1", "--json"])
    assert json.loads(found.stdout)["reward"] == "run.yaml", found.output
    assert found.exit_code in (0, 1)
