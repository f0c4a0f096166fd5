"""Files are whole or absent."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch

from grouprl import InputError, RunError
from grouprl.storage.checkpoint import (
    find_checkpoint,
    inspect,
    load,
    newest,
    prune,
    save_checkpoint,
    whole_parameters,
)
from grouprl.storage.run_folder import RunFolder, free_folder, replacing, write_json


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path / "run")
    made.config.write_text("task: addition\n")
    return made


def save(run: RunFolder, step: int, phase: str = "train") -> Path:
    weights = {"w": torch.full((3,), float(step))}
    written = whole_parameters(weights, {"state": {}, "param_groups": []})
    return save_checkpoint(run, phase, step, written, {"step": step, "phase": phase})


def test_replacing_leaves_the_old_file_when_the_block_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text("half")
        1 / 0  # noqa: B018
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_full_disk_is_told_in_words(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RunError, match=r"disk is full.*--resume"), replacing(path) as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_json_refuses_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert not (tmp_path / "x.json").exists()


def test_a_run_folder_is_never_overwritten(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r").config.write_text("task: addition\n")
    with pytest.raises(InputError, match="exists already"):
        RunFolder.create(tmp_path / "r")
    assert free_folder(tmp_path / "r") == tmp_path / "r-2"


def test_open_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        RunFolder.open(tmp_path)


def test_checkpoint_round_trip_and_order(run: RunFolder) -> None:
    save(run, 900, "warmup")
    save(run, 2)
    save(run, 10)
    found, complaints = newest(run)
    assert found is not None
    assert (found.state["step"], complaints) == (10, [])
    assert torch.equal(found.weights["w"], torch.full((3,), 10.0))
    prune(run, 1)
    assert [p.name for p in run.checkpoints.iterdir()] == ["step-000010"]


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest", "flip"])
def test_a_damaged_checkpoint_is_detected_and_the_previous_one_used(run: RunFolder, damage: str) -> None:
    save(run, 1)
    path = save(run, 2)
    weights = path / "policy.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "gone":
        weights.unlink()
    elif damage == "manifest":
        (path / "manifest.json").write_text("{")
    else:
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
    assert inspect(path) is not None
    found, complaints = newest(run)
    assert found is not None
    assert found.state["step"] == 1
    assert "step-000002 is damaged" in complaints[0]
    with pytest.raises(RunError, match="damaged"):
        load(path)


def test_policy_state_by_step(run: RunFolder) -> None:
    save(run, 4)
    assert find_checkpoint(run.path, 4).weights["w"][0] == 4
    assert find_checkpoint(run.path).weights["w"][0] == 4
    with pytest.raises(InputError, match="It has: 4"):
        find_checkpoint(run.path, 5)


def test_a_checkpoint_before_training_is_found_by_its_name(run: RunFolder) -> None:
    save(run, 4)
    save(run, 20, phase="warmup")
    assert find_checkpoint(run.path, "warmup-20").weights["w"][0] == 20
    assert find_checkpoint(run.path, "warmup-000020").state["step"] == 20
    assert find_checkpoint(run.path, "step-4").weights["w"][0] == 4
    with pytest.raises(InputError, match=r"no checkpoint warmup-5.*It has: warmup-20, 4"):
        find_checkpoint(run.path, "warmup-5")


def test_rewind_forgets_what_came_after(run: RunFolder) -> None:
    run.append_metrics({"step": 1})
    size = run.metrics.stat().st_size
    run.append_metrics({"step": 2})
    for step in (1, 2):
        run.rollout_file(step).write_bytes(b"x")
    run.rewind(size, 1)
    assert run.read_metrics() == [{"step": 1}]
    assert [p.name for p in run.rollouts.iterdir()] == ["step-000001.parquet"]
    with pytest.raises(RunError, match="cut off"):
        run.rewind(size + 100, 1)


def test_a_cut_off_last_metrics_line_is_passed_over(run: RunFolder) -> None:
    run.append_metrics({"step": 1})
    with run.metrics.open("a") as file:
        file.write(json.dumps({"step": 2})[:5])
    assert run.read_metrics() == [{"step": 1}]
