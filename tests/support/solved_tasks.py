"""What a task's solutions and demonstrations are worth."""

from __future__ import annotations

from collections.abc import Callable

from grouprl.records.examples import Example
from grouprl.records.scores import Scores
from grouprl.rewards import score
from grouprl.tasks.task import Task


def scores(task: Task, answer: Callable[[Example], str], count: int) -> Scores:
    """The scores of what `answer` says to the first `count` examples."""
    examples = [task.example("train", index) for index in range(count)]
    return score(
        task.reward, [answer(q) for q in examples], [q.columns for q in examples], ids=[q.id for q in examples]
    )


def assert_solved(task: Task, level: int, count: int = 60) -> None:
    """Solutions are right, and they and demonstrations fit and are spelt in the alphabet."""
    found = scores(task, task.solution, count)
    assert found.ok_b.all()
    assert found.correct_b.all()
    for index in range(count):
        example = task.example("train", index)
        assert example.level in (level, 0)
        for text in (example.prompt, task.solution(example), task.demonstration(example, 0)):
            assert set(text) <= set(task.alphabet)
        assert len(task.solution(example)) < task.max_new_tokens
        assert len(task.demonstration(example, 0)) < task.max_new_tokens


def assert_demonstrated(task: Task, low: float, high: float, count: int) -> None:
    """Demonstrations are right about as often as they should be."""
    found = scores(task, lambda q: task.demonstration(q, seed=0), count)
    assert found.ok_b.all()
    assert low < found.correct_b.mean() < high
