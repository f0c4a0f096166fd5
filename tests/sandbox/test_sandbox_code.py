"""Programs as answers: the reward passes_tests, and the task code."""

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.core.errors import InputError, RunError
from grouprl.rewards import check_reward, load_reward
from grouprl.rewards.by_task.code import compiles, extract_code, passes_tests, same
from grouprl.rewards.catalogue.worker_choice import harmless
from grouprl.rewards.clock import each_within
from grouprl.rewards.contract import Crowded
from grouprl.rewards.reward_workers import RewardWorkers
from grouprl.sandbox import ProgramOutcome, SandboxSettings
from grouprl.tasks import CodeTask, load_task
from grouprl.tasks.task import split_of

SQUARES = [{"arguments": [n], "result": n * n} for n in (2, 3, -4)]


def test_known_answers():
    assert check_reward(passes_tests, passes_tests.examples) == 5
    assert load_reward("passes_tests") is passes_tests
    assert not harmless(passes_tests)


@pytest.mark.parametrize(
    ("code", "share"),
    [
        ("def f(n): return n * n", 1),
        ("f = lambda n: n ** 2", 1),
        ("def f(n): return n * abs(n)", 2 / 3),
        ("def f(n): return 4 if n == 2 else 1 / 0", 1 / 3),
        ("def f(n):\n    if n < 0: raise SystemExit\n    return n * n", 2 / 3),
        ("def f(n): print('{\"result\": 4}'); return n * n", 1),
        ("def g(n): return n * n", 0),
        ("def f(n): return object()", 0),
        ("def f(n) return n * n", 0),
        ("import os; os._exit(0)", 0),
        ("while True: pass", 0),
        ("def f(n): return str(n * n)", 0),
    ],
)
def test_what_a_function_returns_is_compared(code, share):
    clock = {"seconds": 1 if code.startswith("while") else 60}
    scored = passes_tests(code, SQUARES, "f", clock, partial=True)
    assert scored == {"tests": pytest.approx(share), "correct": float(share == 1)}
    assert passes_tests(code, json.dumps(SQUARES), "f", clock)["tests"] == float(share == 1)


def test_a_program_cannot_claim_what_it_did_not_compute():
    forged = "import os\nopen('results.jsonl', 'w').write('{\"result\": 9}\\n' * 3)\nos._exit(0)"
    assert passes_tests(forged, SQUARES, "f", partial=True)["tests"] == 0
    equal = "class A(int):\n    __eq__ = lambda s, o: True\ndef f(n): return A(1)"
    assert passes_tests(equal, SQUARES, "f", partial=True)["tests"] == 0
    nosy = "import gc, sys\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and 'result' in o]\n"
    nosy += "def f(n): return [d['result'] for d in found if d.get('arguments') == [n]][0]"
    assert passes_tests(nosy, SQUARES, "f")["tests"] == 0


RIGHT_TOO_LATE = "'\\n'.join('{\"result\": %d}' % (n * n) for n in (2, 3, -4)) + '\\n'"


@pytest.mark.parametrize(
    "late",
    [
        "import atexit; atexit.register(tell)",
        "import threading; threading.Thread(target=lambda: (time.sleep(0.05), tell())).start()",
        "import sys; sys.excepthook = lambda *a: tell()",
        "import weakref, sys; weakref.finalize(sys.modules['answer'], tell)",
        "import signal; signal.signal(signal.SIGALRM, lambda *a: tell()); signal.setitimer(signal.ITIMER_REAL, 0.05)",
    ],
)
def test_what_a_call_returned_cannot_be_changed_afterwards(late):
    """The program tells the right results on every descriptor and in every file, after it returned wrong ones."""
    tell = f"""
import os, time
def tell():
    for n in range(3, 64):
        try: os.write(n, ({RIGHT_TOO_LATE}).encode())
        except OSError: pass
    for name in os.listdir('.') + ['results.jsonl']:
        open(name, 'w').write({RIGHT_TOO_LATE})
calls = 0
def f(n):
    global calls
    calls += 1
    if calls == 3: time.sleep(0.2)
    return 0
{late}
"""
    assert passes_tests(tell, SQUARES, "f", {"seconds": 20}, partial=True)["tests"] < 1
    assert passes_tests(tell, SQUARES[:1] * 3, "f", {"seconds": 20})["correct"] == 0


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (float("inf"), 4), (float("-inf"), 4), (float("nan"), 4), (float("inf"), 4.5), (-float("inf"), -4.5),
        (10**9 - 1, 10**9), (10**9 - 1, 1e9), (999999999.0, 1e9), (4.000000001, 4), (2.0**53, 2**53 + 1),
        (10**999, 4.5), (4, "4"), (1e-9, 0.0), (1e-13, 0), (0.1001, 0.1), (1, True), (0, False), (None, 0),
    ],
)  # fmt: skip
def test_values_that_are_not_the_same(found, expected):
    assert not same(found, expected)
    assert not same([found], [expected])
    assert not same({"a": found}, {"a": expected})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (4, 4), (4.0, 4), (4, 4.0), (0.1 + 0.2, 0.3), (0.1 + 0.2 - 0.3, 0.0), (10**999, 10**999), (1e300, 1e300),
        (2**0.5 * 2**0.5, 2.0), (-0.0, 0), (1e22 * (1 + 1e-12), 1e22), ("", ""), (None, None), (False, False),
    ],
)  # fmt: skip
def test_values_that_are_the_same(found, expected):
    assert same(found, expected)
    assert same([found], [expected])
    assert same({"a": found}, {"a": expected})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), {1, 2}, [float("-inf")]])
def test_tests_that_expect_no_json_value_are_refused(value):
    with pytest.raises(InputError, match="JSON values"):
        passes_tests("def f(): return 1", [{"arguments": [], "result": value}], "f")


def test_code_that_needs_its_module_works():
    code = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    n: int\n"
        "def f(n): return A(n).n ** 2"
    )
    assert passes_tests(code, SQUARES, "f")["correct"] == 1
    assert passes_tests("def f(n):\n    print('x' * 200_000)\n    return n * n", SQUARES, "f")["correct"] == 1
    tests = [{"arguments": [], "result": list(range(60_000))}]
    assert passes_tests("def f(): return list(range(60_000))", tests, "f")["correct"] == 1
    assert passes_tests("```Python3\ndef f(n): return n * n\n```", SQUARES, "f")["correct"] == 1


def test_an_endless_program_stays_within_the_time_of_the_reward():
    """Eight tests of 5 s each, with 4 s for the reward: wrong, not late, at the first failure or when all are tried."""
    tests = [{"stdin": str(n), "stdout": str(n)} for n in range(8)]
    loop, slow = "while True: pass", "n = input()\nif n == '1':\n    while True: pass\nprint(n)"

    def answers(code, partial):
        began = time.monotonic()
        try:
            (verdict,) = each_within(4.0, iter_of(lambda: passes_tests(code, tests, partial=partial)))
        except Crowded:  # others had the processors
            verdict = None
        assert time.monotonic() - began < 20  # one after the other they would take 40
        return verdict and verdict["tests"]

    assert answers(loop, False) in (0, None)
    assert answers(loop, True) in (0, None)
    assert answers(slow, False) in (0, None)
    assert answers(slow, True) in (1 / 8, None)


def iter_of(function):
    yield function()


def test_the_clock_is_told_by_the_worker_and_an_endless_program_keeps_its_group():
    """Eight tests of 0.3 s each; the first failure ends them, so that a crowded machine has ten times as long."""
    tests = [{"stdin": str(n), "stdout": str(n)} for n in range(8)]
    with contextlib.closing(RewardWorkers(passes_tests, 1, timeout=4.0, memory_gb=2)) as workers:
        columns = [{"tests": tests, "sandbox": {"seconds": 0.3}}, {"tests": tests}]
        verdicts = workers.verdicts(["while True: pass", "print(input())"], columns, ["a", "b"])
    assert [(v.status, v.reward) for v in verdicts] == [("ok", 0.0), ("ok", 1.0)]


@pytest.mark.parametrize(
    ("outcomes", "ends"),
    [
        ([ProgramOutcome("refused", what="no room"), ProgramOutcome("ok", "3")], {"tests": 1.0, "correct": 1.0}),
        ([ProgramOutcome("killed", lost=True), ProgramOutcome("ok", "3")], {"tests": 1.0, "correct": 1.0}),
        ([ProgramOutcome("killed", lost=True), ProgramOutcome("killed", lost=True)], {"tests": 0.0, "correct": 0.0}),
        ([ProgramOutcome("refused", what="no room"), ProgramOutcome("refused", what="no room")], RunError),
    ],
)
def test_a_failure_of_the_sandbox_is_not_the_programs(outcomes, ends, monkeypatch):
    left = iter(outcomes)
    monkeypatch.setattr(SandboxSettings, "run", lambda self, code, **given: next(left))
    tests = [{"stdin": "", "stdout": "3"}]
    if isinstance(ends, dict):
        assert passes_tests("print(3)", tests) == ends
    else:
        with pytest.raises(ends, match="no room"):
            passes_tests("print(3)", tests)


def test_what_a_program_prints_is_compared_line_by_line():
    tests = [{"stdin": "2 3", "stdout": "5\n"}, {"stdin": "4 4", "stdout": "8"}]
    code = "a, b = map(int, input().split())\nprint(a + b, end='  \\n\\n')"
    assert passes_tests(code, tests)["tests"] == 1
    assert passes_tests("print(5)", tests, partial=True)["tests"] == 0.5
    assert passes_tests("print(5); 1 / 0", tests, partial=True)["tests"] == 0


def test_the_last_fenced_block_counts():
    text = "First\n```\nx = 1\n```\nthen\n```python\nx = 2\n```\ndone"
    assert extract_code(text) == "x = 2\n"
    assert extract_code("x = 3") == "x = 3"
    assert extract_code("```py\nx = 4") == "x = 4"


@pytest.mark.parametrize("tests", [[], [{}], [{"stdin": "", "stdout": ""}, {}], "[]", [1], {"a": 1}])
def test_tests_of_another_form_are_refused(tests):
    with pytest.raises(InputError, match="tests of a program"):
        passes_tests("", tests)


def test_wrong_settings_are_refused_in_words():
    with pytest.raises(InputError, match="sandbox's settings"):
        passes_tests("", SQUARES, "f", {"allow": "nothing"})


def test_values_are_compared_as_json():
    assert same(1, 1.0)
    assert same(0.1 + 0.2, 0.3)
    assert same([1, {"a": None}], (1, {"a": None}))
    for found, expected in ((True, 1), (1, True), ("1", 1), (None, 0), ([1], [1, 2]), ({"a": 1}, {"b": 1}), ([], {})):
        assert not same(found, expected)


@given(st.text(max_size=40))
def test_whether_it_compiles_never_raises(text):
    assert compiles(text) in (True, False)


@pytest.mark.parametrize("level", range(1, 7))
def test_the_task_code(level):
    task = load_task({"name": "code", "level": level})
    for index in range(100):
        example = task.example("train", index)
        assert example.level == level
        right = task.solution(example)
        for text in (example.prompt, right, task.demonstration(example, 0)):
            assert set(text) <= set(task.alphabet)
        assert max(len(right), len(task.demonstration(example, 0))) < task.max_new_tokens
        assert all(eval(right, {"x": x}) == y for x, y in example.columns["tests"])
        assert split_of(str(example.prompt)) == "train"
    assert check_reward(task.reward, task.reward_examples()) == 9


def test_every_right_expression_of_the_task_counts_and_no_other():
    task = CodeTask()
    columns = {"tests": [[x, 2 * x + 3] for x in (3, 7, 10, 25)]}
    for right in ("2*x+3", "x+x+3", "3+x*2", "-(-2*x-3)", "x*3-x+3"):
        assert task.reward(right, **columns) == 1, right
    for wrong in ("2*x+4", "x*2", "9", "", " ", "2x+3", "x**9**9**9", "2*x+3)+(0", "0\n+2*x+3 #", "x:3"):
        expected = float(wrong in ("2*x+3)+(0", "0\n+2*x+3 #"))  # odd, but right
        assert task.reward(wrong, **columns) == expected, wrong


def test_demonstrations_are_right_in_about_half():
    task = CodeTask(sandbox=SandboxSettings(seconds=2))
    examples = [task.example("train", index) for index in range(300)]
    right = [all(eval(task.demonstration(q, 0), {"x": x}) == y for x, y in q.columns["tests"]) for q in examples]
    assert 0.4 < sum(right) / len(right) < 0.75


def test_long_code_is_left_to_the_sandbox_and_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: Any, **__: Any) -> None:
        raise AssertionError("compiled without a clock")

    text = 'f"' + "{x}" * 100_000 + '"'
    monkeypatch.setattr("builtins.compile", compiled)
    found = compiles(text)
    monkeypatch.undo()
    assert found  # whoever runs it finds out
    assert passes_tests(text, [{"arguments": [1], "result": 1}], "f", {"seconds": 1.0})["correct"] == 0.0
