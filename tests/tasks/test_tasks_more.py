"""Reflection, retelling, inspection, speed, critic, tools, self-search: prompts, demonstrations, solutions."""

import pytest

from grouprl.rewards import check_reward
from grouprl.tasks import Choose, Critic, Inspect, Reflect, Retell, Route, ScreenTask, SelfSearch, Speed
from grouprl.tasks.builtin.agents.search import lands, people
from solved_tasks import assert_demonstrated, assert_solved

TASKS = [Choose, Critic, Inspect, Reflect, Retell, Route, SelfSearch, Speed]
LEVELS = [(task, level) for task in TASKS for level in range(1, 7)]


@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_solutions_are_right_fit_and_are_spelt_in_the_alphabet(task, level):
    task = task(level=level)
    assert check_reward(task.reward, task.reward_examples()) >= 5
    assert_solved(task, level)


@pytest.mark.parametrize(
    ("task", "low", "high"),
    [
        (Choose(), 0.3, 0.5),
        (Critic(), 0.5, 0.7),
        (Inspect(), 0.5, 0.7),
        (Reflect(), 0.7, 0.85),
        (Retell(), 0.4, 0.55),
        (Route(), 0.5, 0.72),
        (SelfSearch(), 0.55, 0.75),
        (Speed(), 0.55, 0.75),
    ],
)
def test_demonstrations_are_as_good_as_they_should_be(task, low, high):
    assert_demonstrated(task, low, high, 300)


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="larger pictures"):
        Inspect(letters=3, most=5)


def test_facts_of_held_out_questions_are_told_by_others():
    """What a held-out prompt about a land needs is in prompts to train on: who lives where, what lies where."""
    task = SelfSearch(people=60)
    told = {tuple(step) for i in range(2000) for step in task.example("train", i).columns["path"]}
    held = [task.example("eval", index) for index in range(100)]
    steps = [tuple(step) for example in held for step in example.columns["path"]]
    assert sum(step in told for step in steps) / len(steps) > 0.9
    facts = people(0, 60)
    for example in held:
        person = example.prompt.split()[0]
        town = facts[person]["lives"]
        assert example.columns["answer"] == (town if len(example.columns["path"]) == 1 else lands(0)[town])


def test_pictures_are_rated_by_their_flaws():
    task = Inspect()
    for index in range(60):
        example = task.example("train", index)
        (shown, requested), answer = example.prompt[:-1].split(":"), example.columns["answer"]
        flaws = [len(picture) - picture.count(".") for picture in shown.split("/")]
        if requested == "rate":
            assert answer == {"rating": 5 - flaws[0] / 2}
        elif requested == "flaw":
            assert answer == {"flaw": max(shown), "severity": flaws[0]}
        else:
            assert answer == {"better": "A" if flaws[0] < flaws[1] else "B"}
            assert flaws[0] != flaws[1]


def test_a_critic_is_shown_right_and_wrong_actions():
    task = Critic(near=1.0)
    rights = []
    for index in range(80):
        example = task.example("train", index)
        x, y = int(example.prompt[-3]), int(example.prompt[-2])
        left, top, right, bottom = example.columns["box"]
        assert example.columns["right"] == (left <= x <= right and top <= y <= bottom)
        rights.append(example.columns["right"])
    assert 25 < sum(rights) < 55


def test_a_mixed_screen_has_ways_of_all_lengths():
    task = ScreenTask(pages=2, goals=2, mixed=True)
    examples = [task.example("train", index) for index in range(80)]
    assert {example.columns["needed"] for example in examples} == {1, 2, 3}
    assert all(len(task.solution(q).splitlines()) == q.columns["needed"] <= task.max_turns for q in examples)
    whole = ScreenTask(pages=2, goals=2)
    assert all(len(whole.example("train", i).columns["pages"]) == 2 for i in range(20))
