"""What the listings and the plan of the first hour say, and what they load for it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.cli.listing import BEST_KNOWN, listed, listed_tasks
from grouprl.config.run import parse_config
from grouprl.plan import disk
from grouprl.plan.plan import plan
from grouprl.tasks import task_names


def at_80_columns(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_methods_have_one_line_each_with_the_best_known_first() -> None:
    lines = at_80_columns("methods")
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1 : 1 + len(BEST_KNOWN)]] == list(BEST_KNOWN)
    families = {each.family for each in listed()}
    assert len(lines) <= len(listed()) + len(BEST_KNOWN) + 2 * (len(families) + 1) + 6
    grpo = next(line for line in lines if line.startswith("grpo "))
    learned, runs = re.search(r"(\d+) of (\d+)$", grpo).groups()
    assert 10 < int(learned) <= int(runs), "the record of its runs, which can only grow"


def test_one_family_is_one_table() -> None:
    lines = at_80_columns("methods", "--family", "dialects")
    assert not any("best known" in line for line in lines)


def test_tasks_have_one_line_each() -> None:
    lines = at_80_columns("tasks")
    assert max(map(len, lines)) <= 80
    assert len(lines) <= len(listed_tasks()) + 3
    assert [line.split()[0] for line in lines[:3]] == ["jsonl:<path>", "hf:<dataset>", "addition"]
    assert {line.split()[0] for line in lines} >= set(task_names())


def test_a_plan_names_what_comes_from_the_recipe_and_what_was_changed() -> None:
    found = "\n".join(at_80_columns("plan", "addition", "--set", "steps=7"))
    rows = {line.split()[0]: line for line in found.splitlines() if line.strip()}
    assert "set by --set" in rows["steps"]
    assert "set by the recipe" in rows["batch.prompts"]
    assert "set by you" not in found


def test_a_plan_names_changes_below_a_setting_and_parts_that_were_chosen() -> None:
    changes = ("task.name=reverse", "task.shortest=3", "data.prompts=64", "method.curriculum.part=easy_to_hard")
    found = at_80_columns("plan", "addition", *(word for change in changes for word in ("--set", change)))
    (curriculum,) = [line for line in found if line.startswith("curriculum ") and "set by" in line]
    assert "set by --set" in curriculum
    found = at_80_columns("plan", "addition", "--set", "task.digits=2")
    (place,) = [number for number, line in enumerate(found) if line.startswith("task ") and "set by" in line]
    assert "set by the recipe addition, changed by --set" in " ".join(" ".join(found[place : place + 2]).split())


@pytest.mark.parametrize("task", ["addition", "calculator", "guess"])
def test_a_plan_of_a_tiny_model_loads_neither_torch_nor_code_of_models(task: str) -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom grouprl.cli.app import app\n"
        f"assert CliRunner().invoke(app, ['plan', '{task}']).exit_code == 0\n"
        "print([name for name in ('torch._C', 'transformers.modeling_utils') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_plan_speaks_of_a_disk_without_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = parse_config({"task": "addition", "steps": 1, "run": {"folder": str(tmp_path / "run")}})
    assert not any("are free in" in note for note in plan(config).notes)
    usage = disk.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda place: replace_free(usage, 1000))
    (note,) = [note for note in plan(config).notes if "are free in" in note]
    assert "Lower run.keep" in note


def replace_free(usage: object, free: int) -> object:
    return usage._replace(free=free)  # type: ignore[attr-defined]
