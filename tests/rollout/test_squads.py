"""Several agents over arrays: a row for each, agents that die, come late and see each other's choices."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl.config.paths import absolute_paths
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, MissingExtra
from grouprl.envs import ArrayObservation, Step
from grouprl.envs.builtin.squads import CLIMBING, ColorGrid, Crossing, MatrixGame, MatrixWorld
from grouprl.envs.joint_world import InTurns, ToldWorld
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.policy import ArrayInputs, Build, Mlp
from grouprl.protocols import Box, DictSpace, Discrete, Spaces
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import to_batch
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.engines import local_engine
from grouprl.rollout.episode import Start
from grouprl.rollout.episodes import Episodes
from grouprl.rollout.kinds.row_kinds import open_rows
from grouprl.rollout.vectors.array_episodes import play_arrays
from grouprl.tasks import Example, load_task
from grouprl.testing import check_environment, check_inputs, check_policy

WORLDS = Path(__file__).parent.parent / "support" / "parallel_ferry.py"


def starts(count: int) -> list[Start]:
    return [Start(Example(f"q{i}", "", {"seed": i}), i, action_seed=1000 * i) for i in range(count)]


def played(make: Any, count: int = 4, turns: int = 100, which: slice = slice(None)) -> Episodes:
    probe = make()
    policy = Mlp(Build(probe.spaces, values=True), hidden=(8,))
    engine, agents = local_engine(policy), probe.agents
    return play_arrays(engine, make, starts(count)[which], spaces=probe.spaces, max_turns=turns, agents=agents)


def test_each_agent_has_a_row_and_both_earn_what_their_pair_pays() -> None:
    policy = Mlp(Build(MatrixGame().spaces, values=True), hidden=(8,))
    episodes = play_arrays(
        local_engine(policy), MatrixGame, starts(9), spaces=MatrixGame().spaces, max_turns=2, agents=MatrixGame.agents
    )
    assert episodes.agent_b.tolist() == [0, 1] * 9
    assert episodes.episode_b.tolist() == [e for e in range(9) for _ in range(2)]
    inputs = episodes.rollout.inputs
    assert isinstance(inputs, ArrayInputs)
    chosen = inputs.action_bt[:, 0].tolist()
    assert len(set(zip(chosen[::2], chosen[1::2], strict=True))) > 2  # agents of one episode have seeds of their own
    paid = [CLIMBING[row][column] for row, column in zip(chosen[::2], chosen[1::2], strict=True)]
    assert episodes.turn_reward_bs[:, 0].tolist() == [x for x in paid for _ in range(2)]
    assert not episodes.rollout.truncated_b.any()
    assert torch.allclose(policy.logp(inputs), episodes.rollout.logp_bt, atol=1e-6)
    assert inputs.observation_bt["agent"][:, 0].tolist() == [0, 1] * 9
    assert "earlier" not in inputs.observation_bt
    check_inputs(inputs)
    check_policy(policy, inputs, values=True)


def test_parents_are_seen_and_the_joint_policy_is_a_distribution() -> None:
    def make() -> MatrixGame:
        return MatrixGame(parents="all")

    inputs = played(make).rollout.inputs
    assert isinstance(inputs, ArrayInputs)
    earlier = inputs.observation_bt["earlier"][:, 0]
    assert torch.equal(earlier[::2], torch.zeros(4, 2, 3))  # the first agent has no parents
    assert torch.equal(earlier[1::2, 0].argmax(-1), inputs.action_bt[::2, 0])
    assert torch.equal(earlier[1::2].sum((1, 2)), torch.ones(4))

    policy, total = Mlp(Build(make().spaces, dtype=torch.float64), hidden=(8,)), 0.0
    torch.nn.init.normal_(policy.module["mean"][-1].weight, generator=torch.Generator().manual_seed(1))
    for row, column in product(range(3), repeat=2):
        game = make()
        first = game.reset(Example("q", "", {"seed": 0}), 0)
        second = game.step(row).observation
        given = ArrayInputs.of(
            [{k: np.asarray(v)[None] for k, v in seen.values.items()} for seen in (first, second)],
            [np.array([row]), np.array([column])],
        )
        total += float(policy.logp(given).sum().exp())
    assert total == pytest.approx(1.0, abs=1e-12)


def test_who_arrives_leaves_and_the_late_one_is_cut_off() -> None:
    world, moves = Crossing(size=3, rounds=4), {"first": [1, 1, 2, 2], "second": [0, 0, 0, 0], "late": [0, 0]}
    seen = world.reset(Example("q", "", {"seed": 0}), 0)
    acted, rewards = [], dict.fromkeys(world.agents, 0.0)
    step = Step(seen)  # type: ignore[arg-type]
    used = dict.fromkeys(world.agents, 0)
    while not (step.terminated or step.truncated):
        agent = step.observation.agent
        acted.append(agent)
        step = world.step(moves[agent][used[agent]])
        used[agent] += 1
        for name, reward in step.rewards.items():
            rewards[name] += reward
    assert acted == ["first", "second"] * 2 + ["first", "second", "late"] * 2
    # first: a step to the right, into the second agent, a step down, into the late one
    assert rewards == pytest.approx({"first": -0.05 - 0.15 - 0.05 - 0.15, "second": -0.2, "late": -0.1})
    assert set(step.info["finals"]) == {"first", "second", "late"}
    assert world.score() == {"correct": 0.0}
    arriving = Crossing(size=3, rounds=5)
    arriving.reset(Example("q", "", {"seed": 0}), 0)
    rounds = [{"first": 2, "second": 0}, {"first": 2, "second": 0}, {"first": 1, "second": 0, "late": 4}]
    for number, actions in enumerate(rounds):
        for action in actions.values():
            step = arriving.step(action)
        if number == 1:
            assert step.observation.agent == "first"
    # the late one stands in the way until it moves, and moves after the first
    assert step.rewards["first"] == pytest.approx(-0.15)
    for action in (1, 0, 0):
        step = arriving.step(action)
    for action in (1, 0, 0):
        step = arriving.step(action)
    assert step.rewards["first"] == pytest.approx(0.95)
    assert step.truncated
    assert set(step.info["finals"]) == {"second", "late"}
    assert arriving.score() == {"correct": 0.0}, "not all have arrived"


def squad(**options: Any) -> InTurns:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[teams]'")
    return load_task({"name": "squad:parallel_ferry", **options}).environment()


def test_rows_of_the_dead_end_and_those_of_a_limit_go_on_with_their_last_observation() -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[teams]'")
    task = load_task("squad:parallel_ferry")
    policy = Mlp(Build(task.spaces, values=True), hidden=(8,))
    episodes = play_arrays(
        local_engine(policy),
        task.environment,
        starts(2),
        spaces=task.spaces,
        max_turns=task.max_turns,
        agents=task.agents,
    )
    assert episodes.agent_b.tolist() == [0, 1, 2] * 2
    inputs = episodes.rollout.inputs
    assert isinstance(inputs, ArrayInputs)
    assert inputs.length_b.tolist() == [1, 3, 2] * 2
    assert inputs.observation_bt["own"][:3, :, 0].tolist() == [[0, 0, 0], [0, 1, 2], [1, 2, 0]]
    assert episodes.rollout.truncated_b.tolist() == [False, True, True] * 2
    assert inputs.final_b["own"][:, 0].tolist()[1:3] == [3, 3]
    told = inputs.action_bt + 5  # the space counts from 5, and an action is its own reward
    assert episodes.turn_reward_bs.tolist() == (told * inputs.present_bt()).tolist()
    assert torch.allclose(policy.logp(inputs), episodes.rollout.logp_bt, atol=1e-6)


def shown_to(config: dict[str, Any], moves: list[int]) -> dict[str, list[tuple[Any, Any]]]:
    """What each agent sees and may do, turn by turn, its last observation included."""
    world, found = squad(config=config), {}  # type: InTurns, dict[str, list[tuple[Any, Any]]]
    shown = world.reset(Example("q", "", {"seed": 0}), 0)
    for move in moves:
        found.setdefault(shown.agent, []).append((shown.values["own"].tolist(), shown.legal))
        step = world.step(move)
        shown = step.observation
    for agent, last in step.info.get("finals", {}).items():
        given = last if isinstance(last, ArrayObservation) else ArrayObservation(last)
        found[agent].append((given.values["own"].tolist(), given.legal))  # type: ignore[index]
    return found


def test_agents_with_smaller_spaces_see_zeros_and_have_fewer_legal_actions() -> None:
    task = load_task({"name": "squad:parallel_ferry", "config": {"larger": True}})
    assert isinstance(task.spaces.observation, DictSpace)
    assert task.spaces.observation.spaces["own"] == Box((2,), (0.0, 0.0), (10.0, 10.0))
    assert task.spaces.action == Discrete(4)
    assert "2 numbers" in task.description
    found, three = shown_to({"larger": True}, [0, 2, 1, 3, 1, 3]), [True, True, True, False]
    assert [seen for seen, _ in found["long"]] == [[0, 0], [1, 0], [2, 0], [3, 0]]
    assert [legal.tolist() for _, legal in found["long"]] == [three] * 4
    assert found["late"] == [([1, 1], None), ([2, 2], None), ([3, 3], None)]
    barred = shown_to({"barred": True}, [0, 2, 1, 3, 1, 3])
    assert barred["long"][1][1].tolist() == [False, True, True, False]
    assert list(barred["late"][0][1]) == [1, 0, 1, 1]


@pytest.mark.parametrize("method", ["ippo", "gmah"])
def test_a_team_of_unlike_agents_trains_and_nobody_does_what_it_cannot(method: str, tmp_path: Path) -> None:
    together = method == "gmah"
    grouprl.train(
        {
            "task": {"name": f"squad:{WORLDS}:Pair", "rounds": 4, "together": together},
            "model": {"name": "team_values" if together else "mlp", "settings": {"hidden": [8]}},
            "method": method,
            "steps": 2,
            "batch": {"prompts": 4, "group_size": 1},
            "eval": {"every": 0, "final_prompts": 2},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    run = grouprl.load_run(str(tmp_path / "run"))
    assert run.metrics().dropna(subset=["environment_errors"])["environment_errors"].tolist() == [0, 0]


def test_what_is_not_of_an_agents_own_size_is_told() -> None:
    for wrong, said in (("wide", r"'long' sees an array of the shape \(2,\)"), ("mask", r"mask of the shape \(4,\)")):
        world = squad(config={"larger": True, "wrong": wrong})
        world.reset(Example("q", "", {"seed": 0}), 0)
        world.step(0)
        with pytest.raises(InputError, match=said):
            world.step(0)


def test_a_round_limit_of_the_task_cuts_the_living_off() -> None:
    environment = squad(rounds=1)
    environment.reset(Example("q", "", {"seed": 0}), 0)
    environment.step(0)
    step = environment.step(2)
    assert step.truncated
    assert not step.terminated
    assert dict(step.rewards) == {"early": 5.0, "long": 7.0}
    assert set(step.info["finals"]) == {"long"}


def test_an_episode_does_not_depend_on_those_beside_it() -> None:
    def make() -> ColorGrid:
        return ColorGrid(rounds=5, switch=0.5, parents={"follower": ("leader",)})

    whole, alone = played(make), played(make, which=slice(2, 3))
    assert torch.equal(whole.rollout.inputs.rows([4, 5]).action_bt, alone.rollout.inputs.action_bt)
    assert whole.turn_reward_bs[4:6].tolist() == alone.turn_reward_bs.tolist()
    assert whole.rollout.truncated_b.all()
    assert np.abs(whole.turn_reward_bs).sum() > 0  # somebody took a block


def test_the_leader_knows_the_wanted_colour_and_the_follower_does_not() -> None:
    grid = ColorGrid(size=3, blocks=1, penalty=2.0, rounds=1)
    seen = {}
    first = grid.reset(Example("q", "", {"seed": 3}), 3)
    seen["leader"] = first.values["own"]
    seen["follower"] = grid.step(0).observation.values["own"]
    assert seen["leader"][-2:].sum() == 1
    assert seen["follower"][-2:].sum() == 0
    assert seen["leader"][:9].tolist() == seen["follower"][9:18].tolist()  # each sees itself first
    taken = []
    for seed in range(30):
        grid = ColorGrid(size=3, blocks=1, penalty=2.0, rounds=1)
        own = np.asarray(grid.reset(Example("q", "", {"seed": seed}), seed).values["own"])
        wanted, place = int(own[-2:].argmax()), int(own[:9].argmax())
        right = place + 1 if place % 3 < 2 else place
        grid.step(1)
        reward = grid.step(0).rewards["leader"]
        colours = own[18:36].reshape(2, 9)[:, right]
        expected = 0.0 if not colours.any() else 1.0 if colours.argmax() == wanted else -2.0
        assert reward == expected
        taken.append(reward)
    assert {0.0, 1.0, -2.0} <= set(taken)


class Silent:
    """Two agents, and no word on whom the limit cuts off."""

    agents = ("a", "b")
    spaces = Spaces(Discrete(2), Discrete(2))

    def reset(self, example: object, seed: int) -> ArrayObservation:
        return ArrayObservation(np.asarray(0), agent="a")

    def step(self, action: int) -> Step:
        return Step(ArrayObservation(np.asarray(1), agent="b"), 1.0)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Hold nothing."""


def test_a_limit_without_last_observations_is_a_failure_that_says_so() -> None:
    (failure,) = played(Silent, count=1, turns=3).failures
    assert "finals" in failure.what
    assert "task.turns" in failure.what


class Stranger(Silent):
    """Shows an agent that the task does not have."""

    def step(self, action: int) -> Step:
        return Step(ArrayObservation(np.asarray(1), agent="c"), 1.0)  # type: ignore[arg-type]


def test_an_unknown_agent_ends_the_episode() -> None:
    (failure,) = played(Stranger, count=1, turns=3).failures
    assert "it names the agent 'c'" in failure.what


def test_bad_squads_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="parents act earlier, in the order row, column"):
        MatrixGame(parents={"row": ("column",)})
    with pytest.raises(InputError, match="They must be given by agent, or be 'all'"):
        MatrixGame(parents="some")
    with pytest.raises(InputError, match="a square matrix of finite numbers"):
        MatrixGame(payoff=[[1.0, 2.0]])
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[teams]'")
    import parallel_ferry

    closed: list[object] = []
    monkeypatch.setattr(parallel_ferry.Ferry, "close", lambda world: closed.append(world))
    with pytest.raises(InputError, match=r"early and late have the spaces \(observations [^=]*; actions 0 … \d\) and"):
        load_task({"name": "squad:parallel_ferry", "config": {"odd": True}})
    with pytest.raises(InputError, match="parents act earlier"):
        load_task({"name": "squad:parallel_ferry", "parents": {"early": ("late",)}})
    assert len(closed) == 2  # what is refused leaves no window and no process behind
    with pytest.raises(InputError, match=r"There is no environment 'no_such_world'.*: pip install no_such_world"):
        load_task("squad:no_such_world")
    with pytest.raises(InputError, match="has no parallel_env"):
        load_task("squad:json")


OWN = """
from parallel_ferry import Ferry
from pettingzoo.utils.conversions import parallel_to_aec


def in_turn(**config):
    return parallel_to_aec(Ferry(**config))


def number():
    return 5


class Nobody(Ferry):
    possible_agents = []
"""


def test_a_world_of_a_file_is_named_as_an_environment_is(tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[teams]'")
    file = tmp_path / "worlds.py"
    file.write_text(OWN)
    squad = load_task({"name": f"squad:{file}:Ferry", "config": {"limit": 2}})
    assert (squad.name, squad.agents) == ("squad:worlds.py:Ferry", ("early", "long", "late"))
    for world in ("in_turn", "Ferry"):
        team = load_task({"name": f"pettingzoo:{file}:{world}", "config": {"limit": 2}})
        assert (team.name, team.agents) == (f"pettingzoo:worlds.py:{world}", ("early", "long", "late"))
    with pytest.raises(InputError, match=r"makes .*OrderEnforcingWrapper.*act at once.*pettingzoo:.*worlds.py:in_turn"):
        load_task(f"squad:{file}:in_turn")
    for kind in ("squad", "pettingzoo"):
        with pytest.raises(InputError, match=r"worlds.py:number' makes int"):
            load_task(f"{kind}:{file}:number")
        with pytest.raises(InputError, match=r"There is no 'Fery' in .*Did you mean 'Ferry'"):
            load_task(f"{kind}:{file}:Fery")
        with pytest.raises(InputError, match=r"cannot be made with \{'limits': 2\}"):
            load_task({"name": f"{kind}:{file}:Ferry", "config": {"limits": 2}})
        relative = absolute_paths({"task": {"name": f"{kind}:worlds.py:Ferry"}}, tmp_path)
        assert relative["task"] == {"name": f"{kind}:{file}:Ferry"}
    with pytest.raises(InputError, match="possible_agents is empty"):
        load_task(f"squad:{file}:Nobody")


def test_a_world_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[teams]'")
    (tmp_path / "ferries_here.py").write_text("from parallel_ferry import parallel_env")
    monkeypatch.chdir(tmp_path)
    assert load_task("squad:ferries_here").name == "squad:ferries_here"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("alone", "reset.. returned .*observations and infos, each by agent"),
        ("four", "step.. returned .*observations, rewards, terminations, truncations and infos"),
        ("infos", "step.. returned .*each by agent"),
        ("blind", "no observation of the agent 'long'"),
        ("nan", "the reward of 'long' nan"),
        ("none", "the reward of 'long' None"),
        ("huge", "the reward of 'long' 1000"),
        ("digits", "the reward of 'long' '1'"),
        ("flag", "the termination of 'long' = 'no'"),
    ],
)
def test_a_world_that_returns_other_things_is_told_so(wrong: str, said: str) -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[teams]'")
    task = load_task({"name": "squad:parallel_ferry", "config": {"wrong": wrong}})
    environment = task.environment()
    with pytest.raises(InputError, match=said):
        environment.reset(task.example("train", 0), 0)
        for _ in range(2):
            environment.step(0)


def test_agents_need_no_info_of_their_own() -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[teams]'")
    task = load_task({"name": "squad:parallel_ferry", "config": {"wrong": "no info"}})
    environment = task.environment()
    environment.reset(task.example("train", 0), 0)
    environment.step(0)
    assert environment.step(0).rewards == {"early": 5.0, "long": 5.0}


def test_worlds_that_are_not_made_or_do_not_close_are_told() -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[teams]'")
    for name in ("squad:parallel_ferry", "pettingzoo:parallel_ferry"):
        with pytest.raises(InputError, match="parallel_ferry' fails while it is made: KeyError: 'no river'"):
            load_task({"name": name, "config": {"wrong": "made"}})
    with pytest.warns(RuntimeWarning, match="parallel_ferry' failed to close: RuntimeError: moored"):
        load_task({"name": "squad:parallel_ferry", "config": {"wrong": "close"}})


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[teams\]"):
        load_task("squad:parallel_ferry")


def test_agents_are_compared_with_their_like_and_lanes_refuse_them() -> None:
    config = parse_config(
        {
            "task": {"name": "env:grouprl.envs.builtin.squads:MatrixGame", "turns": 2},
            "model": {"name": "mlp", "settings": {"hidden": [8]}},
            "method": "grpo",
            "batch": {"prompts": 2, "group_size": 3},
            "environment": {"workers": 0},
        }
    )
    run = resolve(config)
    policy = build_policy(run)
    rows = open_rows(config, run.task, policy, run.reward, 1, ErrorPolicy())
    example = [run.task.example("train", index) for index in range(2)]
    batch = to_batch(rows.rows([RolloutRequest(n, n, e, 3) for n, e in enumerate(example)]), max_length=2)
    assert len(batch.group_b.unique()) == 4  # two prompts, two agents
    for group in batch.group_b.unique():
        assert len(batch.agent_b[batch.group_b == group].unique()) == 1
    assert torch.equal(batch.reward_b[batch.agent_b == 0], batch.reward_b[batch.agent_b == 1])
    lanes = {"name": "env:grouprl.envs.builtin.squads:MatrixGame", "turns": 2, "horizon": 2}
    kind = type(rows)
    assert kind.refusals(config, run.task, []) == []
    from grouprl.rollout.vectors.lane_rows import LaneRows

    assert "several agents" in LaneRows.refusals(config, load_task(lanes), [])[0]


# --- rows that show the team ------------------------------------------------------------------------------------------


def test_rows_show_who_acts_what_they_see_and_what_was_done() -> None:
    """In the third round comes the late one, and a limit ends the play of all."""
    plain, world = Crossing(size=3, rounds=3), Crossing(size=3, rounds=3, team=True)
    seen, one = world.reset(Example("q", "", {}), 0), plain.reset(Example("q", "", {}), 0)
    shown, own, moves = [], [], [1, 0, 1, 0, 2, 0, 4]
    for move in moves:
        shown.append(seen.values)
        own.append(one.values["own"])
        step, one = world.step(move), plain.step(move).observation  # type: ignore[assignment]
        seen = step.observation  # type: ignore[assignment]
    assert [x["there"].tolist() for x in shown] == [[1, 1, 0]] * 4 + [[1, 1, 1]] * 3
    assert not shown[0]["done"].any()
    assert [row.argmax(-1).tolist() for row in (shown[2]["done"], shown[4]["done"])] == [[1, 0, 0], [1, 0, 0]]
    assert shown[4]["done"].sum(-1).tolist() == [1, 1, 0]
    for number, agents in ((0, 2), (2, 2), (4, 3)):
        for place in range(agents):
            assert np.array_equal(shown[number]["team"][place], own[number + place])
            assert np.array_equal(shown[number]["team"], shown[number + place]["team"])
    assert not shown[0]["team"][2].any()
    last = step.info["finals"]["second"]
    assert last["there"].tolist() == [1, 1, 1]
    assert last["done"].argmax(-1).tolist() == [2, 0, 4]
    assert np.array_equal(last["team"][1], last["own"])


def test_a_team_that_is_shown_keeps_the_rules_of_environments() -> None:
    example = Example("q", "", {"seed": 0})
    check_environment(
        lambda: Crossing(size=3, rounds=3, team=True), example, [0] * 7, spaces=Crossing(team=True).spaces
    )


def test_a_team_of_agents_without_one_array_is_not_shown() -> None:
    with pytest.raises(InputError, match="sees one array and chooses a number"):
        InTurns(ToldWorld(MatrixWorld(CLIMBING), 2), team=True)
