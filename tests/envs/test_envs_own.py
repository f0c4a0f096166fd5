"""The task that leads into a user's own environment."""

import random
import sys

import pytest

from grouprl.core.errors import InputError
from grouprl.envs import Demonstrator, Environment
from grouprl.tasks import load_task
from grouprl.tasks.task import split_of

DICE = '''
import random
from grouprl.envs import Observation, Step

class Dice:
    """Say a number above the die."""

    def __init__(self, sides=6):
        self.sides = sides

    def reset(self, example, seed):
        self.rng = random.Random(seed)
        self.die = self.rng.randint(1, self.sides)
        self.column = example.columns["seed"]
        return Observation(f"d{self.die}>", state=str(self.die))

    def step(self, action):
        over = action.isdigit() and int(action) > self.die
        return Step(Observation(str(self.rng.random())), float(over), terminated=over, valid=action.isdigit())

    def score(self):
        return {"correct": 1.0, "bonus": 0.5}

    def close(self):
        pass

class Faced(Dice):
    def __init__(self, sides: int = 6, weight: float = 1.0, names: tuple[str, ...] = ()):
        super().__init__(sides)

class Shown(Dice):
    def demonstrate(self, rng):
        return str(self.die + rng.randint(0, 1))

class Half:
    def reset(self, example, seed):
        pass

class Broken(Dice):
    def __init__(self):
        raise ValueError("no licence found")

class Loud(Dice):
    def close(self):
        raise RuntimeError("the door sticks")

number = 3
'''


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    (tmp_path / "dicegame.py").write_text(DICE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("dicegame", None)


@pytest.mark.parametrize("path", ["dicegame:Shown", "dicegame.py:Shown"])
def test_an_environment_becomes_a_task(path):
    task = load_task({"name": f"env:{path}", "turns": 5, "tokens": 3, "characters": "d0123456789>."}, seed=4)
    assert (task.name, task.max_turns, task.max_new_tokens) == (f"env:{path}", 5, 3)
    assert (task.alphabet, task.size("train")) == ("d0123456789>.", None)
    example = task.example("train", 2)
    assert example == task.example("train", 2)
    assert example.id == f"env:{path}/train/2"
    assert example.prompt in {f"d{die}>" for die in range(1, 7)}
    demonstration = task.demonstration(example, 0)
    assert demonstration == task.demonstration(example, 0)
    assert task.reward(demonstration, **example.columns) in (0.5, 1.5)
    assert task.reward("9", **example.columns) == 1.5
    assert task.reward("0\n0", **example.columns) == 0.5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Broken", "cannot be made: ValueError: no licence found at dicegame.py:"),
        ("Loud", "cannot be closed: RuntimeError: the door sticks at dicegame.py:"),
    ],
)
def test_what_cannot_be_made_or_closed_says_why(name, words):
    with pytest.raises(InputError, match=words):
        load_task(f"env:dicegame.py:{name}")


@pytest.mark.parametrize("postponed", ["", "from __future__ import annotations\n"])
def test_a_whole_number_is_one_where_the_signature_says_so(tmp_path, postponed):
    (tmp_path / "faces.py").write_text(postponed + DICE)
    faced = {"name": "env:faces.py:Faced"}
    assert load_task({**faced, "config": {"sides": 4, "weight": 2, "names": ["one"]}})
    for wrong in (2.5, 4.0, "4", True, None):
        with pytest.raises(InputError, match="Its signature says that sides is a whole number"):
            load_task({**faced, "config": {"sides": wrong}})
    with pytest.raises(InputError, match="sides is a whole number"):
        load_task({**faced, "grid": {"sides": [4, 4.5]}})


def test_the_constructor_takes_the_config():
    task = load_task({"name": "env:dicegame:Dice", "config": {"sides": 1}})
    assert {task.example("train", index).prompt for index in range(20)} == {"d1>"}
    assert task.description == "Say a number above the die."
    assert task.demonstration(task.example("train", 0), 0) is None


def test_splits_have_different_seeds():
    task, other = load_task("env:dicegame:Dice"), load_task("env:dicegame:Dice", seed=1)
    train = {task.example("train", index).columns["seed"] for index in range(200)}
    held_out = {other.example("eval", index).columns["seed"] for index in range(50)}
    assert len(train) == 200
    assert {split_of(str(seed)) for seed in held_out} == {"eval"}
    assert {split_of(str(seed)) for seed in train} == {"train"}


def test_the_episodes_of_a_prompt_begin_alike_unless_luck_is_their_own():
    shared, own = load_task("env:dicegame:Shown"), load_task({"name": "env:dicegame:Shown", "own_luck": True})
    example = shared.example("train", 0)
    for task, starts in ((shared, 1), (own, 6)):
        environments = [task.environment() for _ in range(60)]
        assert all(isinstance(each, Environment) and isinstance(each, Demonstrator) for each in environments)
        assert len({each.reset(example, seed).text for seed, each in enumerate(environments)}) == starts
    assert not isinstance(load_task("env:dicegame:Dice").environment(), Demonstrator)
    shown = shared.environment()
    first = shown.reset(example, 9)
    assert int(shown.demonstrate(random.Random(0))) - int(first.state) in (0, 1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("env:dicegame:Dise", "no 'Dise' in dicegame.*Did you mean 'Dice'"),
        ("env:dicegame:Half", "lacks step, score, close"),
        ("env:dicegame:number", "is not an environment"),
        ("env", "written env:<path>"),
        ({"name": "env:dicegame:Dice", "config": {"size": 3}}, "cannot be made with.*unexpected keyword"),
        ({"name": "env:dicegame:Dice", "turn": 3}, "Did you mean 'turns'"),
        ({"name": "env:dicegame:Dice", "turns": 0}, "greater than or equal to 1"),
    ],
)
def test_errors_in_words(spec, message):
    with pytest.raises(InputError, match=message):
        load_task(spec)
