"""Rewards in worker processes: every way in which a reward can misbehave, on real workers."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from grouprl.errors import InputError, RunError
from grouprl.rewards import combine, exact_match, load_reward, math_equal, numeric_match, regex_format, score
from grouprl.rewards import workers as module
from grouprl.rewards.judging import Judge, Verdict
from grouprl.rewards.process import BadReply, read_verdict
from grouprl.rewards.sending import CannotSend, harmless
from grouprl.rewards.workers import RewardWorkers, in_workers
from grouprl.tasks import load_task
from grouprl.train.config import Reward as Settings
from grouprl.train.config import parse_config
from grouprl.train.loop import train
from grouprl.train.reward import open_reward, opened_reward

REWARDS = '''
import asyncio, ctypes, os, re, resource, signal, subprocess, sys, time
from grouprl.rewards import known_examples


class Cursed:
    def __repr__(self):
        raise RuntimeError("do not look")


def endless():
    while True:
        pass


def die(how):
    os.kill(os.getpid(), how)
    time.sleep(60)


def child_that_returns():
    return 0.5 if os.fork() else 0.25


def child_that_stays():
    if os.fork() == 0:
        time.sleep(60)
    return 0.5


def swallow_everything():
    while True:
        try:
            endless()
        except BaseException:
            pass


def no_files_left():
    for number in range(3, 64):
        try:
            os.close(number)
        except OSError:
            pass
    return 0.5


def interrupt():
    raise KeyboardInterrupt


def shout():
    print("x" * 5_000_000)
    return 0.5


def talk_into_the_replies():
    for number in range(3, 64):
        try:
            os.write(number, b"nonsense\\n")
        except OSError:
            pass
    return 0.5


DEEDS = {
    "raise": lambda: {}["missing"],
    "raise much": lambda: int("9" * 10**6 + "x"),
    "nan": lambda: float("nan"),
    "inf": lambda: -float("inf"),
    "none": lambda: None,
    "string": lambda: "1.0",
    "list": lambda: [1.0],
    "cursed": Cursed,
    "nested": lambda: {"a": {"b": 1.0}},
    "sys.exit": lambda: sys.exit(7),
    "os._exit": lambda: os._exit(7),
    "interrupt": interrupt,
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: die(signal.SIGKILL),
    "stop": lambda: die(signal.SIGSTOP),
    "endless": endless,
    "endless in C": lambda: re.fullmatch("(a+)+b", "a" * 64),
    "swallow": swallow_everything,
    "gigabytes": lambda: len(bytearray(16 << 30)),
    "recursion": lambda: DEEDS["recursion"](),
    "megabytes": shout,
    "child returns": child_that_returns,
    "child stays": child_that_stays,
    "closes files": no_files_left,
    "nonsense": talk_into_the_replies,
    "stdin": lambda: float(sys.stdin.read() == "") / 2,
}


def moody(completion, **_):
    """Half a point for any text but the ones above."""
    if completion == "slow but fine":
        time.sleep(0.2)
    return DEEDS[completion]() if completion in DEEDS else {"half": 0.5, "correct": completion == "right"}


def leaves_a_child(completion, file):
    child = subprocess.Popen(["sleep", "60"])
    with open(file, "w") as out:
        out.write(str(child.pid))
    endless()


def about(completion):
    return {"torch": "torch" in sys.modules, "pid": os.getpid(), "core": resource.getrlimit(resource.RLIMIT_CORE)[0]}


def rank(completions, **_):
    if "hang" in completions:
        endless()
    if "short" in completions:
        return [1.0]
    return [sorted(completions).index(text) / len(completions) for text in completions]


async def judge(completion):
    if completion == "block":
        endless()
    await asyncio.sleep(60 if completion == "never" else 0.2)
    if completion == "exit":
        sys.exit(1)
    return float(completion == "right")


@known_examples(("a", {}, True), ("b", {}, True))
def wrong_about_b(completion):
    return float(completion == "a")


@known_examples(("a", {}, True))
def hangs_on_a(completion):
    endless()
'''
CLOCK = 0.7


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewards") / "bad_rewards.py"
    path.write_text(REWARDS)
    return path


@pytest.fixture(scope="module")
def moody(file: Path) -> Any:
    workers = RewardWorkers(load_reward(f"{file}:moody"), 2, timeout=CLOCK, memory_gb=2)
    yield workers
    workers.close()


def of(file: Path, name: str, count: int = 1, clock: float = CLOCK) -> RewardWorkers:
    return RewardWorkers(load_reward(f"{file}:{name}"), count, timeout=clock, memory_gb=2)


def scores_of(reward: Any, texts: list[str], columns: dict[str, Any] | None = None) -> Any:
    return score(reward, texts, [columns or {}] * len(texts), ids=[f"s{i}" for i in range(len(texts))])


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def members(group: int) -> list[int]:
    listed = subprocess.run(["pgrep", "-g", str(group)], capture_output=True, text=True).stdout.split()
    return [pid for pid in map(int, listed) if not gone(pid)]


def children() -> set[int]:
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return {int(line.split()[0]) for line in listed.stdout.splitlines() if "worker.py" in line}


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
    ("stop", "timeout", "gave no verdict within 0.7 s", ""),
    ("endless", "timeout", "gave no verdict within 0.7 s", "in endless"),
    ("endless in C", "timeout", "gave no verdict within 0.7 s", "fullmatch"),
    ("swallow", "timeout", "gave no verdict within 0.7 s", "in swallow_everything"),
    ("gigabytes", "error", "raised MemoryError", "Traceback"),
    ("recursion", "error", "raised RecursionError", "Traceback"),
    ("closes files", "error", "ended by itself with exit code 1", "Bad file descriptor"),
    ("nonsense", "error", "sent what is no verdict", ""),
]


@pytest.mark.parametrize(("deed", "status", "what", "evidence"), BAD, ids=[case[0] for case in BAD])
def test_a_bad_answer_fails_with_evidence_and_the_others_keep_their_scores(
    moody: RewardWorkers, deed: str, status: str, what: str, evidence: str
) -> None:
    began = time.monotonic()
    scores = scores_of(moody, ["a", "right", deed, "b", "c", "slow but fine", "right", "d"])
    assert time.monotonic() - began < CLOCK + 4
    assert scores.status_b.tolist() == ["ok", "ok", status, *["ok"] * 5]
    np.testing.assert_array_equal(scores.reward_b, [0.5, 0.5, np.nan, *[0.5] * 5])
    assert scores.correct_b.tolist() == [False, True, False, False, False, False, True, False]
    (problem,) = scores.problems
    assert problem.sample_id == "s2"
    assert what in problem.what
    assert evidence in problem.trace
    assert len(problem.what) + len(problem.trace) < 10_000


@pytest.mark.parametrize("deed", ["megabytes", "child returns", "child stays", "stdin"])
def test_a_strange_but_harmless_answer_is_scored_once(moody: RewardWorkers, deed: str) -> None:
    scores = scores_of(moody, ["a", deed, "b", "right"])
    assert scores.reward_b.tolist() == [0.5] * 4
    assert not scores.problems


def test_all_at_once(moody: RewardWorkers) -> None:
    deeds = [case[0] for case in BAD if case[1] != "timeout"]
    scores = scores_of(moody, [text for deed in deeds for text in (deed, "right")])
    assert scores.status_b[::2].tolist() == [case[1] for case in BAD if case[1] != "timeout"]
    assert scores.correct_b[1::2].all()


def test_children_of_a_reward_that_hangs_end_with_it(file: Path, tmp_path: Path) -> None:
    workers = of(file, "leaves_a_child", clock=0.5)
    scores = scores_of(workers, ["a"], {"file": str(tmp_path / "pid")})
    assert scores.status_b.tolist() == ["timeout"]
    assert gone(int((tmp_path / "pid").read_text()))
    workers.close()


def test_closing_leaves_no_process(file: Path) -> None:
    before, files = children(), os.listdir("/proc/self/fd")
    workers = of(file, "moody", count=3)
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


def test_an_interrupt_ends_what_was_going_on_and_the_workers_stay_usable(file: Path) -> None:
    workers = of(file, "moody", count=2, clock=30)

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


def test_workers_end_with_a_parent_that_is_killed(file: Path) -> None:
    script = (
        "from grouprl.rewards import load_reward, score\n"
        "from grouprl.rewards.workers import RewardWorkers\n"
        f"w = RewardWorkers(load_reward({str(file)!r} + ':moody'), 2, timeout=60, memory_gb=2)\n"
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


def test_verdicts_do_not_depend_on_the_number_of_workers(file: Path) -> None:
    reward = combine(
        [("match", numeric_match, 1.0), ("form", regex_format, 0.5), ("own", load_reward(f"{file}:moody"), 2)]
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


GOOD = [3, "ok", 0.5, {"a": 0.5}, True, "", ""]


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, "3"), (1, "fine"), (2, float("nan")), (2, 1), (2, None), (3, []), (3, {"a": "b"}), (4, 1), (5, None), (6, 0)],
)
def test_a_reply_that_states_no_verdict_is_refused(place: int, value: Any) -> None:
    assert read_verdict(GOOD) == (3, Verdict("ok", 0.5, {"a": 0.5}, True))
    with pytest.raises(BadReply):
        read_verdict([*GOOD[:place], value, *GOOD[place + 1 :]])
    with pytest.raises(BadReply):
        read_verdict(GOOD[:-1])


def test_no_answers_and_one_call(moody: RewardWorkers) -> None:
    assert len(scores_of(moody, []).reward_b) == 0
    assert moody("right") == {"reward": 0.5, "half": 0.5, "correct": 1.0}
    assert moody("none") is None
    with pytest.raises(InputError, match="KeyError"):
        moody("raise")


def test_a_worker_imports_no_torch_and_leaves_no_core(file: Path) -> None:
    workers = of(file, "about", count=2)
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


def test_a_batch_reward_sees_all_answers_and_fails_as_a_whole(file: Path) -> None:
    workers = of(file, "rank", count=2, clock=0.2)
    assert scores_of(workers, ["c", "a", "b"]).reward_b.tolist() == [2 / 3, 0, 1 / 3]
    began = time.monotonic()
    assert scores_of(workers, ["c", "hang", "b"]).status_b.tolist() == ["timeout"] * 3
    assert time.monotonic() - began > 0.6
    short = scores_of(workers, ["c", "short"])
    assert short.status_b.tolist() == ["bad_value"] * 2
    assert "1 values for 2 answers" in short.problems[0].what
    workers.close()


def test_async_answers_are_awaited_together_and_given_up_one_by_one(file: Path) -> None:
    workers = of(file, "judge", count=2, clock=0.5)
    began = time.monotonic()
    scores = scores_of(workers, ["right", "wrong"] * 10)
    assert time.monotonic() - began < 2
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


def test_a_worker_that_is_replaced_has_the_code_that_the_run_began_with(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    path.write_text("import os\ndef f(completion):\n    return 1.0 if completion else os._exit(1)\n")
    workers = RewardWorkers(load_reward(f"{path}:f"), 1, timeout=5, memory_gb=2)
    path.write_text("def f(completion):\n    return 2.0\n")
    assert scores_of(workers, [""]).status_b.tolist() == ["error"]
    assert scores_of(workers, ["a"]).reward_b.tolist() == [1.0]
    workers.close()


def test_a_reward_that_ends_every_worker_is_given_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_A_ROW", 3)
    workers = of(file, "moody")
    scores = scores_of(workers, ["os._exit"] * 40)
    assert scores.status_b.tolist() == ["error"] * 40
    assert "not judged" in scores.problems[-1].what
    assert sum("exit code 7" in problem.what for problem in scores.problems) == 3
    workers.close()


PLACES = """
from grouprl.rewards import exact_match
from grouprl.tasks import Task, Question

class Judge:
    lock = __import__("threading").Lock()
    def __init__(self):
        self.lock = Judge.lock
    def __call__(self, completion):
        return 0.5
    def method(self, completion):
        return 0.25

judge = Judge()

def scaled(completion, by=1.0):
    return len(completion) * by

class Mine(Task):
    name = "mine"
    reward = staticmethod(scaled)
    def question(self, split, index):
        return Question(str(index), "?")
    def size(self, split):
        return 1
"""


def test_rewards_travel_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "places.py").write_text(PLACES)
    monkeypatch.chdir(tmp_path)
    combined = [{"name": "places.py:scaled", "by": 2.0}, {"name": "places:judge.method", "weight": 4.0}]
    try:
        for spec, expected in (
            ("places.py:judge", 0.5),
            ("places:judge", 0.5),
            ("./places.py:judge.method", 0.25),
            ("places:judge.method", 0.25),
            (combined, 5.0),
        ):
            with closing(RewardWorkers(load_reward(spec), 1, timeout=5, memory_gb=2)) as workers:
                assert scores_of(workers, ["ab"]).reward_b.tolist() == [expected]
        with opened_reward(Settings(workers=1), load_task("places.py:Mine")) as (reward, _):
            assert scores_of(reward, ["abc"]).reward_b.tolist() == [3.0]
    finally:
        sys.modules.pop("places", None)


def test_what_cannot_be_sent_runs_here_with_a_note_or_is_refused() -> None:
    def local(completion: str) -> float:
        return 1.0

    for reward in (local, lambda completion: 1.0):
        found, note = in_workers(reward, "auto", timeout=1, memory_gb=2)
        assert found is reward
        assert "cannot be sent to a worker process" in note
        assert "reward.timeout does not hold" in note
        with pytest.raises(CannotSend, match="cannot be sent"):
            in_workers(reward, 1, timeout=1, memory_gb=2)
    assert in_workers(local, 0, timeout=1, memory_gb=2) == (local, "")


def test_a_reward_that_only_its_parent_can_import(tmp_path: Path) -> None:
    path = tmp_path / "picky.py"
    path.write_text(
        "import sys\nassert 'worker.py' not in sys.argv[0], 'not here'\ndef f(completion):\n    return 1.0\n"
    )
    reward = load_reward(f"{path}:f")
    with pytest.raises(CannotSend, match=r"could be started.*(?s:.)*not here"):
        in_workers(reward, 2, timeout=1, memory_gb=2)
    assert in_workers(reward, "auto", timeout=1, memory_gb=2)[0] is reward


def test_auto_keeps_what_always_ends_in_this_process(file: Path) -> None:
    own = load_reward(f"{file}:moody")
    pattern = load_reward({"name": "regex_format", "pattern": "(a+)+b"})
    for reward in (exact_match, numeric_match, load_task("addition").reward, load_task("countdown").reward):
        assert harmless(reward)
    assert harmless(combine([("a", exact_match, 1.0), ("b", regex_format, 1.0)]))
    for reward in (own, math_equal, pattern, combine([("a", exact_match, 1.0), ("b", own, 1.0)])):
        assert not harmless(reward)
    assert in_workers(exact_match, "auto", timeout=1, memory_gb=2) == (exact_match, "")
    found, note = in_workers(own, "auto", timeout=1, memory_gb=2)
    assert isinstance(found, RewardWorkers)
    assert not note
    found.close()


def test_the_self_test_goes_through_the_workers(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, before = load_task("addition"), children()
    with pytest.raises(InputError, match=r"gives 0 to 'b'.*known to be right.*self_test"):
        open_reward(Settings(function=f"{file}:wrong_about_b"), task)
    assert children() == before
    with opened_reward(Settings(function=f"{file}:wrong_about_b", self_test=False), task) as (reward, notes):
        assert isinstance(reward, RewardWorkers)
        assert notes == []
    monkeypatch.setattr(module, "START_SECONDS", 3.0)
    with pytest.raises(InputError, match=r"not ready after 3 s(?s:.)*in hangs_on_a"):
        open_reward(Settings(function=f"{file}:hangs_on_a"), task)
    with opened_reward(Settings(workers=1), task) as (reward, _):
        assert isinstance(reward, Judge)
    assert children() == before


def test_the_self_test_finds_a_task_whose_reward_is_wrong() -> None:
    task = load_task("addition")
    with pytest.raises(InputError, match="known to be wrong"):
        open_reward(Settings(correct_at=0.0), task)


RUN_REWARD = """
import time

def trap(completion, answer, **_):
    if answer.endswith("7"):
        print("caught by", answer)
        time.sleep(60)
    return float(completion.endswith(answer))
"""


def run_config(reward: dict[str, Any]) -> Any:
    return parse_config(
        {
            "task": {"name": "addition", "digits": 1},
            "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
            "steps": 2,
            "batch": {"prompts": 10, "group": 2},
            "eval": {"every": 0, "questions": 1, "final_questions": 1},
            "reward": reward,
            "run": {"threads": 1},
        }
    )


def test_a_run_goes_on_when_its_reward_hangs_on_some_answers(tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text(RUN_REWARD)
    reward = {"function": f"{tmp_path}/trap.py:trap", "timeout": 0.4, "workers": 2, "max_failed_fraction": 1.0}
    before = children()
    folder = train(run_config(reward), folder=tmp_path / "run", console=Console(file=io.StringIO())).folder
    assert children() == before
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["phase"] == "train"]
    assert [line["step"] for line in steps] == [1, 2]
    rows = [row for path in sorted((folder / "rollouts").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    late = [row for row in rows if row["status"] == "timeout"]
    assert len(late) == sum(line["reward_timeouts"] for line in steps) > 0
    assert len(late) < len(rows)
    for row in rows:
        assert (row["problem"] is None) == (row["status"] == "ok")
        assert not (row["used"] and row["status"] != "ok")
    for row in late:
        assert row["reward"] is None
        assert "within 0.4 s" in row["problem"]
        assert "caught by" in row["problem"]
        assert "in trap" in row["problem"]


def test_a_run_that_shall_stop_at_a_failure_stops_in_words(tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text(RUN_REWARD)
    reward = {"function": f"{tmp_path}/trap.py:trap", "timeout": 0.5, "workers": 2, "on_error": "raise"}
    before = children()
    with pytest.raises(RunError, match=r"sample addition/train/\d+#\d: the reward gave no verdict (?s:.)*in trap"):
        train(run_config(reward), folder=tmp_path / "run", console=Console(file=io.StringIO()))
    assert children() == before


def test_a_run_is_the_same_with_workers_and_without(tmp_path: Path) -> None:
    (tmp_path / "length.py").write_text("def length(completion, answer):\n    return len(completion) % 3 / 2\n")
    for name, workers in (("here", 0), ("there", 2)):
        reward = {"function": f"{tmp_path}/length.py:length", "workers": workers}
        train(run_config(reward), folder=tmp_path / name, console=Console(file=io.StringIO()))
    for path in sorted((tmp_path / "here" / "rollouts").glob("*.parquet")):
        assert pq.read_table(path).equals(pq.read_table(tmp_path / "there" / "rollouts" / path.name))
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("here", "there")]
    assert weights[0] == weights[1]
