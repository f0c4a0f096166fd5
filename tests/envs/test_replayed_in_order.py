"""Calls of an episode of coroutines that are replayed in a new worker are made one after the other."""

from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.rewards.contract import Failure
from grouprl.tasks import load_task


def test_coroutines_are_brought_back_in_order():
    task = load_task("env:ordered_envs:Ordered")
    stage = WorkerStage(task, 1, timeout=3.0, memory_gb=4.0)
    try:
        stage.call("reset", [(i, (task.example("train", i), i)) for i in range(3)])
        stage.call("step", [(i, ("a",)) for i in range(3)])
        steps = stage.call("step", [(0, ("a",)), (1, ("hang",)), (2, ("a",))])
        assert [isinstance(step, Failure) for step in steps] == [False, True, False], steps
        assert [steps[i].observation.text for i in (0, 2)] == ["2>", "2>"]
    finally:
        stage.close()
