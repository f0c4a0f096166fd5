"""Which call a worker is sent next."""

from __future__ import annotations

import itertools
import pickle
from typing import Any, cast

import pytest

from grouprl.envs.environment_pool_slots import AHEAD, QUICK, SENT, Slot, StageCall


class Sent:
    """Stands for a worker process: keeps what it is sent."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str]] = []

    def send(self, frame: bytes) -> None:
        _, method, episode, _ = pickle.loads(frame)
        self.calls.append((episode, method))


def slot(*queued: StageCall, seconds: float, together: bool = False) -> tuple[Slot, Sent]:
    """Return a worker whose calls usually take `seconds`, and what it is sent."""
    process = Sent()
    made = Slot(cast(Any, process), 0, 60.0, deadline=0.0, ready=True, together=together)
    made.queued.extend(queued)
    made.usual = {"reset": seconds, "step": seconds, "close": seconds}
    return made, process


def answer_all(made: Slot, number: Any) -> None:
    """Answer calls one after the other; each makes room for the next."""
    while made.sent:
        made.taken(next(iter(made.sent)), made.usual["step"])
        made.feed(number)


def test_the_episode_that_has_come_furthest_is_played_first():
    made, process = slot(
        *(StageCall(episode, "step", (), turn=turn) for episode, turn in enumerate((1, 3, 0, 3))), seconds=1
    )
    number = itertools.count(1)
    made.feed(number)
    assert process.calls == [(1, "step"), (3, "step"), (0, "step")]  # of equals the one that asked first
    assert len(process.calls) == SENT
    made.queued.append(StageCall(1, "step", (), turn=4))
    answer_all(made, number)
    assert process.calls[SENT:] == [(1, "step"), (2, "step")]


@pytest.mark.parametrize("seconds", [QUICK / 2, 1.0])
@pytest.mark.parametrize("together", [False, True])
def test_an_episode_that_is_brought_back_makes_its_calls_in_order(seconds: float, together: bool):
    replayed = [
        StageCall(7, method, (), answered=True, turn=turn) for turn, method in enumerate(("reset", "step", "step"))
    ]
    again = (StageCall(7, "close", (), answered=True), *replayed, StageCall(7, "score", (), turn=3))
    made, process = slot(StageCall(5, "step", (), turn=2), *again, StageCall(6, "step", (), turn=9), seconds=seconds)
    made.together = together
    number = itertools.count(1)
    made.feed(number)
    if not together:
        answer_all(made, number)
    assert [method for episode, method in process.calls if episode == 7] == ["close", "reset", "step", "step", "score"]
    assert len(process.calls) == 7


def test_quick_calls_are_sent_as_they_came():
    calls = [StageCall(episode, "step", (), turn=episode % 5) for episode in range(AHEAD + 4)]
    made, process = slot(*calls, seconds=QUICK / 2)
    made.feed(itertools.count(1))
    assert process.calls == [(episode, "step") for episode in range(AHEAD)]
