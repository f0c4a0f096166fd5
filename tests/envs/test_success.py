"""Whether an episode that was cut off can be correct: one rule, held against every adapter that compares totals."""

from __future__ import annotations

import pytest

from grouprl.envs.success import Success
from grouprl.policy import load_policy
from grouprl.rollout.episode import Start
from grouprl.rollout.episodes import play
from grouprl.tasks import Example, load_task
from toy_envs import Asking, AskTask


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny", alphabet=AskTask.alphabet, hidden=16, layers=1, heads=2, intermediate=16, seed=1)


@pytest.mark.parametrize(
    ("success", "total", "own", "limit"),
    [
        (Success(), 1.0, True, False),
        (Success(), 0.0, False, False),
        (Success.of(None, -110.0), -100.0, True, False),
        (Success.of(None, -110.0), -111.0, False, False),
        (Success.of(-90.0, -110.0), -90.0, True, True),
        (Success.of(-90.0, -110.0), -100.0, False, False),
        (Success.of(0.0), 0.0, True, True),
    ],
)
def test_the_rule(success, total, own, limit):
    ends = [success.reached(total, "own"), success.reached(total, "limit"), success.reached(total, "none")]
    assert ends == [own, limit, False]


@pytest.mark.parametrize("name", ["gym:MountainCar-v0", "gym:Acrobot-v1"])
@pytest.mark.parametrize("action", ["gibberish", "0"])
def test_nothing_is_won_by_being_cut_off(name, action):
    pytest.importorskip("gymnasium")
    task = load_task({"name": name})
    environment = task.environment()
    environment.reset(task.example("train", 0), 0)
    steps = [
        environment.step("l" if (action, name) == ("0", "gym:MountainCar-v0") else action)
        for _ in range(task.max_turns)
    ]
    assert steps[-1].truncated
    assert sum(step.reward for step in steps) >= -100.0
    assert environment.score() == {"correct": 0.0}
    environment.close()


@pytest.mark.parametrize(("spec", "correct"), [({}, 0.0), ({"success": 3.0}, 1.0), ({"success": 4.0}, 0.0)])
def test_a_stated_threshold_is_about_the_tasks_own_turns(spec, correct):
    pytest.importorskip("gymnasium")
    environment = load_task({"name": "gym:CartPole-v1", "turns": 3, **spec}).environment()
    environment.reset(Example("q", "", {"seed": 0}), 0)
    for action in "lrl":
        assert environment.score() == {"correct": 0.0}  # a full context may end an episode here
        environment.step(action)
    assert environment.score() == {"correct": correct}
    environment.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "cut off at 100 turns, its own limit is 500: success is a total of at least 475"),
        ({"turns": 500}, ""),
        ({"success": 90}, ""),
    ],
)
def test_a_task_says_that_it_cuts_episodes_off_before_they_can_succeed(options, said):
    pytest.importorskip("gymnasium")
    doubt, remedy = load_task({"name": "gym:CartPole-v1", **options}).doubt
    assert said in doubt
    assert bool(doubt) == bool(said) == ("task.turns to 500" in remedy)


def test_an_environments_own_limit_is_its_end():
    pytest.importorskip("gymnasium")
    environment = load_task({"name": "gym:CartPole-v1", "config": {"max_episode_steps": 2}}).environment()
    environment._success = Success(2.0)
    environment.reset(Example("q", "", {"seed": 0}), 0)
    steps = [environment.step(action) for action in "lr"]
    assert (steps[-1].truncated, environment.score()) == (True, {"correct": 1.0})
    environment.close()


class Stuck(Asking):
    """An environment that cannot be closed."""

    def close(self):
        raise OSError("the browser is gone")


def test_an_episode_that_has_ended_counts_though_its_environment_cannot_be_closed(policy):
    starts = [Start(Example("q", "?", {"letter": "a"}), 0)]
    with pytest.warns(RuntimeWarning, match=r"close\(\) raised OSError: the browser is gone. Its episodes count"):
        found = play(policy, Stuck, starts, max_turns=2, max_new_tokens=2)
    whole = play(policy, Asking, starts, max_turns=2, max_new_tokens=2)
    assert not found.failures
    assert found.outcomes == whole.outcomes
    assert found.ended == whole.ended
