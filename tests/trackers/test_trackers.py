"""Trackers get every record once and in order, also across SIGKILL and resuming, and never stop a run."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, MissingExtra
from grouprl.core.terminal import Terminal
from grouprl.protocols.run_events import RunBegan, RunEnded, StepEnded
from grouprl.trackers import Feed, TrackerListener, choice, chosen_tracker, listener, tracker
from grouprl.trackers.feed import send_run
from grouprl.trackers.tracker import tracked_record, tracked_run
from grouprl.training.loop import train

PACKAGES = {name: known.package for name, known in choice.TRACKERS.items()}


def record(phase: str, step: int) -> dict[str, object]:
    """A line of metrics.jsonl; loss@κ is a name that not every tracker takes as it is, x/a one below another's."""
    names = {"loss@κ": step / 7, f"{phase}/x": step * 2, f"{phase}/x/a": step * 3}
    return {"phase": phase, "step": step, "ok": True, "note": "text", **names}


LINES = [
    *(record("warmup", n) for n in range(1, 4)),
    record("eval", 0),
    *(record("train", n) for n in range(1, 7)),
    record("eval", 6),
    *(record("train", n) for n in range(7, 13)),
    record("eval", 12),
]


def write(folder: Path, lines: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("task: addition\noptim: {lr: 0.001}\n", encoding="utf-8")
    text = "".join(json.dumps(line) + "\n" for line in LINES[:lines])
    (folder / "metrics.jsonl").write_text(text + '{"phase": "tra', encoding="utf-8")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return {"mlflow": {"uri": f"file:{tmp_path / 'mlruns'}"}}


PROCESS = """
import json, os, sys, time
from pathlib import Path
from grouprl.trackers import Feed, chosen_tracker
from grouprl.trackers.feed import send_run
from grouprl.trackers.tracker import tracked_record, tracked_run
folder = Path(sys.argv[1])
tracker = chosen_tracker(json.loads(sys.argv[2])).open(tracked_run(folder))
feed = Feed(folder / "metrics.jsonl", tracker)
feed.send()
if sys.argv[3] == "killed":
    time.sleep(0.3)
    os.kill(os.getpid(), 9)
assert feed.lacking() == 0
tracker.close("finished")
"""


def process(folder: Path, given: dict[str, str], end: str) -> int:
    """The exit code of a process that sends what is there; what W&B writes is whole only after its process."""
    command = [sys.executable, "-c", PROCESS, str(folder), json.dumps(given), end]
    return subprocess.run(command, timeout=300).returncode


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_killed_and_resumed_run_continues_the_same_tracker_run(
    name: str, tmp_path: Path, settings: dict[str, dict[str, str]]
) -> None:
    pytest.importorskip(PACKAGES[name])
    folder, given = tmp_path / "run", {"name": name, **settings.get(name, {})}
    write(folder, 9)
    assert process(folder, given, "killed") == -9
    write(folder, 7)  # back to the checkpoint: two lines are written again that the tracker may have
    assert process(folder, given, "closed") == 0
    write(folder, len(LINES))
    assert process(folder, given, "closed") == 0
    expected = {
        phase: [line["step"] for line in LINES if line["phase"] == phase] for phase in ("warmup", "eval", "train")
    }
    assert {phase: [step for step, _ in history(name, folder, given, phase)] for phase in expected} == expected
    assert [value for _, value in history(name, folder, given, "train")] == pytest.approx([2 * n for n in range(1, 13)])


def history(name: str, folder: Path, given: dict[str, str], phase: str) -> list[tuple[int, float]]:
    """What the tracker holds of PHASE/x, in the order in which it holds it."""
    run = tracked_run(folder)
    if name == "tensorboard":
        from grouprl.trackers.tensorboard import _events

        files = sorted((run.own / "tensorboard").iterdir(), key=lambda file: file.stat().st_mtime)
        events = [event for file in files for event in _events(file.read_bytes())]
        return [(e.step, v.simple_value) for e in events for v in e.summary.value if v.tag == f"{phase}/x"]
    if name == "wandb":
        from grouprl.trackers.weights_and_biases import _histories

        found = [
            h for file in sorted((run.own / "wandb").glob("*run-*/*.wandb")) for h in _histories(file.read_bytes())
        ]
        numbers = [each.step.num for each in found]
        assert numbers == sorted(set(numbers))
        rows = [{i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in each.item} for each in found]
        return [(row[f"{phase}/step"], row[f"{phase}/x"]) for row in rows if f"{phase}/x" in row]
    if name == "trackio":
        from trackio.sqlite_storage import SQLiteStorage

        rows = SQLiteStorage.get_logs("grouprl", f"{run.name}-{run.id}")
        assert len({row["step"] for row in rows}) == len(rows)
        return [(row[f"{phase}/step"], row[f"{phase}/x"]) for row in rows if f"{phase}/x" in row]
    from mlflow import MlflowClient

    client = MlflowClient(given["uri"])
    (place,) = [each for each in client.search_experiments() if each.name == "grouprl"]
    (found,) = client.search_runs([place.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["optim.lr"] == "0.001"
    assert "train/loss_40__3ba_" in found.data.metrics
    assert found.data.metrics["train/x.a"] == 36
    return [(each.step, each.value) for each in client.get_metric_history(found.info.run_id, f"{phase}/x")]


def test_what_mlflow_has_of_a_half_sent_record_is_not_sent_again(
    tmp_path: Path, settings: dict[str, dict[str, str]]
) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    folder = tmp_path / "run"
    write(folder, 2)
    opened = chosen_tracker({"name": "mlflow", **settings["mlflow"]}).open
    opened(tracked_run(folder)).log(tracked_record(LINES[0]))
    client = MlflowClient(settings["mlflow"]["uri"])
    place = client.get_experiment_by_name("grouprl").experiment_id
    (run,) = client.search_runs([place])
    client.log_metric(run.info.run_id, "warmup/x", 4.0, step=2)  # as far as a process came that was killed in its call
    Feed(folder / "metrics.jsonl", opened(tracked_run(folder))).send()
    for name in ("warmup/x", "warmup/x.a", "warmup/step"):
        assert [each.step for each in client.get_metric_history(run.info.run_id, name)] == [1, 2]


def test_wandb_files_of_many_blocks_are_read(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from grouprl.trackers.weights_and_biases import _kept

    folder = tmp_path / "run"
    write(folder, 1)
    many = [{"phase": "train", "step": n, **{f"{m}": n / 3 for m in range(40)}} for n in range(1, 120)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in many), encoding="utf-8")
    assert process(folder, {"name": "wandb"}, "closed") == 0
    assert sum(file.stat().st_size for file in folder.rglob("*.wandb")) > 3 * 32768
    assert _kept(folder / "trackers" / "wandb") == ({"train": 119}, 118)


def test_an_event_file_holds_a_record_whole_or_not_at_all(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from grouprl.trackers.tensorboard import TensorBoard, _events, _last_steps

    write(tmp_path / "run", 2)
    tracker = TensorBoard(tmp_path / "events")
    Feed(tmp_path / "run" / "metrics.jsonl", tracker).send()
    (file,) = (tmp_path / "events").iterdir()
    data = file.read_bytes()  # not closed: what `log` has returned for is on disk
    assert [len(event.summary.value) for event in _events(data)] == [0, 3, 3]
    assert [len(event.summary.value) for event in _events(data[:-1])] == [0, 3]
    for cut in range(len(data)):
        file.write_bytes(data[:cut])
        held = sum(bool(event.summary.value) for event in _events(data[:cut]))
        assert _last_steps([file]) == ({"warmup": held} if held else {})
    assert held == 1


class Kept:
    """A tracker in memory, which fails as it is told."""

    def __init__(self, failing: int = 0, slow: float = 0.0) -> None:
        self.failing, self.slow, self.records, self.closed = failing, slow, [], []

    def last_steps(self):
        return {}

    def log(self, record):
        time.sleep(self.slow)
        if self.failing:
            self.failing -= 1
            raise ConnectionError("no route")
        self.records.append(record)

    def close(self, outcome):
        self.closed.append(outcome)


def listening(kept: Kept, said: list[str]) -> TrackerListener:
    return TrackerListener(choice.ChosenTracker("mine", lambda run: kept, {}), said.append)


def told(folder: Path, kept: Kept, said: list[str], error: BaseException | None = None) -> None:
    """Tell a listener of a run whose lines are all there."""
    write(folder, len(LINES))
    hears = listening(kept, said)
    hears.begin(RunBegan(folder, {}, "train", 0, False))
    hears.step(StepEnded("train", 1, {}))
    hears.end(RunEnded(folder, "train", 12, error=error))


def test_a_tracker_that_fails_is_named_once_and_gets_its_records_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PAUSE", 0.01)
    kept, said = Kept(failing=1), list[str]()
    told(tmp_path / "run", kept, said, KeyError("x"))
    assert [(each.phase, each.step) for each in kept.records] == [(line["phase"], line["step"]) for line in LINES]
    assert said == ["the tracker mine failed (ConnectionError: no route). The run continues; records are sent later."]
    assert kept.closed == ["failed"]


def test_trackers_that_are_opened_at_once_have_one_identity_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, each would continue the run of another after a resumption, or fail."""
    slowly = tracker.write_text
    monkeypatch.setattr(tracker, "write_text", lambda *given: (time.sleep(0.05), slowly(*given)))
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        write(folder, 1)
        with ThreadPoolExecutor(4) as threads:
            found = {each.id for each in threads.map(tracked_run, [folder] * 4)}
        assert found == {(folder / "trackers" / "id").read_text()}


def test_what_a_tracker_lacks_at_the_end_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "PAUSE", 0.01)
    kept, said = Kept(failing=10**6), list[str]()
    told(tmp_path / "run", kept, said)
    assert said[1:] == [
        f"mine lacks {len(LINES)} records of this run. Send them with: grouprl track {tmp_path / 'run'} mine"
    ]
    assert kept.closed == ["stopped"]


def test_a_tracker_that_hangs_does_not_hold_the_end_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "PATIENCE", 0.2)
    said = list[str]()
    began = time.monotonic()
    told(tmp_path / "run", Kept(slow=3.0), said)
    assert time.monotonic() - began < 2.9
    assert [text.split(":")[0] for text in said[:1]] == ["the tracker mine has not answered for 0 s"]
    assert "lacks some records" in said[1]


def test_a_tracker_that_does_not_answer_is_named_once_while_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PATIENCE", 0.2)
    monkeypatch.setattr(listener, "SILENCE", 0.2)
    write(tmp_path / "run", len(LINES))
    said = list[str]()
    hears = listening(Kept(slow=1.5), said)
    hears.begin(RunBegan(tmp_path / "run", {}, "train", 0, False))
    hears.step(StepEnded("train", 1, {}))
    assert not said
    time.sleep(0.7)
    for step in (2, 3):
        hears.step(StepEnded("train", step, {}))
    assert len(said) == 1
    hears.end(RunEnded(tmp_path / "run", "train", 3))
    assert len(said) == 2


def test_a_tracker_that_answers_slowly_is_not_taken_for_a_silent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "SILENCE", 1.0)
    write(tmp_path / "run", len(LINES))
    said = list[str]()
    hears = listening(Kept(slow=0.15), said)
    hears.begin(RunBegan(tmp_path / "run", {}, "train", 0, False))
    time.sleep(1.6)
    hears.step(StepEnded("train", 1, {}))
    hears.end(RunEnded(tmp_path / "run", "train", 1))
    assert said == []


TINY = {
    "task": "reverse",
    "model": {"tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}},
    "batch": {"prompts": 2, "group_size": 2},
    "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
    "steps": 2,
}


def test_a_run_has_its_tracker_and_the_command_adds_another(tmp_path: Path) -> None:
    out = io.StringIO()
    config = {**TINY, "run": {"threads": 1, "check_model": False, "trackers": "tensorboard"}}
    train(parse_config(config), folder=tmp_path / "run", console=Terminal(file=out))
    assert "the tracker" not in out.getvalue()
    done = CliRunner().invoke(app, ["track", str(tmp_path / "run"), "tensorboard"])
    assert done.exit_code == 0
    assert "sent 0 records" in done.stdout
    assert "it had 4 already" in done.stdout
    other = ["track", str(tmp_path / "run"), "tensorboard", "--set", f"folder={tmp_path / 'all'}", "--json"]
    assert json.loads(CliRunner().invoke(app, other).stdout)["sent"] == 4
    assert json.loads(CliRunner().invoke(app, other).stdout) == {
        "run": str(tmp_path / "run"),
        "tracker": "tensorboard",
        "sent": 0,
        "kept_before": 4,
    }


class Closing:
    """A tracker that says how it was closed; `last_steps` may fail."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.outcomes = fails, list[str]()

    def last_steps(self) -> dict[str, int]:
        if self.fails:
            raise OSError("its store cannot be read")
        return {}

    def log(self, record: object) -> None: ...

    def close(self, outcome: str) -> None:
        self.outcomes.append(outcome)


def sent_to(mine: Closing, run: Path) -> tuple[int, int]:
    return send_run(run, choice.ChosenTracker("mine", lambda run: mine, {}))


def test_the_command_that_sends_the_rest_can_be_copied() -> None:
    chosen = chosen_tracker({"name": "tensorboard", "folder": "all my runs"})
    words = shlex.split(chosen.command(Path("runs/one run")))
    assert words == ["grouprl", "track", "runs/one run", "tensorboard", "--set", "folder=all my runs"]


def test_a_tracker_that_cannot_be_read_is_closed(tmp_path: Path) -> None:
    write(tmp_path / "run", 3)
    mine = Closing(fails=True)
    with pytest.raises(OSError, match="its store"):
        sent_to(mine, tmp_path / "run")
    assert mine.outcomes == ["stopped"]


@pytest.mark.parametrize(
    ("summary", "outcome"),
    [('{"finished": true}', "finished"), ('{"finished": false}', "stopped"), ('{"fin', "stopped"), (None, "stopped")],
)
def test_an_interrupted_run_is_sent_as_one_that_was_stopped(summary: str | None, outcome: str, tmp_path: Path) -> None:
    write(tmp_path / "run", 3)
    if summary is not None:
        (tmp_path / "run" / "summary.json").write_text(summary, encoding="utf-8")
    mine = Closing(fails=False)
    assert sent_to(mine, tmp_path / "run") == (3, 0)
    assert mine.outcomes == [outcome]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("tensorbord", "Did you mean 'tensorboard'"),
        ({"name": "tensorboard", "foldr": "x"}, "Did you mean 'folder'"),
        ({"project": "x"}, "run.trackers names None"),
        ("wandb.py", "your own as"),
    ],
)
def test_wrong_trackers_are_refused_before_a_run(given: object, said: str, tmp_path: Path) -> None:
    config = parse_config({**TINY, "run": {"trackers": [given]}})
    with pytest.raises(InputError, match=said):
        train(config, folder=tmp_path / "run", console=Terminal(file=io.StringIO()))
    assert not (tmp_path / "run").exists()


def test_an_absent_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'grouprl\[trackio\]'"):
        chosen_tracker("trackio")


OWN = """
from pathlib import Path

class Lines:
    def __init__(self, file):
        self.file = Path(file)

    def last_steps(self):
        lines = self.file.read_text().split() if self.file.exists() else []
        return {"train": max((int(line) for line in lines), default=0)}

    def log(self, record):
        if record.phase == "train":
            with self.file.open("a") as file:
                file.write(f"{record.step}\\n")

    def close(self, outcome):
        self.file.with_suffix(".end").write_text(outcome)


def open_lines(run, *, file):
    return Lines(file)
"""


def test_own_trackers_are_named_by_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    own = {"name": f"{tmp_path / 'mine.py'}:open_lines", "file": str(tmp_path / "steps")}
    config = {**TINY, "run": {"threads": 1, "check_model": False, "checkpoint_every": 1, "trackers": [own]}}
    folder = tmp_path / "run"
    train(parse_config(config), folder=folder, console=Terminal(file=io.StringIO()))
    assert (tmp_path / "steps").read_text() == "1\n2\n"
    assert (tmp_path / "steps.end").read_text() == "finished"
    train(parse_config(config), folder=folder, resume=True, changes=["steps=4"], console=Terminal(file=io.StringIO()))
    assert (tmp_path / "steps").read_text() == "1\n2\n3\n4\n"
    with pytest.raises(InputError, match="needs 'file'"):
        chosen_tracker({"name": own["name"]})
