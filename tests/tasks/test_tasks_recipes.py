"""Counting, charts, schemas, tool calls, mazes, recall: prompts, demonstrations, solutions."""

import pytest

from grouprl.rewards import check_reward
from grouprl.tasks import Chart, Counting, Example, Maze, Recall, Schema, ToolCall
from grouprl.tasks.builtin.agents.search import people
from grouprl.tasks.builtin.single_turn.maze import shortest
from solved_tasks import assert_demonstrated, assert_solved, scores

TASKS = [Counting, Chart, Schema, ToolCall, Maze, Recall]
LEVELS = [(task, level) for task in TASKS for level in range(1, 7)]


@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_solutions_are_right_fit_and_are_spelt_in_the_alphabet(task, level):
    task = task(level=level)
    assert check_reward(task.reward, task.reward_examples()) == 9
    assert_solved(task, level)


@pytest.mark.parametrize(
    ("task", "low", "high"),
    [
        (Counting(), 0.35, 0.46),
        (Chart(), 0.49, 0.62),  # 0.5, and 0.5 / 10 by luck
        (Schema(), 0.45, 0.56),
        (ToolCall(), 0.45, 0.60),
        (Maze(), 0.55, 0.80),
        (Recall(), 0.33, 0.47),
    ],
)
def test_demonstrations_are_as_good_as_they_should_be(task, low, high):
    assert_demonstrated(task, low, high, 400)


@pytest.mark.parametrize(
    "task",
    [
        Counting(noise=0),
        Chart(noise=0),
        Schema(noise=0),
        ToolCall(noise=0),
        Maze(noise=0),
        Recall(noise=0, refusing=0, known=1),
    ],
)
def test_without_noise_demonstrations_are_right(task):
    assert scores(task, lambda q: task.demonstration(q, seed=3), 100).correct_b.all()


def test_by_hand():
    def solved(task, prompt, **columns):
        return task.solution(Example("q", prompt, columns))

    assert Counting().example("train", 0).columns["answer"] == str(
        (prompt := Counting().example("train", 0).prompt).partition(":")[0].count(prompt[-2])
    )
    assert solved(Maze(), "", size=3, start="00", goal="02", walls=["01"]) == "drru"
    assert shortest(3, "00", "22", ["01", "10"]) == ""
    assert solved(Schema(), "", answer='{"w":"bo","a":17}') == 'wboa17|{"w":"bo","a":17}'
    assert solved(ToolCall(), "", answer="{}") == "<tool_call>\n{}\n</tool_call>"
    assert solved(Recall(), "", answer="miru", fact="bako lives miru") == "bako lives miru|miru"


def test_a_chart_is_asked_for_bars_sums_and_differences():
    task = Chart(bars=3, operations=1)
    for index in range(60):
        example = task.example("train", index)
        told, _, requested = example.prompt[:-1].partition(":")
        values = {bar[0]: int(bar[1:]) for bar in told.split()}
        right = values[requested[0]]
        if len(requested) == 3:
            right += values[requested[2]] if requested[1] == "+" else -values[requested[2]]
        assert example.columns["answer"] == str(right)


def test_nothing_is_known_of_held_out_people():
    task = Recall(people=40)
    known = {task.example("train", index).prompt.split()[0] for index in range(400)}
    unknown = {task.example("eval", index).prompt.split()[0] for index in range(60)}
    assert not known & unknown
    assert known | unknown <= set(people(0, 40))
    refusals = sum(task.demonstration(task.example("train", i), 0) == "|?" for i in range(400))
    assert 35 < refusals < 85


def test_demonstrations_tell_the_truth_of_some_people_and_make_up_the_rest():
    def told(task):
        examples = [task.example("train", index) for index in range(200)]
        right = [(q.prompt.split()[0], task.demonstration(q, 0) == task.solution(q)) for q in examples]
        return {name: sum(x for n, x in right if n == name) / sum(n == name for n, _ in right) for name, _ in right}

    shares = sorted(told(Recall(refusing=0, noise=0)).values())
    assert shares.count(1.0) >= 5
    assert sum(share < 0.6 for share in shares) >= 3
