"""Listeners of a run: what they are told and in which order, after a resume too, and what one that fails can break."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from grouprl import InputError, RunError
from grouprl.config.run import parse_config
from grouprl.protocols.run_events import (
    METHODS,
    CheckpointWritten,
    EvaluationEnded,
    Event,
    PhaseBegan,
    PhaseEnded,
    RolloutScored,
    RunBegan,
    RunEnded,
    RunListener,
    StepEnded,
    UserMessage,
)
from grouprl.training.announcer import Announcer
from grouprl.training.loop import train
from killed_runs import evidence
from single_runs import records, run_config


class Everything(RunListener):
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def _keep(listener: Everything, event: Event) -> None:
    listener.events.append(event)


for _name in METHODS.values():
    setattr(Everything, _name, _keep)


def run(folder: Path, *listeners: RunListener, resume: bool = False, changes: tuple[str, ...] = (), **settings: Any):
    console = Console(file=io.StringIO(), width=200)
    config = parse_config(run_config(**{"warmup": {"steps": 3, "batch": 8, "lr": 1e-2}, **settings}))
    train(config, folder=folder, console=console, resume=resume, listeners=listeners, changes=changes)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_is_told_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    heard = Everything()
    run(tmp_path / "run", heard)
    began, *_, ended = heard.events
    assert isinstance(began, RunBegan)
    assert (began.folder, began.phase, began.step, began.resumed) == (tmp_path / "run", "warmup", 0, False)
    assert began.config["batch"]["prompts"] == 4
    assert isinstance(ended, RunEnded)
    assert (ended.phase, ended.step, ended.error) == ("train", 2, None)
    assert ended.before is not None
    assert ended.after is not None
    assert ended.verdict
    assert ended.report is not None
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (ended.before.record, ended.after.record) == (summary["before"], summary["after"])
    assert [(each.name, each.total, each.done) for each in heard.of(PhaseBegan)] == [
        *(("warmup", 3, 0), ("eval", 8, 0), ("train", 2, 0), ("eval", 8, 0)),
    ]
    assert [each.name for each in heard.of(PhaseEnded)] == ["warmup", "eval", "train", "eval"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    told = [dict(each.record) for each in heard.events if isinstance(each, (StepEnded, EvaluationEnded))]
    assert told == lines
    assert [each.when for each in heard.of(EvaluationEnded)] == ["before", "between", "after"]
    assert [(each.phase, each.step) for each in heard.of(CheckpointWritten)] == [("train", 0), ("train", 2)]
    assert all(len(each.samples) == 4 for each in heard.of(StepEnded) if each.phase == "train")
    stored = pq.read_table(tmp_path / "run" / "rollouts" / "step-000002.parquet")
    assert heard.of(RolloutScored)[1].table().equals(stored)


class Reader(RunListener):
    """Says at each event what is on disk already."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, []

    def rollout(self, event: RolloutScored) -> None:
        assert (self.folder / "rollouts" / f"step-{event.step:06d}.parquet").is_file()
        assert len(records(self.folder, "train")) == event.step - 1
        self.seen.append("rollout")

    def step(self, event: StepEnded) -> None:
        assert records(self.folder, event.phase)[-1] == event.record
        self.seen.append("step")

    def checkpoint(self, event: CheckpointWritten) -> None:
        assert (event.folder / "state.json").is_file()
        self.seen.append("checkpoint")

    def end(self, event: RunEnded) -> None:
        assert (event.folder / "summary.json").is_file()
        assert event.report is not None
        assert event.report.is_file()
        self.seen.append("end")


def test_what_is_told_is_on_disk_already(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "run")
    output = run(tmp_path / "run", reader, warmup={"steps": 0})
    assert reader.seen == ["checkpoint", *["rollout", "step"] * 2, "checkpoint", "end"], output


class Meddler(RunListener):
    """Draws random numbers, and tries to change a record."""

    def step(self, event: StepEnded) -> None:
        torch.rand(7)
        with pytest.raises(TypeError):
            event.record["loss"] = 0.0  # type: ignore[index]


class Failing(RunListener):
    """Fails at its first step."""

    calls = 0

    def step(self, event: StepEnded) -> None:
        self.calls += 1
        raise KeyError("no such project")


def test_a_listener_changes_nothing_and_one_that_fails_is_named_and_left_out(tmp_path: Path) -> None:
    run(tmp_path / "alone")
    failing, heard = Failing(), Everything()
    output = run(tmp_path / "heard", Meddler(), failing, heard)
    assert evidence(tmp_path / "heard") == evidence(tmp_path / "alone")
    assert failing.calls == 1
    said = "the listener Failing failed in step(): KeyError: 'no such project' ("
    (message,) = [each.text for each in heard.of(UserMessage) if "listener" in each.text]
    assert message.startswith(said)
    assert message.endswith("It receives no more events; the run itself continues unchanged.")
    assert f"{Path(__file__).name}, line " in message
    assert said in output
    assert len(heard.of(StepEnded)) == 5, "the others are told on"


class Unready(RunListener):
    """Fails as the run begins."""

    def begin(self, event: RunBegan) -> None:
        raise ConnectionError("not logged in")


def test_a_listener_that_is_not_ready_ends_the_run_before_it_trains(tmp_path: Path) -> None:
    heard = Everything()
    with pytest.raises(
        InputError, match=r"listener Unready failed in begin\(\): ConnectionError: not logged in"
    ) as told:
        run(tmp_path / "run", heard, Unready())
    assert not told.value.begun
    assert not (tmp_path / "run").exists()
    assert [type(each) for each in heard.events] == [RunBegan, RunEnded]
    assert heard.of(RunEnded)[0].error is told.value


class Stopping(RunListener):
    """Interrupts the run as Ctrl-C pressed twice does."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, event: StepEnded) -> None:
        if event.phase == "train" and event.step == self.at:
            raise KeyboardInterrupt


def test_after_a_resume_listeners_hear_where_it_begins(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 4, "run": {"threads": 1, "checkpoint_every": 2}}
    run(tmp_path / "whole", **settings)
    first, second = Everything(), Everything()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", first, Stopping(3), **settings)
    assert isinstance(first.of(RunEnded)[0].error, KeyboardInterrupt)
    assert first.of(PhaseEnded)[-1].name == "train"
    run(tmp_path / "run", second, resume=True, **settings)
    (began,) = second.of(RunBegan)
    assert (began.phase, began.step, began.resumed) == ("train", 2, True)
    assert second.of(PhaseBegan)[0] == PhaseBegan("train", 4, 2)
    assert [each.step for each in second.of(StepEnded)] == [3, 4]
    assert evidence(tmp_path / "run") == evidence(tmp_path / "whole")


def test_the_runs_own_record_comes_first_and_the_judges_last() -> None:
    order: list[str] = []

    class Named(RunListener):
        def __init__(self, name: str) -> None:
            self.name = name

        def step(self, event: StepEnded) -> None:
            order.append(self.name)

    announcer = Announcer([Named("first"), Named("second")])
    announcer.own, announcer.last = (Named("record"), Named("display")), (Named("health"),)
    announcer.tell(StepEnded("train", 1, {}))
    assert order == ["record", "display", "first", "second", "health"]


def test_an_error_of_the_record_ends_the_run() -> None:
    class Full(RunListener):
        def step(self, event: StepEnded) -> None:
            raise RunError("the disk is full")

    announcer = Announcer()
    announcer.own = (Full(),)
    with pytest.raises(RunError, match="the disk is full"):
        announcer.tell(StepEnded("train", 1, {}))
