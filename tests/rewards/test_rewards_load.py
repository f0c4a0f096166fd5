"""Finding a reward by name, import path, file, mapping or list."""

import sys
from functools import partial

import pytest

from grouprl.core.errors import InputError, MissingExtra
from grouprl.rewards import exact_match, load_reward, score


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory with a module of rewards."""
    (tmp_path / "myrewards.py").write_text(
        "NUMBER = 3\n"
        "def good(completion, answer='a'):\n    return completion == answer\n"
        "def empty():\n    return 1\n"
        "class Judge:\n"
        "    def __call__(self, completion):\n        return 0.5\n"
        "    def method(self, completion):\n        return 0.25\n"
        "judge = Judge()\n"
    )
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "failing.py").write_text("1 / 0\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit()\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("myrewards", "broken", "failing", "leaving"):
        sys.modules.pop(name, None)


def first(reward, completion="a", **columns):
    return score(reward, [completion], [columns], ids=["0"]).reward_b[0]


def test_by_name_and_as_a_function():
    assert load_reward("exact_match") is exact_match
    assert load_reward(exact_match) is exact_match


@pytest.mark.parametrize("where", ["myrewards", "myrewards.py", "./myrewards.py"])
def test_by_import_path(project, where):
    path_before = list(sys.path)
    assert first(load_reward(f"{where}:good")) == 1.0
    assert first(load_reward(f"{where}:judge")) == 0.5
    assert first(load_reward(f"{where}:judge.method")) == 0.25
    beside = [str(project.resolve())] if where.endswith(".py") else []  # a file may import what lies beside it
    assert sys.path == path_before + [folder for folder in beside if folder not in path_before]


def test_by_absolute_file(project):
    assert first(load_reward(f"{project / 'myrewards.py'}:good")) == 1.0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("exactmatch", "no reward 'exactmatch'. Did you mean 'exact_match'"),
        ("nowhere:f", "module 'nowhere' of a reward cannot be found"),
        ("myrewards.sub:f", "failed|cannot be found"),
        ("nowhere.py:f", "file 'nowhere.py' of a reward does not exist"),
        ("myrewards:goood", "no 'goood' in myrewards.*Did you mean 'good'"),
        ("myrewards:NUMBER", "is of type int. A reward is callable"),
        ("myrewards:Judge", "is a class"),
        ("myrewards:empty", "no parameter for the completion"),
        ("broken:f", "Importing 'broken' for a reward failed: ModuleNotFoundError.*nothing_of_this_name"),
        ("broken.py:f", "failed: ModuleNotFoundError"),
        ("failing:f", "ZeroDivisionError"),
        ("failing.py:f", "ZeroDivisionError"),
        ("leaving:f", "failed: SystemExit"),
        ("leaving.py:f", "failed: SystemExit"),
        (":f", "not an import path"),
        ("myrewards:", "not an import path"),
        ({"weight": 1}, "no name"),
        ({"name": "numeric_match", "tolerence": 1}, "no parameter 'tolerence'. Did you mean 'tolerance'"),
        ([{"name": "exact_match", "weight": "x"}], "weight must be a finite number"),
        ([3], "Each entry must be a name or a mapping"),
        ([], "no rewards"),
        (3, "The reward is 3"),
    ],
)
def test_errors_in_words(project, spec, message):
    with pytest.raises(InputError, match=message):
        load_reward(spec)


def test_mapping_binds_parameters():
    reward = load_reward({"name": "numeric_match", "tolerance": 0.5})
    assert isinstance(reward, partial)
    assert first(reward, "3.4", answer=3) == 1.0


def test_list_is_a_weighted_sum():
    reward = load_reward(["exact_match", {"name": "regex_format", "weight": 0.2, "pattern": "a+"}])
    scores = score(reward, ["aa", "b"], [{"answer": "b"}] * 2, ids=["0", "1"])
    assert scores.reward_b == pytest.approx([0.2, 1.0])
    assert scores.correct_b.tolist() == [False, True]
    assert set(scores.components) == {"exact_match", "regex_format"}


def test_missing_extra_is_said_at_once(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"grouprl\[math\]"):
        load_reward("math_equal")
