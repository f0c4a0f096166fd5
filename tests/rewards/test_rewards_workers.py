"""Rewards in worker processes: every way in which a reward can misbehave, on real workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grouprl.core.errors import InputError, RunError
from grouprl.processes.frames import BadReply
from grouprl.rewards import combine, load_reward, numeric_match, regex_format, score
from grouprl.rewards import reward_workers as module
from grouprl.rewards.reward_worker import read_verdict
from grouprl.rewards.reward_workers import RewardWorkers
from grouprl.rewards.validation import Verdict
from reward_processes import CLOCK, FILE, alive, children, gone, members, scores_of, workers_of


@pytest.fixture(scope="module")
def moody() -> Any:
    workers = RewardWorkers(load_reward(f"{FILE}:moody"), 2, timeout=CLOCK, memory_gb=2)
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def patient() -> Any:
    """The same with a clock that no busy machine runs out of."""
    workers = RewardWorkers(load_reward(f"{FILE}:moody"), 2, timeout=60, memory_gb=2)
    yield workers
    workers.close()


BAD = [
    ("raise", "error", "raised KeyError: 'missing'", "DEEDS[completion]() if completion in DEEDS"),
    ("raise much", "error", "raised ValueError", "Traceback"),
    ("nan", "bad_value", "returned nan", ""),
    ("inf", "bad_value", "returned -inf", ""),
    ("none", "not_applicable", "None", ""),
    ("string", "bad_value", "returned '1.0' (str)", ""),
    ("list", "bad_value", "returned [1.0] (list)", ""),
    ("cursed", "bad_value", "an object of type Cursed; reading it raised RuntimeError", ""),
    ("nested", "bad_value", "component 'a'", ""),
    ("sys.exit", "error", "raised SystemExit: 7", "Traceback"),
    ("os._exit", "error", "ended by itself with exit code 7", ""),
    ("interrupt", "error", "ended by the signal SIGINT", "raise KeyboardInterrupt"),
    ("segfault", "error", "ended by the signal SIGSEGV", "Segmentation fault"),
    ("kill", "error", "ended by the signal SIGKILL", ""),
    ("stop", "timeout", f"returned nothing within {CLOCK:g} s", ""),
    ("endless", "timeout", f"returned nothing within {CLOCK:g} s", "in endless"),
    ("endless in C", "timeout", f"returned nothing within {CLOCK:g} s", "fullmatch"),
    ("swallow", "timeout", f"returned nothing within {CLOCK:g} s", "in swallow_everything"),
    ("gigabytes", "error", "raised MemoryError", "Traceback"),
    ("recursion", "error", "raised RecursionError", "Traceback"),
    ("closes files", "error", "ended by itself with exit code 1", "Bad file descriptor"),
    ("nonsense", "error", "sent no verdict", ""),
]


@pytest.mark.parametrize(("deed", "status", "what", "evidence"), BAD, ids=[case[0] for case in BAD])
def test_a_bad_completion_fails_with_evidence_and_the_others_keep_their_scores(
    moody: RewardWorkers, patient: RewardWorkers, deed: str, status: str, what: str, evidence: str
) -> None:
    workers = moody if status == "timeout" else patient
    scores = scores_of(workers, ["a", "right", deed, "b", "c", "slow but fine", "right", "d"])
    assert scores.status_b.tolist() == ["ok", "ok", status, *["ok"] * 5]
    np.testing.assert_array_equal(scores.reward_b, [0.5, 0.5, np.nan, *[0.5] * 5])
    assert scores.correct_b.tolist() == [False, True, False, False, False, False, True, False]
    (problem,) = scores.problems
    assert problem.sample_id == "s2"
    assert what in problem.what
    assert evidence in problem.trace
    assert len(problem.what) + len(problem.trace) < 10_000


@pytest.mark.parametrize("deed", ["megabytes", "child returns", "child stays", "stdin"])
def test_a_strange_but_harmless_completion_is_scored_once(patient: RewardWorkers, deed: str) -> None:
    scores = scores_of(patient, ["a", deed, "b", "right"])
    assert scores.reward_b.tolist() == [0.5] * 4
    assert not scores.problems


def test_all_at_once(patient: RewardWorkers) -> None:
    deeds = [case[0] for case in BAD if case[1] != "timeout"]
    scores = scores_of(patient, [text for deed in deeds for text in (deed, "right")])
    assert scores.status_b[::2].tolist() == [case[1] for case in BAD if case[1] != "timeout"]
    assert scores.correct_b[1::2].all()


def test_children_of_a_reward_that_hangs_end_with_it(tmp_path: Path) -> None:
    workers = workers_of("leaves_a_child", clock=0.5)
    scores = scores_of(workers, ["a"], {"file": str(tmp_path / "pid")})
    assert scores.status_b.tolist() == ["timeout"]
    assert gone(int((tmp_path / "pid").read_text()))
    workers.close()


def test_closing_leaves_no_process() -> None:
    before, files = children(), os.listdir("/proc/self/fd")
    workers = workers_of("moody", count=3)
    scores_of(workers, ["child stays"] * 4 + ["os._exit"] * 3)
    workers._fill_up()
    assert len(children() - before) == 3
    groups = [slot.process.child.pid for slot in workers._slots]
    workers.close()
    workers.close()
    assert children() == before
    assert not any(map(members, groups))
    assert len(os.listdir("/proc/self/fd")) == len(files)
    with pytest.raises(RunError, match="are closed"):
        scores_of(workers, ["a"])


def test_an_interrupt_ends_what_was_going_on_and_the_workers_stay_usable() -> None:
    workers = workers_of("moody", count=2, clock=30)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            scores_of(workers, ["endless", "a", "b"])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert scores_of(workers, ["right", "a"]).correct_b.tolist() == [True, False]
    workers.close()


def test_workers_end_with_a_parent_that_is_killed() -> None:
    script = (
        "from grouprl.rewards import load_reward, score\n"
        "from grouprl.rewards.reward_workers import RewardWorkers\n"
        f"w = RewardWorkers(load_reward({str(FILE)!r} + ':moody'), 2, timeout=60, memory_gb=2)\n"
        "print(*[s.process.child.pid for s in w._slots], flush=True)\n"
        "score(w, ['endless', 'endless'], [{}, {}], ids=['a', 'b'])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    time.sleep(0.3)
    assert len(pids) == 2
    assert all(map(alive, pids))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert all(map(gone, pids))


def test_verdicts_do_not_depend_on_the_number_of_workers() -> None:
    reward = combine(
        [("match", numeric_match, 1.0), ("form", regex_format, 0.5), ("own", load_reward(f"{FILE}:moody"), 2)]
    )
    texts = [["none", "raise", "nan"][i % 3] if i % 7 == 0 else f"{i % 5} and {i % 11}" for i in range(150)]
    columns = [{"answer": str(i % 5)} for i in range(150)]
    ids = [str(i) for i in range(150)]
    here = score(reward, texts, columns, ids=ids)
    assert {"ok", "error", "bad_value"} <= set(here.status_b.tolist())
    for count in (1, 3):
        workers = RewardWorkers(reward, count, timeout=10, memory_gb=2)
        there = score(workers, texts, columns, ids=ids)
        np.testing.assert_array_equal(there.reward_b, here.reward_b)
        assert there.status_b.tolist() == here.status_b.tolist()
        assert there.correct_b.tolist() == here.correct_b.tolist()
        assert list(there.components) == list(here.components)
        for name, values in here.components.items():
            np.testing.assert_array_equal(there.components[name], values)
        assert [p.what for p in there.problems] == [p.what for p in here.problems]
        workers.close()


GOOD = [3, "ok", 0.5, {"a": 0.5}, True, "", "", False]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, "3"),
        (1, "fine"),
        (2, float("nan")),
        (2, 1),
        (2, None),
        (3, []),
        (3, {"a": "b"}),
        (4, 1),
        (5, None),
        (6, 0),
        (7, 0),
    ],
)
def test_a_reply_that_states_no_verdict_is_refused(place: int, value: Any) -> None:
    assert read_verdict(GOOD) == (3, Verdict("ok", 0.5, {"a": 0.5}, True))
    with pytest.raises(BadReply):
        read_verdict([*GOOD[:place], value, *GOOD[place + 1 :]])
    with pytest.raises(BadReply):
        read_verdict(GOOD[:-1])


def test_no_completions_and_one_call(moody: RewardWorkers) -> None:
    assert len(scores_of(moody, []).reward_b) == 0
    assert moody("right") == {"reward": 0.5, "half": 0.5, "correct": 1.0}
    assert moody("none") is None
    with pytest.raises(InputError, match="KeyError"):
        moody("raise")


def test_a_worker_imports_no_torch_and_leaves_no_core() -> None:
    workers = workers_of("about", count=2)
    scores = scores_of(workers, ["a"] * 8)
    assert not scores.components["torch"].any()
    assert not scores.components["core"].any()
    assert os.getpid() not in scores.components["pid"].tolist()
    workers.close()


def test_a_reward_may_import_from_the_package_itself(tmp_path: Path) -> None:
    path = tmp_path / "from_package.py"
    path.write_text("from grouprl import InputError, method\ndef f(completion):\n    return float(callable(method))\n")
    workers = RewardWorkers(load_reward(f"{path}:f"), 1, timeout=10, memory_gb=4)
    assert scores_of(workers, ["a"]).reward_b.tolist() == [1.0]
    workers.close()


def test_a_reward_may_begin_with_any_module_of_the_package(tmp_path: Path) -> None:
    path = tmp_path / "deep.py"
    imports = "from grouprl.algorithms.data_part import RunContext\nfrom grouprl import method\n"
    path.write_text(imports + "def f(completion):\n    return float(method.__name__ == 'method')\n")
    workers = RewardWorkers(load_reward(f"{path}:f"), 1, timeout=60, memory_gb=4)
    assert scores_of(workers, ["a"]).reward_b.tolist() == [1.0]
    workers.close()


def test_a_batch_reward_sees_all_completions_and_fails_as_a_whole() -> None:
    workers = workers_of("rank", count=2, clock=0.2)
    assert scores_of(workers, ["c", "a", "b"]).reward_b.tolist() == [2 / 3, 0, 1 / 3]
    began = time.monotonic()
    assert scores_of(workers, ["c", "hang", "b"]).status_b.tolist() == ["timeout"] * 3
    assert time.monotonic() - began > 0.6
    short = scores_of(workers, ["c", "short"])
    assert short.status_b.tolist() == ["bad_value"] * 2
    assert "1 values for 2 completions" in short.problems[0].what
    workers.close()


def test_async_verdicts_are_awaited_together_and_given_up_one_by_one() -> None:
    workers = workers_of("judge", count=2, clock=0.5)
    began = time.monotonic()
    scores = scores_of(workers, ["right", "wrong"] * 10)
    assert time.monotonic() - began < 20
    assert scores.reward_b.tolist() == [1.0, 0.0] * 10
    scores = scores_of(workers, ["right", "never", "exit", "right"])
    assert scores.status_b.tolist() == ["ok", "timeout", "error", "ok"]
    assert "SystemExit" in scores.problems[1].what
    scores = scores_of(workers, ["right", "block", "right", "right"])
    assert scores.status_b.tolist() == ["ok", "timeout", "ok", "ok"]
    assert "in endless" in scores.problems[0].trace
    workers.close()


def test_missing_columns_and_columns_that_cannot_travel_are_errors_in_words() -> None:
    workers = RewardWorkers(numeric_match, 1, timeout=5, memory_gb=2)
    with pytest.raises(InputError, match="needs the column 'answer', which sample s0 lacks"):
        scores_of(workers, ["1"], {"anser": "1"})
    with pytest.raises(InputError, match=r"columns of sample s0 .* cannot be sent"):
        scores_of(workers, ["1"], {"answer": "1", "file": lambda: 1})
    assert scores_of(workers, ["1"], {"answer": "1"}).reward_b.tolist() == [1.0]
    workers.close()


def test_a_reward_that_ends_every_worker_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_A_ROW", 3)
    workers = workers_of("moody")
    scores = scores_of(workers, ["os._exit"] * 40)
    assert scores.status_b.tolist() == ["error"] * 40
    assert "not scored" in scores.problems[-1].what
    assert sum("exit code 7" in problem.what for problem in scores.problems) == 3
    workers.close()
