"""Programs as answers: the reward passes_tests, and the task code."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.errors import InputError
from grouprl.rewards import check_reward, load_reward
from grouprl.rewards.code import compiles, extract_code, passes_tests, same
from grouprl.rewards.sending import harmless
from grouprl.sandbox import SandboxSettings
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
    assert passes_tests(forged, SQUARES, "f", partial=True)["tests"] == pytest.approx(1 / 3)
    equal = "class A(int):\n    __eq__ = lambda s, o: True\ndef f(n): return A(1)"
    assert passes_tests(equal, SQUARES, "f", partial=True)["tests"] == 0
    nosy = "import gc, sys\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and 'result' in o]\n"
    nosy += "def f(n): return [d['result'] for d in found if d.get('arguments') == [n]][0]"
    assert passes_tests(nosy, SQUARES, "f")["tests"] == 0


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
        question = task.question("train", index)
        assert question.level == level
        right = task.solution(question)
        for text in (question.prompt, right, task.demonstration(question, 0)):
            assert set(text) <= set(task.alphabet)
        assert max(len(right), len(task.demonstration(question, 0))) < task.max_new_tokens
        assert all(eval(right, {"x": x}) == y for x, y in question.columns["tests"])
        assert split_of(str(question.prompt)) == "train"
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
    questions = [task.question("train", index) for index in range(300)]
    right = [all(eval(task.demonstration(q, 0), {"x": x}) == y for x, y in q.columns["tests"]) for q in questions]
    assert 0.4 < sum(right) / len(right) < 0.75
