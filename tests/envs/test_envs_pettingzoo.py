"""PettingZoo's environments as tasks, against the library itself."""

import random
import re
import sys
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from grouprl.core.errors import InputError, MissingExtra
from grouprl.envs import Environment, Judging
from grouprl.envs.check import check_environment
from grouprl.tasks import load_task

pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[agents]'")
from pettingzoo.classic import rps_v2, tictactoe_v3
from pettingzoo.utils.env import ParallelEnv

pytestmark = pytest.mark.filterwarnings("ignore:The old environment creation API")
TICTACTOE, RPS = "pettingzoo:classic.tictactoe_v3", "pettingzoo:classic.rps_v2"


def earned(steps):
    """Rewards by agent, the way an episode adds them up."""
    totals = {}
    for agent, step in steps:
        for name, reward in [(agent, step.reward), *step.rewards.items()]:
            totals[name] = totals.get(name, 0.0) + reward
    return totals


def played(environment, first, choose):
    seen, steps = first, []
    while not steps or not (steps[-1][1].terminated or steps[-1][1].truncated):
        step = environment.step(choose(seen))
        steps.append((seen.agent, step))
        seen = step.observation
    return steps


@pytest.mark.parametrize(
    "spec", [TICTACTOE, {"name": RPS, "config": {"max_cycles": 3}}, "pettingzoo:classic.connect_four_v3"]
)
def test_the_environments_are_sound(spec):
    task = load_task(spec)
    report = check_environment(task.environment, partial(task.example, "train"), episodes=24, agents=task.agents)
    assert report.problems == ()
    assert isinstance(task.environment(), Environment)
    assert isinstance(task.environment(), Judging)
    assert set(report.shown.first.text + "".join(report.shown.actions)) <= set(task.alphabet)


@pytest.mark.parametrize("index", range(6))
def test_a_turn_based_episode_is_the_librarys(index):
    task = load_task(TICTACTOE)
    example = task.example("train", index)
    environment = task.environment()
    seen, rng = environment.reset(example, 0), random.Random(index)
    raw = tictactoe_v3.env()
    raw.reset(seed=example.columns["seed"])
    totals, steps = dict.fromkeys(raw.possible_agents, 0.0), []
    for agent in raw.agent_iter():
        found, reward, terminated, truncated, _ = raw.last()
        totals[agent] += reward
        if terminated or truncated:
            raw.step(None)
            continue
        assert seen.agent == agent
        assert seen.text == " ".join(str(int(x)) for x in found["observation"].ravel()) + ">"
        assert seen.legal == tuple(str(i) for i in range(9) if found["action_mask"][i])
        action = rng.choice(seen.legal)
        raw.step(int(action))
        steps.append((agent, environment.step(action)))
        seen = steps[-1][1].observation
    assert (steps[-1][1].terminated, steps[-1][1].truncated) == (True, False)
    assert {agent: earned(steps).get(agent, 0.0) for agent in totals} == totals
    assert environment.scores() == {agent: {"correct": float(total > 0)} for agent, total in totals.items()}


def test_rewards_reach_the_action_that_earned_them():
    environment = (task := load_task(TICTACTOE)).environment()
    environment.reset(task.example("train", 0), 0)
    steps = [environment.step(action) for action in ("0", "3", "1", "4", "2")]
    assert [step.rewards for step in steps] == [{}, {}, {}, {}, {"player_1": 1.0, "player_2": -1.0}]
    assert environment.score() == {"correct": 1.0}


def test_a_parallel_environment_is_acted_in_turn():
    task = load_task({"name": RPS, "config": {"max_cycles": 3}})
    assert task.agents == ("player_0", "player_1")
    environment = task.environment()
    first = environment.reset(task.example("train", 0), 0)
    raw = rps_v2.parallel_env(max_cycles=3)
    raw.reset(seed=task.example("train", 0).columns["seed"])
    choices = iter("021021")
    steps = played(environment, first, lambda seen: next(choices))
    totals = dict.fromkeys(raw.possible_agents, 0.0)
    for pair in ("02", "10", "21"):
        _, rewards, _, truncations, _ = raw.step(dict(zip(raw.possible_agents, map(int, pair), strict=True)))
        totals = {agent: totals[agent] + rewards[agent] for agent in totals}
    assert all(truncations.values())
    assert [agent for agent, _ in steps] == ["player_0", "player_1"] * 3
    assert (steps[-1][1].terminated, steps[-1][1].truncated) == (False, True)  # the library's limit is no end
    assert {agent: earned(steps).get(agent, 0.0) for agent in totals} == totals
    texts = [step.observation.text for _, step in steps]
    assert texts[0] == "3>"  # player_1 does not see what player_0 chose in the same round
    assert texts[1:3] == ["2>", "0>"]  # each then sees the other's choice


class Shrinking(ParallelEnv):
    """Agents a, b, c are paid 1 per round; a leaves after the first round, b after the second."""

    metadata: ClassVar = {"name": "shrinking", "is_parallelizable": True, "render_modes": []}
    possible_agents: ClassVar = ["a", "b", "c"]
    render_mode = None

    def observation_space(self, agent):
        from gymnasium.spaces import Discrete

        return Discrete(10)

    action_space = observation_space

    def reset(self, seed=None, options=None):
        self.agents, self.round = ["a", "b", "c"], 0
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.round += 1
        there, gone = self.agents, self.agents[:1]
        over = {agent: agent in gone for agent in there}
        self.agents = there[1:]
        return (
            dict.fromkeys(there, self.round),
            dict.fromkeys(there, 1.0),
            over,
            dict.fromkeys(there, False),
            {agent: {} for agent in there},
        )


def parallel_env():
    return Shrinking()


def test_agents_that_are_out_are_passed_over(monkeypatch):
    monkeypatch.setitem(sys.modules, "shrinking_env", sys.modules[__name__])
    task = load_task("pettingzoo:shrinking_env")
    environment = task.environment()
    steps = played(environment, environment.reset(task.example("train", 0), 0), lambda seen: "1")
    assert [agent for agent, _ in steps] == list("abcbcc")
    assert earned(steps) == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert steps[-1][1].terminated


@pytest.mark.parametrize(("other", "own"), [("player_2", "player_1"), ("player_1", "player_2")])
def test_an_agent_can_play_at_random(other, own):
    """It is nobody's row, its moves are legal and its own luck's; who wins is the library's business."""
    task = load_task({"name": TICTACTOE, "random": [other]})
    assert task.agents == (own,)
    report = check_environment(task.environment, partial(task.example, "train"), episodes=24, agents=task.agents)
    assert report.problems == ()
    example, results, boards = task.example("train", 0), set(), set()
    for seed in range(40):
        environment = task.environment()
        first = environment.reset(example, seed)
        assert (first.text, first.agent) == (example.prompt, own)
        steps = played(environment, first, lambda seen: seen.legal[0])
        assert {agent for agent, _ in steps} == {own}
        (total,) = {own: 0.0, **earned(steps)}.values()
        assert environment.scores() == {own: {"correct": float(total > 0)}}
        results.add(total)
        boards.add(steps[0][1].observation.text)
    assert results == {-1.0, 0.0, 1.0} or results == {-1.0, 1.0}
    assert len(boards) > 3


def test_random_agents_are_the_environments():
    with pytest.raises(InputError, match="no agent 'player_3'"):
        load_task({"name": TICTACTOE, "random": ["player_3"]})
    with pytest.raises(InputError, match="The policy must play at least one"):
        load_task({"name": TICTACTOE, "random": ["player_1", "player_2"]})


def test_what_is_no_action_costs_a_turn():
    task = load_task({"name": TICTACTOE, "turns": 2, "invalid": -0.5, "instructions": "Play! "})
    environment = task.environment()
    assert environment.reset(task.example("train", 0), 0).text.startswith("Play! 0 0")
    wrong = environment.step("9")
    assert (wrong.valid, wrong.reward, wrong.observation.agent) == (False, -0.5, "player_1")
    assert wrong.observation.text.startswith("!0 0")
    last = environment.step("4")
    assert (last.truncated, last.observation.agent) == (True, "player_2")
    assert last.observation.text.startswith("Play! ")  # player_2's first observation
    with pytest.raises(InputError, match="no episode was under way"):
        environment.step("0")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pettingzoo:classic.nowhere_v0", "There is no environment 'classic.nowhere_v0'"),
        ("pettingzoo:json", "has no environment"),
        ({"name": RPS, "config": {"nonsense": 1}}, "cannot be made with"),
    ],
)
def test_errors_in_words(spec, message):
    with pytest.raises(InputError, match=message):
        load_task(spec)


def test_without_the_library(monkeypatch):
    with pytest.raises(MissingExtra, match="rlcard"):
        load_task("pettingzoo:classic.leduc_holdem_v4")
    monkeypatch.setitem(sys.modules, "pettingzoo.utils.conversions", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[agents\]"):
        load_task(TICTACTOE)


def test_a_game_of_ones_own_is_found_where_one_works(tmp_path, monkeypatch):
    """The game of docs/adapters.md, as it stands there."""
    text = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text(encoding="utf-8")
    (game,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class Meet" in block]
    (tmp_path / "meet.py").write_text(game)
    monkeypatch.chdir(tmp_path)
    task = load_task("pettingzoo:meet")
    assert task.agents == ("ann", "bob")
    sys.modules.pop("meet", None)
