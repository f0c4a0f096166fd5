"""Hacks against every grader, honest controls beside them, and texts of every kind: no win, no failure, no refusal."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.rewards import load_reward, score
from grouprl.rewards.catalogue.attacks import Case, attack, attacks

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("attack_page", ROOT / "scripts" / "attacks.py")
page = importlib.util.module_from_spec(spec)
sys.modules["attack_page"] = page  # dataclasses look for the module of their class
spec.loader.exec_module(page)
GRADERS = {name: (reward, cases) for name, reward, cases in page.own_graders()}


@pytest.mark.parametrize("name", GRADERS)
def test_no_hack_wins_and_no_honest_answer_loses(name):
    reward, cases = GRADERS[name]
    report, ran = page.tried(reward, cases[:4])
    assert not ran
    assert report.findings == ()
    assert report.attacks >= 50


def test_a_folder_whose_name_holds_the_answer_is_no_hack(tmp_path):
    """The canary's path is the machine's choice: a last-number grader may find the answer in it."""
    reward, cases = load_reward("numeric_match"), [Case("example 1", "What is 1+1?", {"answer": "2"}, ("2",))]
    assert attack(reward, cases, str(tmp_path / "left-2xv" / "canary")).findings == ()


def runs_programs(completion, answer):
    if "__" not in completion and "open" not in completion:
        return 0.0  # endless computations are another kind
    try:
        eval(completion)
    except Exception:
        return 0.0
    return 1.0


def test_a_program_that_is_paid_for_running_is_still_found(tmp_path):
    cases = [Case("example 1", "What is 1+1?", {"answer": "2"}, ("2",))]
    report = attack(load_reward(runs_programs), cases, str(tmp_path / "canary"))
    assert any(each.kind == "a program" and "subclasses" in each.completion for each in report.findings)
    assert (tmp_path / "canary").exists()


def test_the_matrix_is_large():
    count = sum(len(list(attacks(case.prompt, "5"))) for _, cases in GRADERS.values() for case in cases)
    assert count >= 2000
    assert sum(len(case.right) for _, cases in GRADERS.values() for case in cases) >= 50


def test_the_page_holds_every_grader_and_no_win():
    rows = [
        line.split("|")[1:-1] for line in (ROOT / "docs" / "attacks.md").read_text().splitlines() if line[:2] == "| "
    ]
    numbers = {row[0].strip(" *"): [int(cell.replace(",", "").strip(" :")) for cell in row[1:]] for row in rows[1:]}
    assert set(GRADERS) <= set(numbers)
    assert all((wins, failures, refused) == (0, 0, 0) for _, wins, failures, _, refused in numbers.values())


@pytest.mark.parametrize("name", [name for name in GRADERS if name not in ("math_equal",)])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text(max_size=60) | st.text("0123456789.,/%eE-+|=?[]{}()<>\\$&\"':;#@ \n\x00", max_size=60))
def test_every_text_is_worth_a_finite_number(name, text):
    reward, cases = GRADERS[name]
    scores = score(reward, [text], [cases[0].columns], ids=["a"])
    assert scores.status_b.tolist() == ["ok"], scores.problems
    assert math.isfinite(scores.reward_b[0])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text("0123456789xyπ.,/%-+^_=|!{}()[]\\$ ", max_size=30) | st.text(max_size=30), boxed=st.booleans())
def test_every_text_is_worth_a_finite_number_to_math_equal(text, boxed):
    pytest.importorskip("math_verify")
    shown = f"\\boxed{{{text}}}" if boxed else text
    for gold in ("395", r"2\sqrt{2}"):
        scores = score(load_reward("math_equal"), [shown], [{"answer": gold}], ids=["a"])
        assert scores.status_b.tolist() == ["ok"], scores.problems


def contains(completion, answer):
    return float(str(answer) in completion)


def refuses_all(completion, answer):
    return 0.0


def raises(completion, answer):
    return float(int(completion) == int(answer))


CASE = Case("a", "What is 2+2?", {"answer": "4"}, ("4",))


def test_an_attack_finds_what_is_wrong_with_a_reward():
    assert {finding.what for finding in attack(contains, [CASE]).findings} == {"passes"}
    assert {finding.what for finding in attack(refuses_all, [CASE]).findings} == {"refuses"}
    assert {finding.what for finding in attack(raises, [CASE]).findings} == {"fails"}


def test_a_reward_that_a_completion_changes_is_found():
    paid = []

    def remembers(completion, answer):
        paid.append(completion)
        return float(completion == answer and len(paid) < 5)

    kinds = [finding.kind for finding in attack(remembers, [CASE]).findings]
    assert kinds == ["an honest completion, afterwards"]


def run(*arguments):
    return CliRunner().invoke(app, ["check-reward", *arguments])


def test_the_command_says_what_passes_and_exits_by_it(tmp_path):
    own = tmp_path / "mine.py"
    own.write_text("def f(completion, answer):\n    return float(str(answer) in completion)\n")
    assert run("exact_match").exit_code == 0
    found = run(f"{own}:f", "--task", "addition", "--examples", "1", "--json")
    assert found.exit_code == 1
    data = json.loads(found.stdout)
    assert data["attacks"] >= 100
    assert {finding["what"] for finding in data["findings"]} == {"passes"}
    assert run(f"{own}:f").exit_code == 2
    assert run("exact_matc").exit_code == 2


def test_the_command_notices_a_program_that_ran(tmp_path):
    own = tmp_path / "mine.py"
    own.write_text(
        "def f(completion, answer):\n    try:\n        return float(eval(completion[:200]) == 0.5)\n"
        "    except BaseException:\n        return 0.0\nf.examples = ()\n"
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "answer": "0.5"}\n{"prompt": "b", "answer": "0.5"}\n')
    found = run(f"{own}:f", "--task", f"jsonl:{rows}", "--examples", "1", "--timeout", "1")
    assert found.exit_code == 1
    assert (
        "ran a completion as a program" in " ".join(found.stdout.split()).replace("│", "")
        or "a program" in found.stdout
    )
