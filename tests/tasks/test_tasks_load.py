"""From a name, mapping or import path to a task; registering one's own; describing all."""

import sys
from pathlib import Path

import pytest

import grouprl.tasks
from grouprl.core.discovery import Discovered, task_classes, task_homes
from grouprl.core.errors import InputError, MissingExtra
from grouprl.tasks import (
    Addition,
    Example,
    Task,
    describe_tasks,
    load_task,
    register_task,
    registry,
    task_names,
)

OWN = '''
from grouprl.tasks import Example, Task

class Echo(Task):
    """Say it again."""

    def __init__(self, word="hi", seed=0):
        self.word, self.seed = word, seed

    @property
    def reward(self):
        return lambda completion, answer: float(completion == answer)

    def example(self, split, index):
        return Example(f"echo/{split}/{index}", self.word, {"answer": self.word})

    def size(self, split):
        return 1

class Bare(Echo):
    def __init__(self):
        super().__init__()

nothing = 3
'''


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "mytasks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("mytasks", None)


@pytest.fixture
def clean_registry(monkeypatch):
    registered = Discovered(task_homes)
    for name, entry in registry._REGISTRY.items():
        registered[name] = entry
    monkeypatch.setattr(registry, "_REGISTRY", registered)


def test_by_name_and_mapping():
    assert load_task("addition") == Addition()
    assert load_task({"name": "addition", "digits": 3}, seed=4) == Addition(digits=3, seed=4)
    assert load_task({"name": "addition", "seed": 9}, seed=4).seed == 9


def test_the_given_mapping_is_left_alone():
    spec = {"name": "addition", "digits": 3}
    load_task(spec)
    assert spec == {"name": "addition", "digits": 3}


def test_by_import_path(project):
    task = load_task({"name": "mytasks:Echo", "word": "ho"}, seed=3)
    assert (task.word, task.seed, task.name, task.description) == ("ho", 3, "echo", "Say it again.")
    assert task.max_new_tokens == 256
    assert task.alphabet == ""
    example = task.example("train", 0)
    assert task.demonstration(example, 0) is None
    assert task.solution(example) is None
    assert task.reward_examples() == ()
    assert len(task.fingerprint()) == 16
    assert load_task("mytasks.py:Echo").word == "hi"
    assert load_task("mytasks:Bare").word == "hi"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("additon", r"no task 'additon'\. Did you mean 'addition'"),
        ("", "no task ''"),
        ({}, "has no name"),
        ({"name": 3}, "has no name"),
        ({"digits": 3}, "has no name"),
        ({"name": "sorting", "lenght": 3}, r"'sorting' has no option 'lenght'\. Did you mean 'length'"),
        ("addition:3", "takes no argument"),
        ("jsonl", "written jsonl:<path>"),
        ("jsonl:", "written jsonl:<path>"),
        ({"name": "jsonl:a", "path": "b"}, "got 'path' twice"),
        ("nowhere:Task", "module 'nowhere' of a task cannot be found"),
        ("mytasks:Ecco", r"no 'Ecco' in mytasks.*Did you mean 'Echo'"),
        ("mytasks:nothing", "subclass of grouprl.tasks.Task"),
        ({"name": "mytasks:Echo", "wrod": "x"}, r"no option 'wrod'\. Did you mean 'word'"),
        ({"name": "mytasks:Bare", "word": "x"}, "It has no options"),
    ],
)
def test_errors_in_words(project, spec, message):
    with pytest.raises(InputError, match=message):
        load_task(spec)


def test_register_task(clean_registry):
    @register_task("mine")
    class Mine(Task):
        """My task."""

        reward = staticmethod(lambda completion: 1.0)
        max_new_tokens = 8

        def example(self, split, index):
            return Example(str(index), "?")

        def size(self, split):
            return 5

    task = load_task("mine")
    assert (task.name, task.max_new_tokens, task.size("train")) == ("mine", 8, 5)
    assert task.reward("x") == 1.0
    assert "mine" in task_names()
    assert [d.description for d in describe_tasks() if d.name == "mine"] == ["My task."]


def test_the_tasks_read_off_the_sources_are_those_that_are_registered() -> None:
    """Only the module of a task that is used is imported; a name that is written otherwise would be lost."""
    found = {
        name: entry.task for name, entry in registry._REGISTRY.items() if entry.task.__module__.startswith("grouprl.")
    }
    assert {name: task.__module__ for name, task in found.items()} == task_homes()
    written = [line for path in Path(grouprl.tasks.__path__[0]).rglob("*.py") for line in path.read_text().splitlines()]
    assert len(found) == sum(line.startswith("@register_task(") for line in written) > 50
    for name, module in task_classes().items():
        assert getattr(grouprl.tasks, name).__module__ == module
        assert name in grouprl.tasks.__all__


def test_names_are_not_taken_over(clean_registry):
    with pytest.raises(InputError, match="'addition' is taken by Addition"):
        register_task("addition")(type("Other", (Addition,), {}))
    with pytest.raises(InputError, match="cannot be registered"):
        register_task("my:task")


def test_every_task_is_described_with_an_example():
    described = {d.name: d for d in describe_tasks()}
    assert sorted(described) == task_names()
    assert {"addition", "multiplication", "chain", "countdown", "sorting", "reverse"} <= set(described)
    assert {"jsonl:<path>", "hf:<dataset>", "reasoning_gym:<dataset>"} <= set(described)
    for name, description in described.items():
        assert description.description.endswith(".")
        if name in {"alfworld", "webshop"}:  # adapters without an argument: prompts are their data's, which is not here
            assert "its data must be installed" in description.description
            assert not description.prompt
        elif ":" not in name:
            assert description.prompt
            assert description.answer
            assert description.demonstration
            assert len(description.levels) == 6
    assert described["multiplication"].levels[2] == "digits: 2, by: 2"


def test_a_task_without_the_program_that_it_starts_is_described_and_names_it(monkeypatch):
    """One task that cannot be demonstrated here must not take the listing of all tasks away."""

    def absent(self, example, seed):
        raise InputError("There is no Chromium on this machine", remedy="Install it")

    monkeypatch.setattr(Addition, "demonstration", absent)
    described = {d.name: d for d in describe_tasks()}
    assert described["addition"].demonstration == "There is no Chromium on this machine. Install it."
    assert described["countdown"].demonstration


@pytest.mark.parametrize(
    ("spec", "module", "extra"),
    [("hf:somewhere", "datasets", "data"), ("reasoning_gym:leg_counting", "reasoning_gym.factory", "envs")],
)
def test_missing_extras(monkeypatch, spec, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"grouprl\[{extra}\]"):
        load_task(spec)
