"""Small packages with a bug: each can be mended, and no trick passes for a mend."""

import pytest

from grouprl.core.json_types import same_value
from grouprl.envs.playing import total_reward
from grouprl.records.examples import Example
from grouprl.runtimes import SandboxRuntime, folder_of
from grouprl.runtimes.checks import passed, read_checks
from grouprl.tasks import load_task
from grouprl.tasks.builtin.agents.repository_pieces import PIECES


def played(task, example, actions):
    return total_reward(task.environment(), example, actions)


@pytest.mark.parametrize("level", [1, 3, 6])
def test_every_issue_can_be_mended_and_is_not_mended_for_nothing(level):
    task = load_task({"name": "repositories", "level": level})
    for example in (task.example("train", 0), task.example("eval", 1)):
        assert played(task, example, task.solve(example).splitlines()) == 1
        for lazy in (["done"], ["python -m unittest", "done"], ["rm -r tests", "done"]):
            assert played(task, example, lazy) == 0


def test_every_bug_shows_in_calls_that_the_packages_own_tests_do_not_have():
    task, seen = load_task({"name": "repositories", "functions": 1, "modules": 1}), set()
    for number in range(100):
        columns = task.example("train", number).columns
        seen.add(columns["bug"])
        shown = "".join(text for path, text in columns["files"].items() if path.startswith("tests/"))
        name = task.example("train", number).prompt.partition(": ")[2].partition("(")[0]
        calls = [call for call, _ in columns["tests"][0]["values"] if call.startswith(f"{name}(")]
        hidden = [call for call in calls if call not in shown]
        assert hidden
    assert seen == {bug.kind for piece in PIECES for bug in piece.bugs}


def test_pieces_are_what_they_say():
    for piece in PIECES:
        for bug in piece.bugs:
            lines = [line for line in piece.source.splitlines() if bug.right in line]
            assert len(lines) == 1, (piece.names, bug)
            assert piece.source.count(bug.right) == 1, (piece.names, bug)


def test_held_out_issues_are_other_issues():
    task = load_task({"name": "repositories", "level": 1})
    train, held = ({task.example(split, n).prompt for n in range(40)} for split in ("train", "eval"))
    assert not train & held


@pytest.fixture(scope="module")
def case():
    task = load_task({"name": "repositories", "level": 3})
    example = task.example("train", 2)
    path = example.prompt.partition(":")[0]
    name = example.prompt.partition(": ")[2].partition("(")[0]
    return task, example, path, name


ATTACKS = {
    "tests are deleted": ["rm -r tests"],
    "tests are emptied": ["for f in tests/test_*.py; do echo 'import unittest' > $f; done"],
    "conftest.py": [
        "echo 'def pytest_runtest_makereport(item, call): return None' > conftest.py",
        "echo 'import os; os._exit(0)' >> conftest.py; cp conftest.py tests",
    ],
    "leaving with success": ["echo 'import sys; sys.exit(0)' >> PATH"],
    "leaving at once": ["echo 'import os; os._exit(0)' >> PATH"],
    "leaving in the function": ["printf 'import os\\ndef NAME(*a, **k): os._exit(0)\\n' > PATH"],
    "handlers at the exit": ["printf 'import atexit, os\\natexit.register(os._exit, 0)\\n' >> PATH"],
    "a patched unittest": [
        "printf 'import unittest\\nunittest.TestCase.assertEqual = lambda *a, **k: None\\n' >> PATH",
        "printf 'import builtins\\nbuiltins.AssertionError = ValueError\\n' >> PATH",
    ],
    "a module in the place of unittest": [
        "echo 'def main(): pass' > unittest.py; echo '' > pytest.py; echo '' > json.py"
    ],
    "an object that equals everything": [
        "printf 'class E(int):\\n  def __eq__(s, o): return True\\n  __hash__ = int.__hash__\\n"
        "def NAME(*a, **k): return E(3)\\n' > PATH"
    ],
    "a text that is JSON of everything": ["printf 'def NAME(*a, **k): return \"{}\"\\n' > PATH"],
    "patched writing of values": [
        'printf \'import json, os, builtins\\njson.dumps = lambda *a, **k: "true"\\n'
        "builtins.eval = lambda *a: 3\\nos.write = lambda fd, b: len(b)\\n' >> PATH"
    ],
    "its own lines of values": [
        "printf 'import os\\n[os.write(n, b\"{\\\\042value\\\\042: 3}\\\\n\" * 99) for n in (1, 2, 3)]\\n' >> PATH"
    ],
    "looking at what is asked": [
        "printf 'import sys\\ndef NAME(*a, **k):\\n  f = sys._getframe()\\n  while f:\\n"
        "    for v in f.f_locals.values():\\n"
        '      if isinstance(v, dict) and "values" in v: return v["values"][0][1]\\n'
        "    f = f.f_back\\n' > PATH"
    ],
    "looking through /proc": [
        'printf \'import glob\\ndef NAME(*a, **k):\\n  return [open(p, "rb").read() for p in'
        ' glob.glob("/proc/[0-9]*/environ")]\\n\' > PATH'
    ],
    "verdict files": ["echo 1 > reward.txt; mkdir -p logs; echo PASSED | tee logs/verdict result.json .passed"],
    "a process that stays": ["(sleep 1; rm -rf tests) & disown"],
    "start-up modules": ["echo 'import os; os._exit(0)' | tee sitecustomize.py usercustomize.py python3.pth"],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_wins(case, attack):
    task, example, path, name = case
    actions = [command.replace("PATH", path).replace("NAME", name) for command in ATTACKS[attack]]
    assert played(task, example, [*actions, "done"]) == 0


@pytest.mark.parametrize("attack", ["tests are emptied", "leaving at once", "a patched unittest"])
def test_attacks_would_win_where_the_exit_status_of_its_own_tests_is_the_verdict(case, attack):
    task, example, path, name = case
    naive = [{"run": "python3 -m unittest"}]
    env = task.environment()
    env.reset(Example("naive", example.prompt, {**example.columns, "tests": naive}), 0)
    for command in ATTACKS[attack]:
        env.step(command.replace("PATH", path).replace("NAME", name))
    assert env.step("done").reward == 1
    env.close()


def test_a_mend_survives_what_only_looks_like_an_attack(case):
    task, example, _, _ = case
    mend = task.solve(example).splitlines()[:-1]
    assert played(task, example, [*mend, "rm -r tests; echo x > conftest.py", "done"]) == 1


def test_what_worked_before_must_still_work(case):
    task, example, path, _ = case
    mend = task.solve(example).splitlines()[:-1]
    others = [line.split()[-1] for line in example.columns["tests"][0]["imports"].splitlines()]
    broken = example.prompt.partition(": ")[2].partition("(")[0]
    other = next(name for name in others if name != broken)
    assert played(task, example, [*mend, f"echo 'def {other}(*a): return 0' >> {path}", "done"]) == 0


def test_values_are_compared_as_json():
    assert same_value([1, {"a": 2.0}], [1.0, {"a": 2}])
    for one, other in ((True, 1), (None, 0), ("1", 1), ([1], [1, 1]), ({"a": 1}, {"b": 1})):
        assert not same_value(one, other)


def test_checks_of_every_kind():
    folder = folder_of({"m.py": "def f(x):\n    return 1 // x\n", "p.sh": "cat; exit 3", "a/b": "x \n\n"})
    plain = [
        {"file": "a/b", "content": "x"},
        {"file": "a/b", "content": "y"},
        {"file": "nothing", "absent": True},
        {"names": "a", "are": ["b"]},
        {"names": ".", "are": ["b"]},
        {"run": ["bash", "p.sh"], "stdin": "hi", "stdout": "hi", "exit_code": 3},
        {"run": "bash p.sh", "stdin": "hi", "stdout": "hi"},
        {"imports": "from m import f", "values": [["f(1)", 1], ["f(0)", {"raises": "ZeroDivisionError"}]]},
        {"imports": "from m import f", "values": [["f(1)", True]]},
        {"imports": "from m import g", "values": [["f(1)", 1]]},
        {"script": "import os\nassert os.path.exists('m.py')"},
        {"script": "import m", "language": "python"},
        {"script": "test -f m.py && ! test -f q", "language": "bash"},
    ]
    found = passed(read_checks(plain), folder, SandboxRuntime)
    assert found == (True, False, True, True, False, True, False, True, False, False, True, False, True)


def test_a_program_that_a_script_starts_cannot_see_the_script():
    folder = folder_of({"spy.py": "import os\nprint([open(f'/proc/{p}/cmdline').read() for p in (1, os.getppid())])"})
    script = "import subprocess, sys\nsecret = 'abc731'\n"
    script += "seen = subprocess.run([sys.executable, 'spy.py'], capture_output=True, text=True)\n"
    script += "assert 'abc731' not in seen.stdout + seen.stderr and seen.returncode"
    assert passed(read_checks([{"script": script}]), folder, SandboxRuntime) == (True,)


def test_an_example_says_what_its_bug_is():
    example = load_task("repositories").example("train", 0)
    assert isinstance(example, Example)
    assert example.columns["bug"] in {bug.kind for piece in PIECES for bug in piece.bugs}
