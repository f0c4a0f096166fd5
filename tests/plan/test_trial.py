"""A reward of the user's that fails on everything is found before the run, by trying it on real prompts."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.plan.gold_answers import formula_notes
from grouprl.plan.plan import Plan, plan
from grouprl.rewards import load_reward
from grouprl.tasks import load_task
from grouprl.training.loop import train

TINY = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 64}
SMALL: dict[str, Any] = {
    "task": "jsonl:q.jsonl",
    "model": {"name": "tiny", "tiny": TINY},
    "steps": 2,
    "batch": {"prompts": 2, "group_size": 2},
    "sampling": {"max_new_tokens": 4},
    "eval": {"every": 0, "final_prompts": 3},
    "run": {"threads": 1},
}
REWARDS = """
def raises(completion, answer):
    return {}[completion]

def no_number(completion):
    return float("nan")

def text(completion):
    return "1.0"

def one_for_equal_ones(completions):
    return [1.0 for text in set(completions)]

def last_word(completion, answer):
    return float(completion.split()[-1] == answer)

def first_row_is_bad(completion, answer):
    return float(completion == answer) / (answer != "0")

def right(completion, answer):
    return float(completion == answer)

def of_the_solution_alone(completion, answer):
    return {answer: 1.0}[completion]

def none(completion):
    return None

def too_short_in_training(completions):
    return [0.5] * (len(completions) if len(completions) != 4 else 3)
"""


@pytest.fixture(autouse=True)
def _work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = (json.dumps({"prompt": f"p{n}", "answer": str(n)}) for n in range(20))
    Path("q.jsonl").write_text("\n".join(lines))
    Path("mine.py").write_text(REWARDS)


def planned(name: str, **settings: object) -> Plan:
    reward = {"function": f"mine.py:{name}", "workers": 0, **settings}
    return plan(parse_config({**SMALL, "reward": reward}))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", r"'raises' failed on all of 19 completions.*KeyError: .*mine\.py, line 3.*check-reward"),
        ("no_number", "'no_number' failed on all of .*returned nan"),
        ("text", r"'text' failed on all of .*'1\.0' \(str\)"),
        ("one_for_equal_ones", "'one_for_equal_ones' failed on all of .*returned 3 values for 4 completions"),
    ],
)
def test_a_reward_that_fails_on_all_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        planned(name).raise_if_refused()
    with pytest.raises(InputError, match=said):
        train(parse_config({**SMALL, "reward": {"function": f"mine.py:{name}", "workers": 0}}), console=Silent())
    assert not Path("runs").exists()
    assert planned(name, self_test=False).refusals == ()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("last_word", "fails on an empty completion: the reward raised IndexError"),
        ("first_row_is_bad", "fails on a completion: the reward raised ZeroDivisionError"),
        ("of_the_solution_alone", "fails on a completion: the reward raised KeyError"),
        ("none", r"returned None \(does not apply\) for all 19"),
    ],
)
def test_a_reward_that_fails_on_some_is_a_note(name: str, said: str) -> None:
    found = planned(name)
    assert found.refusals == ()
    assert any(re.search(said, note) for note in found.notes), found.notes


def test_a_reward_that_works_is_not_spoken_of() -> None:
    found = planned("right")
    assert found.refusals == ()
    assert not any("'right'" in note for note in found.notes)


def test_it_is_tried_in_a_worker_unless_told_otherwise() -> None:
    Path("mine.py").write_text("import os\ndef leaves(completion):\n    os._exit(3)\n    return 1.0\n")
    (said,) = plan(parse_config({**SMALL, "reward": {"function": "mine.py:leaves", "timeout": 5}})).refusals
    assert "'leaves' failed on all of" in said


def test_a_task_of_the_users_own_has_its_reward_tried() -> None:
    Path("tasks_of_mine.py").write_text(
        "from grouprl.tasks import Example, Task\n"
        "class Letters(Task):\n"
        "    name, alphabet, max_new_tokens = 'letters', 'ab', 4\n"
        "    def reward(self, completion):\n        raise ValueError('no')\n"
        "    def example(self, split, index):\n        return Example(f'{split}/{index}', 'ab', {})\n"
        "    def size(self, split):\n        return 4\n"
    )
    (said,) = plan(parse_config({**SMALL, "task": "tasks_of_mine.py:Letters", "reward": {"workers": 0}})).refusals
    assert "failed on all of" in said
    assert "ValueError: no" in said


def test_a_run_whose_steps_are_all_lost_in_one_way_has_failed() -> None:
    settings = {**SMALL, "reward": {"function": "mine.py:too_short_in_training", "workers": 0}}
    with pytest.raises(RunError, match=r"in one way on every sample of 2 prompts.*3 values for 4 completions"):
        train(parse_config(settings), console=Silent())


def test_a_run_of_one_prompt_that_was_never_scored_has_failed() -> None:
    settings = {**SMALL, "steps": 1, "batch": {"prompts": 1, "group_size": 4}}
    reward = {"function": "mine.py:too_short_in_training", "workers": 0}
    with pytest.raises(RunError, match="No sample of this run could be scored; for instance"):
        train(parse_config({**settings, "reward": reward}), console=Silent())


def test_golds_that_are_formulas_are_told_of_unless_a_form_is_demanded(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    golds = ["4x", "5", r"\\sqrt{2}", r"x \\ge 5", "yes", r"\\frac{\\pi}{2}", "B"]
    rows = "".join(f'{{"prompt": "p{i}", "answer": "{gold}"}}\n' for i, gold in enumerate(golds * 4))
    (tmp_path / "golds.jsonl").write_text(rows)
    task = load_task({"name": f"jsonl:{tmp_path / 'golds.jsonl'}"})
    (note,) = formula_notes(load_reward("math_equal"), task)
    assert note.startswith(
        "8 of 28 golds of 'math_equal' are formulas, such as '4x': any formula equal to them is right"
    )
    assert formula_notes(load_reward({"name": "math_equal", "form": "simplified"}), task) == []
    assert formula_notes(load_reward("exact_match"), task) == []


class Silent(Console):
    """Prints nowhere."""

    def __init__(self) -> None:
        super().__init__(file=io.StringIO())
