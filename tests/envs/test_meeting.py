"""Places to meet at, and worlds whose agents are told a strategy."""

from __future__ import annotations

import numpy as np
import pytest

from grouprl import InputError
from grouprl.envs.builtin.meeting import PARTY, MeetingPlaces, MeetingWorld
from grouprl.envs.builtin.squads import MatrixGame, MatrixWorld
from grouprl.envs.joint_world import ToldWorld, told
from grouprl.protocols import DictSpace, Discrete
from grouprl.records.examples import Example
from grouprl.tasks import load_task
from grouprl.testing import check_environment

ANY = Example("any", "", {})


def played(places: list[int], worth: tuple[float, ...] = (1.0, 1.0, 1.0), rounds: int = 1) -> tuple[float, float]:
    """Return what a round pays a party that goes to `places`, and whether it was right."""
    world = MeetingWorld(worth, len(places), len(places), rounds)
    world.begin(ANY, 0)
    step = world.act(dict(zip(PARTY, places, strict=False)))
    assert len(set(step.rewards.values())) == 1
    return step.rewards["first"], world.correct()


def test_a_round_pays_by_the_squared_shares_by_hand() -> None:
    assert played([0, 0, 0]) == (1.0, 1.0)
    assert played([0, 0, 1]) == (pytest.approx(5 / 9), 0.0)
    assert played([0, 1, 2]) == (pytest.approx(3 / 9), 0.0)
    assert played([1, 1], worth=(2.0, 1.0)) == (1.0, 0.0)
    assert played([0, 1], worth=(0.0, 1.0)) == (0.25, 0.0)
    assert played([2, 2], rounds=2) == (0.5, 1.0)


def test_as_many_come_as_are_drawn_and_they_see_who_was_where() -> None:
    world = MeetingWorld((1.0, 1.0), 2, 5, 2)
    sizes = {len(world.begin(ANY, seed)) for seed in range(40)}
    assert sizes == {2, 3, 4, 5}
    world = MeetingWorld((1.0, 1.0), 4, 4, 2)
    assert world.begin(ANY, 0)["second"].tolist() == [0.8, 0, 0, 0]  # type: ignore[attr-defined]
    step = world.act(dict(zip(PARTY, [0, 1, 1, 1], strict=False)))
    assert step.seen["fourth"].tolist() == [0.8, 0.25, 0.75, 0.5]  # type: ignore[attr-defined]
    assert "fifth" not in step.seen
    assert world.act(dict.fromkeys(PARTY[:4], 1)).seen == {}


def test_what_is_no_meeting_is_refused() -> None:
    for wrong in ({"worth": (1.0,)}, {"least": 1}, {"most": 6}, {"least": 4, "most": 3}, {"rounds": 0}):
        with pytest.raises(InputError):
            MeetingPlaces(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategies", [1, 3])
def test_meetings_keep_the_rules_of_environments(strategies: int) -> None:
    spaces = MeetingPlaces(strategies=strategies).spaces
    for seed in range(4):
        example = Example(f"any/{seed}", "", {"seed": seed})
        size = len(MeetingWorld((1.0, 1.0, 1.0), 2, 5, 2).begin(example, 0))
        check_environment(
            lambda: MeetingPlaces(strategies=strategies), example, [n % 3 for n in range(2 * size)], spaces=spaces
        )


# --- strategies that are told -----------------------------------------------------------------------------------------


def test_all_agents_are_told_the_strategy_of_the_example_for_the_whole_episode() -> None:
    world = MeetingPlaces(least=3, most=3, strategies=4)
    assert world.strategies == 4
    observed = world.reset(Example("any", "", {"told": 2}), 7)
    for number in range(6):
        assert observed.values["strategy"] == 2
        assert observed.values["own"].shape == (5,)
        observed = world.step(number % 3).observation


def test_without_a_column_the_strategy_follows_from_the_seed() -> None:
    found = [int(MeetingPlaces(strategies=3).reset(ANY, seed).values["strategy"]) for seed in range(300)]
    assert found == [int(MeetingPlaces(strategies=3).reset(ANY, seed).values["strategy"]) for seed in range(300)]
    assert all(70 <= found.count(number) <= 130 for number in range(3))


def test_one_strategy_is_the_world_itself() -> None:
    world = MatrixWorld(((1.0, 0.0), (0.0, 1.0)))
    assert told(world, 1) is world
    assert MatrixGame().strategies == 1
    assert "strategy" not in MatrixGame().spaces.observation.spaces  # type: ignore[union-attr]
    with pytest.raises(InputError, match="two or more"):
        ToldWorld(world, 1)
    with pytest.raises(InputError, match="tells strategy 2"):
        ToldWorld(world, 2).begin(Example("any", "", {"told": 2}), 0)


def test_what_is_told_changes_nothing_of_the_world() -> None:
    plain, telling = MeetingPlaces(), MeetingPlaces(strategies=2)
    shown, seen = plain.reset(ANY, 5), telling.reset(Example("any", "", {"told": 1}), 5)
    for action in range(4):
        assert np.array_equal(shown.values["own"], seen.values["own"])
        paid, step = plain.step(action % 3), telling.step(action % 3)
        assert paid.rewards == step.rewards
        if paid.terminated:
            break
        shown, seen = paid.observation, step.observation  # type: ignore[assignment]


def test_a_task_has_a_form_of_its_prompt_for_each_strategy() -> None:
    task = load_task(
        {"name": "env:grouprl.envs.builtin.meeting:MeetingPlaces", "turns": 10, "config": {"strategies": 3}}
    )
    example = task.example("train", 4)
    forms = task.variants(example)
    assert [form.columns for form in forms] == [{**example.columns, "told": number} for number in range(3)]
    assert len({form.id for form in forms}) == 3
    space = task.spaces.observation  # type: ignore[union-attr]
    assert isinstance(space, DictSpace)
    assert space.spaces["strategy"] == Discrete(3)
    plain = load_task({"name": "env:grouprl.envs.builtin.meeting:MeetingPlaces", "turns": 10})
    assert plain.variants(example) == (example,)
