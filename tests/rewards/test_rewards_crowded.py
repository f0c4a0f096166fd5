"""What takes long because the machine is crowded is no wrong answer: processor time decides, and who waits may ask
again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import crowded
from grouprl.processes.forked_call_main import ForkedCall, answer
from grouprl.rewards import score
from grouprl.rewards.contract import Crowded
from grouprl.rewards.reward_workers import RewardWorkers
from grouprl.rewards.verifier_calls import ALLOWANCE, Apart, Spoiled


@pytest.fixture
def there(tmp_path: Path) -> Path:
    path = tmp_path / "crowd"
    path.touch()
    return path


def test_a_third_of_the_processor_time_is_not_all_of_it(there: Path) -> None:
    """0.1 s of 0.3 s were used when the time on the wall was over."""
    waiting = ForkedCall("", (str(there),), (0.3, 0.6, 1 << 30))
    assert answer(crowded.while_it_is_there, waiting) == ["overdue", "wall"]
    assert answer(crowded.endless, ForkedCall("", ("",), (0.3, 30, 1 << 30))) == ["overdue", "cpu"]


def test_a_call_that_was_given_no_time_is_made_again(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ALLOWANCE, "timeout", 1.0)
    with pytest.raises(Crowded, match=r"less than 0\.2 s of processor time within 0\.8 s"):
        Apart("crowded:while_it_is_there")(str(there))
    threading.Timer(1.0, there.unlink).start()
    assert Apart("crowded:while_it_is_there")(str(there)) == "done"
    assert isinstance(Apart("crowded:endless")(""), Spoiled)


def test_workers_ask_again_when_the_others_are_done(there: Path) -> None:
    nowhere = str(there.with_name("nowhere"))
    workers = RewardWorkers(crowded.verdict, 1, timeout=2.5, memory_gb=4)
    try:
        threading.Timer(3.0, there.unlink).start()
        texts = [str(there), nowhere, "endless"]
        scores = score(workers, texts, [{}] * 3, ids=texts)
    finally:
        workers.close()
    assert scores.problems == []
    assert scores.reward_b.tolist() == [1, 1, 0]


def test_what_stays_without_time_is_a_failure_and_no_zero(there: Path) -> None:
    workers = RewardWorkers(crowded.verdict, 1, timeout=2.5, memory_gb=4)
    try:
        scores = score(workers, [str(there)], [{}], ids=["a"])
    finally:
        workers.close()
    assert scores.status_b.tolist() == ["timeout"]
    assert "this machine gave" in str(scores.problems[0])
