"""The shortlist and the diagnosis: by hand, and in general."""

import random

import pytest

from grouprl.envs import Environment
from grouprl.envs.builtin import Diagnose, Shortlist
from grouprl.envs.builtin.diagnose import diagnosis
from grouprl.envs.check import check_environment
from grouprl.tasks import DiagnoseTask, Example, ShortlistTask
from grouprl.tasks.builtin.agents.diagnose import what_matters
from grouprl.tasks.builtin.agents.shortlist import tastes

TASKS = [ShortlistTask, DiagnoseTask]
LEVELS = [(task, level) for task in TASKS for level in range(1, 7)]


def began(environment, prompt="?", seed=0, **columns):
    return environment, environment.reset(Example("q", prompt, columns), seed)


def played(environment, *actions):
    return [environment.step(action) for action in actions]


# --- in general -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_every_prompt_is_solved_in_time_by_its_solution(task, level):
    task = task(level=level)
    for index in range(40):
        example = task.example("train", index)
        environment = task.environment()
        assert environment.reset(example, index).text == example.prompt
        steps = played(environment, *task.solution(example).splitlines())
        assert all(step.valid for step in steps)
        assert steps[-1].terminated
        assert len(steps) <= task.max_turns
        assert environment.score() == {"correct": 1.0}


@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_episodes_are_spelt_in_the_alphabet_and_fit_a_turn(task, level):
    task = task(level=level)
    for index in range(25):
        environment, rng = task.environment(), random.Random(index)
        first, step = environment.reset(task.example("train", index), index), None
        while step is None or not (step.terminated or step.truncated):
            action = environment.demonstrate(rng)
            step = environment.step(action)
            assert len(action) < task.max_new_tokens
            assert set(action + first.text + step.observation.text) <= set(task.alphabet)


@pytest.mark.parametrize("task", TASKS)
def test_no_rule_of_environments_is_broken(task):
    task = task()
    report = check_environment(task.environment, lambda i: task.example("train", i), episodes=24)
    assert report.problems == ()
    assert isinstance(task.environment(), Environment)


# --- shortlist ------------------------------------------------------------------------------------------------------

ASKED = {"liked": "acefg", "seen": "f"}


def test_a_hit_earns_its_share_and_nobody_says_so():
    game, first = began(Shortlist(3), "7:f>", **ASKED)
    assert (first.state, first.legal) == ("-", tuple("abcdeghijkl"))
    steps = played(game, "c", "b", "a")
    assert [step.reward for step in steps] == pytest.approx([1 / 3, 0, 1 / 3])
    assert [step.observation.text for step in steps] == [">"] * 3
    assert [step.observation.state for step in steps] == ["c", "bc", "abc"]
    assert (steps[-1].terminated, steps[-1].truncated) == (True, False)
    assert game.score() == {"correct": 0.0}


def test_what_was_named_or_seen_or_is_unknown_takes_a_place():
    game, _ = began(Shortlist(4), **ASKED)
    steps = played(game, "a", "a", "f", "z")
    assert [step.valid for step in steps] == [True, False, False, False]
    assert [step.reward for step in steps] == pytest.approx([1 / 4, 0, 0, 0])
    assert [step.observation.text for step in steps] == [">", "!>", "!>", "!>"]


def test_a_list_of_hits_is_right_in_any_order():
    game, _ = began(Shortlist(3), **ASKED)
    assert sum(step.reward for step in played(game, "g", "a", "c")) == pytest.approx(1)
    assert game.score() == {"correct": 1.0}


def test_tastes_are_made_up_once_and_suffice():
    assert tastes(0, 5) == tastes(0, 5)
    assert tastes(0, 5) != tastes(1, 5)
    assert all(len(set(liked)) == 5 for liked in tastes(0, 5))


# --- diagnose -------------------------------------------------------------------------------------------------------

PATIENT = {"matters": "ad", "told": {"b": "+"}, "findings": dict(zip("abcdef", "+++-+-", strict=True))}


def test_a_question_earns_the_shapley_value_of_what_it_reveals():
    game, first = began(Diagnose(6), "1:b+>", **PATIENT)
    assert first.state == "b+"
    steps = played(game, "?b", "?c", "?a", "?a", "?d", "=3")
    assert [step.observation.text for step in steps] == ["+>", "+>", "+>", "+>", "->", ""]
    assert [step.reward for step in steps] == pytest.approx([0, 0, 0.375, 0, 0.375, 1])
    assert [step.info["seconds"] for step in steps] == [1, 1, 1, 1, 10, 1]
    assert game.score() == {"correct": 1.0}


def test_what_is_told_makes_the_rest_worth_more():
    game, _ = began(Diagnose(3), **{**PATIENT, "told": {"d": "-"}})
    assert [step.reward for step in played(game, "?d", "?a")] == pytest.approx([0, 0.5])


def test_a_wrong_diagnosis_ends_and_nonsense_is_invalid():
    game, _ = began(Diagnose(3), **PATIENT)
    nonsense, wrong = played(game, "?z", "=1")
    assert (nonsense.valid, nonsense.observation.text, nonsense.reward) == (False, "!>", 0)
    assert (wrong.terminated, wrong.reward, game.score()) == (True, 0, {"correct": 0.0})


def test_four_diagnoses_and_ten_complaints():
    assert [diagnosis(first, second) for first in "-+" for second in "-+"] == ["1", "2", "3", "4"]
    assert len(set(what_matters(0))) == 10
    assert what_matters(0) != what_matters(1)
