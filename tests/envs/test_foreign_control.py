"""Environments of other people by name: ids, functions, vector environments, wrappers, and what is wrong with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grouprl.config.paths import absolute_paths
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.envs.adapters.gymnasium_calls import reset_by
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.policy.vectors.features import feature_count
from grouprl.protocols import Box, DictSpace, Discrete, Image
from grouprl.records.requests import RolloutRequest
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.kinds.row_kinds import open_rows
from grouprl.tasks import load_task

gymnasium = pytest.importorskip("gymnasium")
Env: Any = gymnasium.Env

FILE = Path(__file__).parents[1] / "support" / "foreign_control.py"


def control(name: str, **options: Any) -> Any:
    return load_task({"name": f"control:{FILE}:{name}", "turns": 10, **options})


def played(task: Any, steps: int = 3) -> list[Any]:
    environment = task.environment()
    environment.reset(task.example("train", 0), 7)
    found = [environment.step(0) for _ in range(steps)]
    environment.close()
    return [(float(np.ravel(step.observation.values)[0]), step.reward, step.terminated) for step in found]


WALKED = [(1.0, 1.0, False), (2.0, 2.0, False), (3.0, 3.0, True)]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_vector_environment_has_no_fake_transition_under_any_mode_of_autoreset(mode: str) -> None:
    """The last observation is what the episode ended with (3), not the first of the next episode (0)."""
    assert played(control("vector", config={"mode": mode})) == WALKED == played(control("Walk"))


def test_an_id_and_the_same_environment_computed_as_a_vector_are_one() -> None:
    gymnasium.register(
        "OnlyVector-v0",
        vector_entry_point="gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
        max_episode_steps=500,
    )
    one, other = load_task("control:CartPole-v1"), load_task("control:OnlyVector-v0")
    assert (one.spaces, one.max_turns) == (other.spaces, other.max_turns)
    assert len(played(other, 5)) == 5


def test_wrappers_stand_around_in_their_order() -> None:
    scaled = {"name": "gymnasium.wrappers:RescaleObservation", "min_obs": -1.0, "max_obs": 1.0}
    limit, aware = (
        {"name": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 4},
        "gymnasium.wrappers:TimeAwareObservation",
    )
    task = control("Walk", wrappers=[limit, aware], turns=None)
    assert (task.spaces.observation.size, task.max_turns) == (2, 4)
    with pytest.raises(InputError, match=r"TimeAwareObservation' refuses the environment.*TimeLimit"):
        control("Walk", wrappers=[aware, limit])
    found = control("Walk", wrappers=[scaled], config={"scale": 1e8})
    assert [round(x, 6) for x, _, _ in played(found)] == [0.1, 0.2, 0.3]
    assert found.name == "control:foreign_control.py:Walk"


@pytest.mark.parametrize(
    ("kind", "space", "count"),
    [
        ("dict", DictSpace({"at": Box((2,), -1, 1), "which": Discrete(3)}), 5),
        ("tuple", DictSpace({"0": Box((2,), -1, 1), "1": Discrete(3)}), 5),
        ("image", Image(4, 4, 3), 48),
    ],
)
def test_spaces_of_several_arrays_and_pictures_are_read_flat(kind: str, space: Any, count: int) -> None:
    found = control("spaces_within", config={"kind": kind}).spaces.observation
    assert type(found) is type(space)
    assert feature_count(found) == feature_count(space) == count


def test_an_action_of_one_real_number_stays_real() -> None:
    task = control("OneNumber")
    environment = task.environment()
    environment.reset(task.example("train", 0), 0)
    assert [environment.step(np.array([x])).reward for x in (0.5, -0.25, 0.75)] == [0.5, -0.25, 0.75]


def test_infos_of_a_vector_may_be_of_all_places() -> None:
    assert played(control("Told")) == WALKED


@pytest.mark.parametrize(("kind", "entry"), [("dict", "which"), ("array", "at"), ("tuple", "1")])
def test_an_entry_that_is_missing_is_named(kind: str, entry: str) -> None:
    task = control("Entries", config={"kind": kind})
    with pytest.raises(InputError, match=f"an observation has no entry '{entry}'.*Return them all"):
        task.environment().reset(task.example("train", 0), 0)


def test_nothing_to_see_is_refused() -> None:
    with pytest.raises(InputError, match=r"The observations of .* are Dict\(\).*at least one array"):
        control("spaces_within", config={"kind": "nothing"})


def test_an_environment_that_never_closes_is_told_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grouprl.envs.adapters.gymnasium_calls.MAKING", 0.3)
    with pytest.warns(
        RuntimeWarning, match=r"Slow' failed to close: close\(\) did not return within 0.3 s, at .*\.py:"
    ):
        control("Slow")


@pytest.mark.parametrize("kind", ["control", "gym", "squad", "pettingzoo"])
def test_an_environment_that_is_never_made_is_told(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind in ("squad", "pettingzoo"):
        pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[teams]'")
    monkeypatch.setattr("grouprl.envs.adapters.gymnasium_calls.MAKING", 0.3)
    with pytest.raises(InputError, match=r"Waiting' is still being made after 0.3 seconds, at .*foreign_control.py:"):
        load_task({"name": f"{kind}:{FILE}:Waiting"})


def test_two_observations_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match=r"have two entries 'at\.x'.*Rename one"):
        control("spaces_within", config={"kind": "same"})


@pytest.mark.parametrize("kind", ["text", "graph", "sequence", "several"])
def test_spaces_that_are_no_numbers_are_refused_by_name(kind: str) -> None:
    with pytest.raises(
        InputError, match=r"The observations of .*foreign_control.py:spaces_within' are .*task.wrappers"
    ) as told:
        control("spaces_within", config={"kind": kind})
    assert {"several": "Text"}.get(kind, kind.title()) in str(told.value)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("nothing", {}, r"makes int.*gymnasium.Env.*task\.wrappers"),
        ("Spaceless", {}, "Spaceless' has no action_space.*spaces that an environment states"),
        ("broken", {}, "fails while it is made.*no licence"),
        ("Walk", {"config": {"lenght": 3}}, "cannot be called with.*lenght"),
        ("Wlak", {}, "There is no 'Wlak'.*Walk"),
        ("vector", {"config": {"num_envs": 4}}, "a vector environment of 4 environments.*num_envs"),
        ("Walk", {"turns": None}, "has no limit of steps"),
        ("Walk", {"wrappers": ["gymnasium.wrappers:ClipAcion"]}, "There is no 'ClipAcion'.*ClipAction"),
        ("Walk", {"wrappers": [{"min_obs": 1}]}, "a wrapper is .*as its name"),
        ("Walk", {"wrappers": ["gymnasium.wrappers:ClipAction"]}, "wrapper 'gymnasium.wrappers:ClipAction' refuses"),
        ("Walk", {"wrappers": [f"{FILE}:Shut"]}, "Shut' fails while it is made: KeyError: '5x5'"),
    ],
)
def test_what_is_no_environment_is_told_before_the_run(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"(?s){said}"):
        control(name, **options)


CLOSING = """
import sys
from pathlib import Path
from gymnasium.vector import SyncVectorEnv
sys.path.insert(0, {folder!r})
from foreign_control import Walk, spaces_within

class Noted(Walk):
    def close(self):
        Path({closed!r}).touch()

def two():
    return SyncVectorEnv([Noted, Noted])

def worded():
    found = Noted()
    found.observation_space = spaces_within("text").observation_space
    return found
"""


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("two", {}, "a vector environment of 2 environments"),
        ("worded", {}, "are .*Text"),
        ("Noted", {"turns": None}, "has no limit of steps"),
        ("Noted", {"wrappers": ["gymnasium.wrappers:ClipAction"]}, "refuses"),
    ],
)
def test_a_refused_environment_is_closed(tmp_path: Path, name: str, options: dict[str, Any], said: str) -> None:
    closed = tmp_path / "closed"
    (tmp_path / "noted.py").write_text(CLOSING.format(folder=str(FILE.parent), closed=str(closed)))
    with pytest.raises(InputError, match=said):
        load_task({"name": f"control:{tmp_path / 'noted.py'}:{name}", "turns": 10, **options})
    assert closed.exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("nan", "an observation is nan.*1 finite numbers"),
        ("shape", r"an observation has the shape \(3,\)"),
        ("reward", "the reward nan.*one finite number.*the division"),
        ("many", r"the reward array\(\[1., 2.\]\).*one finite number.*Several goals"),
        ("single", r"the reward array\(\[1.\]\).*one finite number.*Return its .item\(\)"),
        ("unpaid", "the reward None.*one finite number.*Return 0.0 where"),
        ("added", "a mask with the value -inf.*1 for a legal action and 0 for another"),
        ("barred", "a mask without a legal action.*must be able to act"),
        ("silent", r"reset.. returned .array.*None.*a mapping, info. Return \{\} where"),
        ("text", r"the reward 'good'.*one finite number.*Return float\(…\)"),
        ("digits", "the reward '1'.*one finite number"),
        ("huge", "the reward 10000.*one finite number"),
        ("spelt", r"is \['2'\].*1 finite numbers"),
        ("ended", "terminated = 'False'.*true or false"),
        ("cut", "truncated = None.*true or false"),
        ("four", "step.. returned .array.*older interface"),
        ("info", "step.. returned .array.*None.*mapping"),
        ("alone", "reset.. returned array.*an observation and a mapping.*older interface"),
    ],
)
@pytest.mark.parametrize("horizon", [None, 2])
def test_what_an_environment_returns_wrongly_is_a_failure_in_words(wrong: str, said: str, horizon: int | None) -> None:
    """The episode fails and is counted; whole episodes and those that continue say the same."""
    run = resolve(
        parse_config(
            {
                "task": {
                    "name": f"control:{FILE}:Walk",
                    "turns": 10,
                    "horizon": horizon,
                    "config": {"wrong": wrong},
                },
                "model": "mlp",
                "method": "ppo_control" if horizon else "dr_grpo",
                "batch": {"prompts": 1, "group_size": 1 if horizon else 2},
                "environment": {"workers": 0},
            }
        )
    )
    policy: Any = build_policy(run)
    errors = ErrorPolicy("drop_row", max_fraction=1.0)
    source = open_rows(run.config, run.task, policy, run.reward, 1, errors, kind=run.row_kind)
    found = source.rows([RolloutRequest(0, 0, run.task.example("train", 0), 1)])
    source.close()
    assert found.scores.failed_b.tolist() == [True]
    text = found.scores.problems[0].what
    assert re.search(said, text, re.DOTALL), text


def test_an_id_whose_environment_cannot_be_made_is_told_before_the_run() -> None:
    for kind in ("control", "gym"):
        with pytest.raises(InputError, match="'FrozenLake-v1' fails while it is made: KeyError: '5x5'"):
            load_task({"name": f"{kind}:FrozenLake-v1", "config": {"map_name": "5x5"}})


def test_an_environment_that_does_not_close_is_told_and_counts() -> None:
    with pytest.warns(RuntimeWarning, match=r"Walk' failed to close: RuntimeError: the door is stuck.*Fix its close"):
        assert control("Walk", config={"wrong": "close"}).max_turns == 10


@pytest.mark.parametrize("kind", ["control", "gym"])
def test_a_reset_without_a_seed_is_told_with_the_remedy(kind: str) -> None:
    for wrappers in [[], ["gymnasium.wrappers:FlattenObservation"]] if kind == "control" else [[]]:
        made = {"wrappers": wrappers} if wrappers else {}
        task = load_task({"name": f"{kind}:{FILE}:Seedless", "turns": 10, **made})
        with pytest.raises(InputError, match=r"Seedless.reset\(\) got an .*'seed'.*Write it as reset\(self, seed=None"):
            task.environment().reset(task.example("train", 0), 7)


def test_a_type_error_within_reset_is_not_taken_for_one_of_its_arguments() -> None:
    class Torn(Env):  # the error is of something else, and stays what it is
        def reset(self, **told: Any) -> Any:
            raise TypeError("helper() got an unexpected keyword argument 'seed'")

    with pytest.raises(TypeError, match="helper"):
        reset_by(Torn(), 3)


@pytest.mark.parametrize("wrong", ["added", "barred"])
def test_a_mask_of_text_is_one_and_allows_something(wrong: str) -> None:
    """Numbers that are added to logits, 0 and -inf, would be read the wrong way round."""
    task = load_task({"name": f"gym:{FILE}:Walk", "turns": 10, "config": {"wrong": wrong}})
    environment = task.environment()
    environment.reset(task.example("train", 0), 7)
    environment.step("0")
    with pytest.raises(InputError, match=r"a mask with the value -inf|a mask without a legal action"):
        environment.step("0")


@pytest.mark.parametrize("kind", ["control", "gym"])
def test_what_has_ended_may_allow_nothing(kind: str) -> None:
    task = load_task({"name": f"{kind}:{FILE}:Spent", "turns": 10})
    environment = task.environment()
    environment.reset(task.example("train", 0), 7)
    assert [environment.step("0" if kind == "gym" else 0).terminated for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("wrong", ["digits", "huge", "reward", "unpaid", "ended", "four", "info", "silent", "alone"])
def test_environments_of_text_say_the_same(wrong: str) -> None:
    task = load_task({"name": f"gym:{FILE}:Walk", "turns": 10, "config": {"wrong": wrong}})
    environment = task.environment()
    with pytest.raises(InputError, match=r"(step|reset)\(\) returned"):
        environment.reset(task.example("train", 0), 7)
        for _ in range(2):
            environment.step("0")


@pytest.mark.parametrize("action", [2, -1, np.nan, [0, 1]])
def test_actions_outside_their_space_do_not_reach_the_environment(action: Any) -> None:
    environment = control("Walk").environment()
    environment.reset(control("Walk").example("train", 0), 0)
    with pytest.raises(InputError, match=r"the action .*Actions are of Discrete\(2\)"):
        environment.step(action)


def test_files_of_yours_are_found_from_the_configuration() -> None:
    wrappers = ["around.py:Slow", {"name": "more/around.py:Fast", "by": 2}]
    task = absolute_paths({"task": {"name": "control:envs.py:Walk", "wrappers": wrappers}}, Path("/runs"))["task"]
    assert task == {
        "name": "control:/runs/envs.py:Walk",
        "wrappers": ["/runs/around.py:Slow", {"name": "/runs/more/around.py:Fast", "by": 2}],
    }
    assert absolute_paths({"task": "control:CartPole-v1"}, Path("/runs"))["task"] == "control:CartPole-v1"
