"""Gymnasium environments as tasks, against the library itself."""

import pickle
import random
import sys

import numpy as np
import pytest

from grouprl.core.errors import InputError, MissingExtra
from grouprl.envs import Demonstrator, Environment
from grouprl.envs.adapters.gym import GymEnvironment
from grouprl.envs.check import check_environment
from grouprl.envs.spaces import action_numbers, countable, read_action, signs, spell, spell_action
from grouprl.tasks import Example, load_task

gymnasium = pytest.importorskip("gymnasium")
from gymnasium import spaces  # noqa: E402
from gymnasium.utils.seeding import np_random  # noqa: E402
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv  # noqa: E402

from grouprl.envs.adapters.one_of_vector import OneOfVector  # noqa: E402

NAMES = ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CartPole-v1"]


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_is_the_librarys(name):
    """Beginning by the prompt's seed, chance by the episode's, rewards and ends as the library gives them."""
    task = load_task(f"gym:{name}")
    for index in range(8):
        example = task.example("train", index)
        environment, rng = task.environment(), random.Random(index)
        seen = environment.reset(example, index)
        raw = gymnasium.make(name)
        found, _ = raw.reset(seed=example.columns["seed"])
        raw.unwrapped.np_random = np_random(index)[0]
        total, turns, over = 0.0, 0, False
        assert seen.text == example.prompt == spell(raw.observation_space, found, 2) + ">"
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
    report = check_environment(task.environment, lambda number: task.example("train", number), episodes=32)
    assert report.problems == ()
    assert {finding.name for finding in report.advice} <= {"equal returns"}
    assert set(report.shown.first.text + "".join(report.shown.actions)) <= set(task.alphabet)
    assert isinstance(task.environment(), Environment)
    assert isinstance(task.environment(), Demonstrator)


def test_frozen_lake_by_hand():
    task = load_task({"name": "gym:FrozenLake-v1", "config": {"is_slippery": False}})
    example = task.example("train", 0)
    environment = task.environment()
    first = environment.reset(example, 0)
    assert (first.text, first.state, first.legal) == ("0>", "0", ("l", "d", "r", "u"))
    steps = [environment.step(action) for action in ("d", "x", "d", "r", "d", "r", "r")]
    assert [step.observation.text for step in steps] == ["4>", "!4>", "8>", "9>", "13>", "14>", "15>"]
    assert [step.observation.state for step in steps] == ["4", "4", "8", "9", "13", "14", "15"]
    assert [step.reward for step in steps] == [0, -1, 0, 0, 0, 0, 1]
    assert [step.valid for step in steps] == [True, False] + [True] * 5
    assert steps[-1].terminated
    assert environment.score() == {"correct": 0.0}  # 0 in all, and the threshold is 0.7
    assert task.reward("d\nd\nr\nd\nr\nr", **example.columns) == 1
    assert pickle.loads(pickle.dumps(task.reward))("d\nd\nr\nd\nr\nr", **example.columns) == 1


def test_the_episodes_of_a_group_begin_alike_and_differ_in_luck():
    task = load_task("gym:FrozenLake-v1")
    example = task.example("train", 3)
    seconds = set()
    for seed in range(30):
        environment = task.environment()
        assert environment.reset(example, seed).text == example.prompt
        seconds.add(environment.step("r").observation.text)
    assert seconds == {"0>", "1>", "4>"}  # slippery: right, up (a wall) or down
    taxi = load_task("gym:Taxi-v4")
    assert len({taxi.example("train", index).prompt for index in range(40)}) > 20


def test_masked_actions_are_not_legal():
    task = load_task("gym:Taxi-v4")
    environment = task.environment()
    legal = environment.reset(task.example("train", 0), 0).legal
    assert set(legal) < set("snewpd")
    masked = next(word for word in "snewpd" if word not in legal)
    assert not environment.step(masked).valid


def test_turns_are_limited_whatever_is_said():
    task = load_task({"name": "gym:CartPole-v1", "turns": 3, "invalid": -0.5, "success": -1.5})
    environment = task.environment()
    assert environment.reset(task.example("train", 0), 0).state == ""
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
        environment.reset(task.example("train", 0), 0)
    environment.close()
    environment.close()


def test_facts_of_the_task():
    task = load_task({"name": "gym:CartPole-v1", "instructions": "Balance! "})
    assert (task.name, task.max_turns, task.max_new_tokens) == ("gym:CartPole-v1", 100, 3)
    assert task.example("train", 0).prompt.startswith("Balance! ")
    assert set("Balance! 0123456789.-lr>") <= set(task.alphabet)
    assert load_task("gym:Taxi-v4").max_turns == 100
    assert load_task("gym:Blackjack-v1").description == "Gymnasium's Blackjack-v1, actions s, h."
    renamed = load_task({"name": "gym:Blackjack-v1", "actions": ["stick", "hit"]})
    assert (renamed.max_new_tokens, renamed.demonstration(renamed.example("train", 0), 0).split("\n")[0]) in {
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
        ("gym:nowhere:Env-v0", "'nowhere:Env-v0' needs the module 'nowhere'.*pip install nowhere"),
        ("gym:Needy-v0", "'Needy-v0' needs the module 'absent_engine'.*pip install absent_engine"),
        ({"name": "gym:Pendulum-v1", "actions": ["a"]}, r"Box\(-2.0, 2.0.*Only Discrete ones have words"),
        ("gym:Taxi-v3", "refuses 'Taxi-v3'.*Taxi-v4"),
        ("gym", "written gym:<id>"),
        ({"name": "gym:Blackjack-v1", "actions": ["s"]}, "It has 2 of them"),
        ({"name": "gym:Blackjack-v1", "actions": ["s", "h "]}, "no spaces around"),
        ({"name": "gym:FrozenLake-v1", "config": {"slippery": True}}, "refuses 'FrozenLake-v1' with"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_errors_in_words(spec, message, monkeypatch):
    needy = gymnasium.envs.registration.EnvSpec(id="Needy-v0", entry_point="absent_engine.games:Env")
    monkeypatch.setitem(gymnasium.registry, needy.id, needy)
    with pytest.raises(InputError, match=message):
        load_task(spec)


@pytest.mark.parametrize("name", ["gym:Pendulum-v1", "gym:MountainCarContinuous-v0"])
def test_numbers_as_actions(name):
    task = load_task({"name": name, "turns": 12})
    report = check_environment(task.environment, lambda number: task.example("train", number), episodes=32)
    assert report.problems == ()
    example = task.example("train", 0)
    environment, raw = task.environment(), gymnasium.make(task.id)
    environment.reset(example, 5)
    raw.reset(seed=example.columns["seed"])
    step, (found, reward, *_) = environment.step("0.5"), raw.step(np.array([0.5], dtype=np.float32))
    assert step.observation.text == spell(raw.observation_space, found, 2) + ">"
    assert (step.valid, step.reward) == (True, float(reward))
    for nonsense in ("", "1 1", "x", "nan", "99"):
        assert not environment.step(nonsense).valid
    shown = environment.demonstrate(random.Random(0))
    assert environment.step(shown).valid
    assert set(shown) <= set(task.alphabet)


def test_actions_are_read_as_they_are_written():
    space = spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiDiscrete([2, 5]), spaces.Box(-2.0, 2.0, (2,))))
    assert action_numbers(space) == 5
    one, two, three = read_action(space, ["-1", "1", "4", "0.5", "-2"])
    assert (one, two.tolist(), three.tolist()) == (-1, [1, 4], [0.5, -2.0])
    assert read_action(space, ["2", "1", "4", "0.5", "-2"]) is None  # beyond the Discrete
    assert read_action(space, ["1", "2", "4", "0.5", "-2"]) is None  # beyond the MultiDiscrete
    assert read_action(space, ["1", "1", "4", "0.5", "-2.5"]) is None  # beyond the Box
    assert read_action(space, ["1", "1", "4.5", "0.5", "-2"]) is None  # no whole number
    assert read_action(space, ["1", "1", "4", "0.5"]) is None
    space.seed(0)
    for _ in range(20):
        assert read_action(space, spell_action(space, space.sample(), 2).split()) is not None
    with pytest.raises(InputError, match=r"cannot be written.*TransformAction"):
        action_numbers(spaces.Box(0, 1, (17,)))
    with pytest.raises(InputError, match="cannot be written"):
        action_numbers(spaces.Text(3))


def test_an_end_and_a_limit_are_kept_apart():
    cart = load_task({"name": "gym:CartPole-v1"})
    environment = cart.environment()
    environment.reset(cart.example("train", 0), 0)
    steps = [environment.step("r")]
    while not (steps[-1].terminated or steps[-1].truncated):
        steps.append(environment.step("r"))
    assert (steps[-1].terminated, steps[-1].truncated) == (True, False)  # it fell
    config = {"max_episode_steps": 4}
    limited = load_task({"name": "gym:CartPole-v1", "config": config})
    environment = limited.environment()
    environment.reset(limited.example("train", 0), 0)
    ends = [(step.terminated, step.truncated) for step in (environment.step(a) for a in "lrlr")]
    assert limited.max_turns == 4
    assert ends == [(False, False)] * 3 + [(False, True)]  # the library's own limit


def test_views_of_minigrid_in_words():
    pytest.importorskip("minigrid", reason="minigrid is not installed: pip install 'grouprl[agents]'")
    task = load_task("gym:minigrid:MiniGrid-DoorKey-5x5-v0")
    assert (task.max_turns, task.max_new_tokens, task.alphabet) == (100, 3, "")
    report = check_environment(task.environment, lambda number: task.example("train", number), episodes=32)
    assert report.problems == ()
    empty = load_task({"name": "gym:minigrid:MiniGrid-Empty-5x5-v0", "success": 0.5})
    environment = empty.environment()
    seen = environment.reset(empty.example("train", 0), 0)
    goal = "get to the green goal square"
    assert seen.text == f"{goal}; facing east; free 2 ahead 0 left 2 right; goal 2 ahead 2 right>"
    assert seen.legal == tuple("lrfpdte")
    texts = [environment.step(action).observation.text for action in "ffr"]
    assert texts[0] == f"{goal}; facing east; free 1 ahead 0 left 2 right; goal 1 ahead 2 right>"
    assert texts[2] == f"{goal}; facing south; free 2 ahead 0 left 2 right; goal 2 ahead>"
    environment.step("f")
    last = environment.step("f")
    assert last.terminated
    assert last.reward == pytest.approx(1 - 0.9 * 5 / 100)  # minigrid's own reward for 5 steps of 100
    assert environment.score() == {"correct": 1.0}


def test_what_is_carried_and_locked_is_said():
    pytest.importorskip("minigrid", reason="minigrid is not installed: pip install 'grouprl[agents]'")
    task = load_task("gym:minigrid:MiniGrid-DoorKey-5x5-v0")
    texts, states, rng = "", set(), random.Random(0)
    environment = task.environment()
    environment.reset(task.example("train", 1), 0)
    for _ in range(100):
        step = environment.step(rng.choice("lrfpt"))
        texts += step.observation.text
        states.add(step.observation.state)
        if step.terminated or step.truncated:
            break
    assert "locked yellow door" in texts
    assert "yellow key" in texts
    assert len(states) > 5


def test_images_are_refused():
    with pytest.raises(InputError, match=r"cannot be written out.*100 numbers.*wrapper"):
        signs(spaces.Box(0, 255, (84, 84)))
    with pytest.raises(InputError, match="no column 'seed'"):
        GymEnvironment(lambda: None, "lr", max_turns=3).reset(Example("q", ""), 0)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[envs\]"):
        load_task("gym:FrozenLake-v1")


@pytest.mark.parametrize("name", ["gym:FrozenLake-v1", "gym:Pendulum-v1"])
@pytest.mark.parametrize("word", ["9" * 400, "-" + "9" * 400, "9" * 5000, "1e400", "nan", str(2**63)])
def test_a_number_that_no_array_holds_is_no_action(name, word):
    task = load_task({"name": name, "actions": None})
    environment = task.environment()
    environment.reset(task.example("train", 0), 0)
    assert not environment.step(word).valid
    environment.close()


@pytest.mark.parametrize("kind", ["Discrete", "MultiDiscrete", "Box"])
def test_whole_numbers_beyond_arrays_are_no_actions_of_any_space(kind):
    from gymnasium import spaces

    space = {
        "Discrete": spaces.Discrete(3),
        "MultiDiscrete": spaces.MultiDiscrete([3, 3]),
        "Box": spaces.Box(0, 5, (1,), "int32"),
    }[kind]
    count = 2 if kind == "MultiDiscrete" else 1
    for word in ("9" * 400, str(2**63), "-" + "9" * 30):
        assert read_action(space, [word] * count) is None
    assert read_action(space, ["1"] * count) is not None


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_a_vector_of_one_place_has_the_chance_that_it_is_given_here_or_in_another_process(kind):
    raw = gymnasium.make("FrozenLake-v1")
    place = OneOfVector(kind([lambda: gymnasium.make("FrozenLake-v1")]))
    for chance in (0, 2):  # neither ends the episode within three steps
        for env in (raw, place):
            env.reset(seed=3)
            env.unwrapped.np_random = np_random(chance)[0]
        assert place.np_random.bit_generator.state == raw.unwrapped.np_random.bit_generator.state
        expected = [raw.step(1)[0] for _ in range(3)]
        assert [int(place.step(1)[0]) for _ in range(3)] == expected
    place.close()
    raw.close()
