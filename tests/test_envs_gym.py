"""Gymnasium environments as tasks, against the library itself."""

import pickle
import random
import sys

import pytest

from grouprl.envs import Demonstrator, Environment
from grouprl.envs.check import check_environment
from grouprl.envs.gym import GymEnvironment, countable, signs, spell
from grouprl.errors import InputError, MissingExtra
from grouprl.tasks import Question, load_task

gymnasium = pytest.importorskip("gymnasium")
from gymnasium import spaces  # noqa: E402
from gymnasium.utils.seeding import np_random  # noqa: E402

NAMES = ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CartPole-v1"]


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_is_the_librarys(name):
    """Beginning by the question's seed, chance by the episode's, rewards and ends as the library gives them."""
    task = load_task(f"gym:{name}")
    for index in range(8):
        question = task.question("train", index)
        environment, rng = task.environment(), random.Random(index)
        seen = environment.reset(question, index)
        raw = gymnasium.make(name)
        found, _ = raw.reset(seed=question.columns["seed"])
        raw.unwrapped.np_random = np_random(index)[0]
        total, turns, over = 0.0, 0, False
        assert seen.text == question.prompt == spell(raw.observation_space, found, 2) + ">"
        while not over:
            action = rng.choice(seen.legal)
            step = environment.step(action)
            found, reward, terminated, truncated, _ = raw.step(task._words.index(action))
            total, turns, seen = total + reward, turns + 1, step.observation
            assert (step.reward, step.terminated) == (reward, terminated)
            assert step.truncated == ((truncated or turns == task.max_turns) and not terminated)
            assert seen.text == spell(raw.observation_space, found, 2) + ">"
            over = step.terminated or step.truncated
        threshold = raw.spec.reward_threshold
        assert environment.score() == {"correct": float(total >= threshold if threshold else total > 0)}
        environment.close()
        raw.close()


@pytest.mark.parametrize("name", NAMES)
def test_the_environments_are_sound(name):
    task = load_task({"name": f"gym:{name}", "turns": 12})
    report = check_environment(task.environment, lambda number: task.question("train", number), episodes=32)
    assert report.problems == ()
    assert {finding.name for finding in report.advice} <= {"equal returns"}
    assert set(report.shown.first.text + "".join(report.shown.actions)) <= set(task.alphabet)
    assert isinstance(task.environment(), Environment)
    assert isinstance(task.environment(), Demonstrator)


def test_frozen_lake_by_hand():
    task = load_task({"name": "gym:FrozenLake-v1", "config": {"is_slippery": False}})
    question = task.question("train", 0)
    environment = task.environment()
    first = environment.reset(question, 0)
    assert (first.text, first.state, first.legal) == ("0>", "0", ("l", "d", "r", "u"))
    steps = [environment.step(action) for action in ("d", "x", "d", "r", "d", "r", "r")]
    assert [step.observation.text for step in steps] == ["4>", "!4>", "8>", "9>", "13>", "14>", "15>"]
    assert [step.observation.state for step in steps] == ["4", "4", "8", "9", "13", "14", "15"]
    assert [step.reward for step in steps] == [0, -1, 0, 0, 0, 0, 1]
    assert [step.valid for step in steps] == [True, False] + [True] * 5
    assert steps[-1].terminated
    assert environment.score() == {"correct": 0.0}  # 0 in all, and the threshold is 0.7
    assert task.reward("d\nd\nr\nd\nr\nr", **question.columns) == 1
    assert pickle.loads(pickle.dumps(task.reward))("d\nd\nr\nd\nr\nr", **question.columns) == 1


def test_the_answers_of_a_group_begin_alike_and_differ_in_luck():
    task = load_task("gym:FrozenLake-v1")
    question = task.question("train", 3)
    seconds = set()
    for seed in range(30):
        environment = task.environment()
        assert environment.reset(question, seed).text == question.prompt
        seconds.add(environment.step("r").observation.text)
    assert seconds == {"0>", "1>", "4>"}  # slippery: right, up (a wall) or down
    taxi = load_task("gym:Taxi-v4")
    assert len({taxi.question("train", index).prompt for index in range(40)}) > 20


def test_masked_actions_are_not_legal():
    task = load_task("gym:Taxi-v4")
    environment = task.environment()
    legal = environment.reset(task.question("train", 0), 0).legal
    assert set(legal) < set("snewpd")
    masked = next(word for word in "snewpd" if word not in legal)
    assert not environment.step(masked).valid


def test_turns_are_limited_whatever_is_said():
    task = load_task({"name": "gym:CartPole-v1", "turns": 3, "invalid": -0.5, "success": -1.5})
    environment = task.environment()
    assert environment.reset(task.question("train", 0), 0).state == ""
    steps = [environment.step("nothing") for _ in range(3)]
    assert [(step.truncated, step.terminated, step.reward) for step in steps] == [
        (False, False, -0.5),
        (False, False, -0.5),
        (True, False, -0.5),
    ]
    assert environment.score() == {"correct": 1.0}
    assert steps[-1].observation.legal == ()
    with pytest.raises(InputError, match="no episode was under way"):
        environment.step("l")
    with pytest.raises(InputError, match="twice"):
        environment.reset(task.question("train", 0), 0)
    environment.close()
    environment.close()


def test_facts_of_the_task():
    task = load_task({"name": "gym:CartPole-v1", "instructions": "Balance! "})
    assert (task.name, task.max_turns, task.max_new_tokens) == ("gym:CartPole-v1", 100, 3)
    assert task.question("train", 0).prompt.startswith("Balance! ")
    assert set("Balance! 0123456789.-lr>") <= set(task.alphabet)
    assert load_task("gym:Taxi-v4").max_turns == 100
    assert load_task("gym:Blackjack-v1").description == "Gymnasium's Blackjack-v1, actions s, h."
    renamed = load_task({"name": "gym:Blackjack-v1", "actions": ["stick", "hit"]})
    assert (renamed.max_new_tokens, renamed.demonstration(renamed.question("train", 0), 0).split("\n")[0]) in {
        (7, "stick"),
        (7, "hit"),
    }
    assert load_task("gym:gymnasium:CartPole-v1").description.endswith("actions l, r.")


def test_spaces_as_text():
    space = spaces.Dict(
        {
            "at": spaces.Tuple((spaces.Discrete(5, start=-2), spaces.MultiDiscrete([3, 4]))),
            "speed": spaces.Box(-10, 10, (2,)),
            "word": spaces.Text(5, charset="abc"),
        }
    )
    value = {"at": (-1, spaces.MultiDiscrete([3, 4]).sample() * 0), "speed": space["speed"].sample() * 0 - 0.001}
    text = spell(space, {**value, "word": "cab"}, 2)
    assert text == "at -1 0 0 speed 0.00 0.00 word cab"
    assert set(text) <= set(signs(space))
    assert not countable(space)
    assert countable(space["at"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gym:FrozenLak-v1", "no environment 'FrozenLak-v1'.*Did you mean.*'FrozenLake-v1'"),
        ("gym:nowhere:Env-v0", "no environment 'nowhere:Env-v0'"),
        ("gym:Pendulum-v1", r"Box\(-2.0, 2.0.*must be Discrete"),
        ("gym:Taxi-v3", "refuses 'Taxi-v3'.*Taxi-v4"),
        ("gym", "written gym:<id>"),
        ({"name": "gym:Blackjack-v1", "actions": ["s"]}, "it has 2 of them"),
        ({"name": "gym:Blackjack-v1", "actions": ["s", "h "]}, "no spaces around"),
        ({"name": "gym:FrozenLake-v1", "config": {"slippery": True}}, "refuses 'FrozenLake-v1' with"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_errors_in_words(spec, message):
    with pytest.raises(InputError, match=message):
        load_task(spec)


def test_images_are_refused():
    with pytest.raises(InputError, match=r"cannot be written out.*64 numbers.*wrapper"):
        signs(spaces.Box(0, 255, (84, 84)))
    with pytest.raises(InputError, match="no column 'seed'"):
        GymEnvironment(lambda: None, "lr", max_turns=3).reset(Question("q", ""), 0)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[envs\]"):
        load_task("gym:FrozenLake-v1")
