"""The rule that bounds staleness, and the account of what was requested."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_context import Numbers
from grouprl.core.errors import InputError
from grouprl.orchestrator.asynchronous.admission import Admission
from grouprl.orchestrator.asynchronous.request_records import pack_request, unpack_request
from grouprl.orchestrator.asynchronous.starvation import STARVED, Starvation
from grouprl.records.requests import RolloutRequest


@pytest.mark.parametrize(
    ("version", "accepted", "running", "capacity"),
    [(0, 0, 0, 640), (0, 640, 0, 0), (1, 640, 0, 128), (10, 1280, 0, 640), (0, 600, 50, 0), (1, 600, 40, 128)],
)
def test_capacity(version: int, accepted: int, running: int, capacity: int) -> None:
    """Golden values of AReaL's rule for a bound of 4 and batches of 128; accepted and running count alike."""
    assert Admission(4, 128, version, accepted, running).capacity == capacity


@pytest.mark.parametrize(("bound", "batch", "version"), [(0, 128, 7), (1, 32, 3), (4, 128, 10)])
def test_after_a_resume_there_is_room_for_a_whole_bound(bound: int, batch: int, version: int) -> None:
    assert Admission.resumed(bound, batch, version).capacity == (bound + 1) * batch


def test_no_more_is_admitted_than_there_is_room_for() -> None:
    rule = Admission(1, 4)
    rule.admit(8)
    with pytest.raises(InputError, match="1 prompts are requested with room for 0"):
        rule.admit(1)


def test_a_bound_of_zero_admits_one_batch_a_step() -> None:
    rule = Admission(0, 4)
    for version in range(3):
        assert rule.version == version
        rule.miss(4)
        assert rule.capacity == 4
        rule.admit(4)
        assert rule.capacity == 0
        rule.settle(4)
        assert rule.capacity == 0
        rule.advance()


def test_rejected_prompts_make_room_for_others() -> None:
    rule = Admission(0, 4)
    rule.miss(4)
    rule.admit(4)
    rule.settle(4)
    rule.miss(3)
    assert rule.capacity == 3


def test_a_step_that_got_too_little_does_not_let_later_ones_run_further_ahead() -> None:
    rule = Admission(1, 4)
    rule.admit(8)
    rule.miss(4)
    rule.settle(4)
    rule.miss(4)
    rule.settle(4)
    rule.miss(3)
    rule.advance()
    assert (rule.version, rule.accepted, rule.running) == (1, 4, 0)
    assert rule.capacity == 2 * 4, "as after a full step, not three more"


@settings(deadline=None)
@given(
    bound=st.integers(0, 5),
    batch=st.integers(1, 6),
    rounds=st.integers(1, 3),
    data=st.data(),
)
def test_in_order_nothing_is_older_than_the_bound(bound: int, batch: int, rounds: int, data: st.DataObject) -> None:
    """Prompts taken in order, any number of them rejected and requested again: ages stay within the bound."""
    rule, line = Admission(bound, batch), []
    for version in range(12):
        missing = batch
        for _ in range(rounds):
            rule.miss(missing)
            count = data.draw(st.integers(0, rule.capacity)) if len(line) >= missing else rule.capacity
            rule.admit(count)
            line += [version] * count
            taken, line = line[:missing], line[missing:]
            assert len(taken) == missing
            assert all(version - sampled <= bound for sampled in taken)
            rule.settle(missing)
            missing = data.draw(st.integers(0, missing))
            if not missing:
                break
        rule.miss(missing)
        rule.advance()
        assert rule.running == len(line)


def test_a_prompt_starves_when_its_completions_are_lost_again_and_again() -> None:
    hunger = Starvation()
    assert [hunger.lost([7, 8]) for _ in range(STARVED - 1)] == [[]] * (STARVED - 1)
    hunger.fed([8, 9])
    again = Starvation()
    again.restore(hunger.state())
    assert again.lost([7, 8]) == [7], "8 was trained on meanwhile"
    assert again.lost([7]) == [], "said once"


def test_prompts_under_way_are_plain_data() -> None:
    task = Numbers()
    request = RolloutRequest(
        5, 3, task.example("train", 3), 4, first=2, temperature=0.7, max_new_tokens=9, keys={"budget": 1}
    )
    assert unpack_request(pack_request(request), task) == request
    assert pack_request(request)["example"] == "n/3"
    with pytest.raises(InputError, match="no prompt 'x'"):
        unpack_request(pack_request(request) | {"example": "x"}, task)
