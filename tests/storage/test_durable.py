"""What can go wrong on disk: damage is found by checksums, said in words, and never costs more than it must."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from grouprl import InputError, RunError
from grouprl.config.run import parse_config
from grouprl.storage.checkpoint import FILES, inspect, newest, prune
from grouprl.storage.lock import FolderLock
from grouprl.storage.run_folder import RunFolder, digest, replacing, settle
from grouprl.storage.tensors import load_state, load_weights, save_state
from grouprl.training.loop import train
from killed_runs import evidence
from single_runs import run_config

SETTINGS = {
    "method": {"name": "grpo", "kl_coef": 0.05},
    "steps": 4,
    "eval": {"every": 0, "final_prompts": 4},
    "run": {"checkpoint_every": 1, "keep": 3, "threads": 1},
}


def begin(folder: Path, **changes: Any) -> None:
    console = Console(file=io.StringIO(), width=100)
    train(parse_config(run_config(**SETTINGS) | changes), folder=folder, console=console)


def go_on(folder: Path) -> str:
    """Resume; what the run said."""
    said = io.StringIO()
    train(parse_config(run_config()), folder=folder, resume=True, console=Console(file=said, width=400))
    return " ".join(said.getvalue().split())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    begin(folder)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


# ── damage ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("damage", [flip, cut, empty, lengthen, remove])
def test_any_damage_to_any_file_of_a_checkpoint(copy: Path, name: str, damage: Callable[[Path], None]) -> None:
    run = RunFolder.open(copy)
    damage(run.checkpoints / "step-000004" / name)
    found, complaints = newest(run)
    assert found is not None
    assert found.path.name == "step-000003"
    (complaint,) = complaints
    assert complaint.startswith("checkpoint step-000004 is damaged (")
    assert (name if name != "manifest.json" else "manifest") in complaint


@pytest.mark.parametrize(
    "manifest",
    ["", "[]", "{}", "null", '{"files": {}, "beside": {}}', '{"files": [], "beside": {}}', "\x00", '{"files": 3}'],
)
def test_a_manifest_of_another_kind_is_none(copy: Path, manifest: str) -> None:
    path = copy / "checkpoints" / "step-000004"
    (path / "manifest.json").write_text(manifest)
    assert inspect(path) == "its manifest is missing or unreadable"


def test_a_manifest_that_swaps_two_checksums(copy: Path) -> None:
    path = copy / "checkpoints" / "step-000004"
    seals = json.loads((path / "manifest.json").read_text())
    files = seals["files"]
    files["data.pt"], files["optimizer.pt"] = files["optimizer.pt"], files["data.pt"]
    (path / "manifest.json").write_text(json.dumps(seals))
    assert str(inspect(path)).startswith(("optimizer.pt ", "data.pt "))  # whichever is looked at first


def test_a_resumed_run_goes_back_and_says_so(copy: Path, whole: Path) -> None:
    flip(copy / "checkpoints" / "step-000004" / "optimizer.pt")
    shutil.rmtree(copy / "checkpoints" / "step-000003")
    (copy / "checkpoints" / "step-000003").mkdir()
    said = go_on(copy)
    assert "checkpoint step-000004 is damaged (optimizer.pt does not match its checksum); falling back" in said
    assert "checkpoint step-000003 is damaged (its manifest is missing or unreadable); falling back" in said
    assert evidence(copy) == evidence(whole)


def test_no_whole_checkpoint_is_an_error_and_touches_nothing(copy: Path) -> None:
    for path in (copy / "checkpoints").iterdir():
        cut(path / "policy.safetensors")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(RunError, match=r"none of the checkpoints of .* is intact: checkpoint step-000004 is damaged"):
        go_on(copy)
    assert before == {path: path.read_bytes() for path in copy.rglob("*") if path.is_file() and path.name != ".lock"}


def test_removed_checkpoints_are_no_reason_to_begin_anew(copy: Path) -> None:
    """Starting over would throw away the records of the steps that were made."""
    shutil.rmtree(copy / "checkpoints")
    before = (copy / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match=r"the checkpoints were removed. Restore one .* grouprl train .*config.yaml"):
        go_on(copy)
    assert (copy / "metrics.jsonl").read_bytes() == before


def test_a_changed_configuration_is_refused(copy: Path) -> None:
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace("steps: ", "steps: 1", 1))
    with pytest.raises(InputError, match=r"was changed since the run began\. A resumed run continues exactly"):
        go_on(copy)
    (copy / "config.yaml").write_text(text)
    go_on(copy)


def test_a_removed_folder_is_made_again_in_a_run_that_goes_on(tmp_path: Path) -> None:
    with replacing(tmp_path / "checkpoints" / "step-000005") as temporary:
        temporary.write_text("whole")
    assert (tmp_path / "checkpoints" / "step-000005").read_text() == "whole"
    with pytest.raises(RunError, match="its folder was removed"), replacing(tmp_path / "gone" / "rollouts" / "a"):
        pass


def test_a_damaged_reference_is_noticed(copy: Path) -> None:
    flip(copy / "reference.safetensors")
    with pytest.raises(RunError, match=r"reference.safetensors does not match its checksum"):
        go_on(copy)


def test_damaged_metrics_send_the_run_back_to_where_they_are_whole(copy: Path, whole: Path) -> None:
    lines = (copy / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    third = next(i for i, line in enumerate(lines) if json.loads(line)["step"] == 3 and b'"train"' in line)
    lines[third] = lines[third].replace(b"loss", b"l0ss")
    (copy / "metrics.jsonl").write_bytes(b"".join(lines))
    said = go_on(copy)
    assert "checkpoint step-000003 is damaged (metrics.jsonl does not match its checksum)" in said
    assert evidence(copy) == evidence(whole)


def test_metrics_that_are_no_records_are_left_out(copy: Path) -> None:
    run = RunFolder.open(copy)
    bad = (b"", b"[]", b"\0\0", b'{"step": ', b'{"step": "x"}', b'{"step": 2, "loss": 1e999}', b"\xff", b"[" * 99999)
    run.metrics.write_bytes(b'{"step": 1}\n' + b"\n".join(bad) + b'\n{"step": 3}\n{"step": 4}')
    assert run.read_metrics() == [{"step": 1}, {"step": 3}]


def flipped(lines: list[bytes]) -> list[bytes]:
    return [lines[0][:5] + bytes([lines[0][5] ^ 64]) + lines[0][6:], *lines[1:]]


@pytest.mark.parametrize(
    "damage",
    [
        flipped,
        lambda lines: [lines[0][:20] + b"\n", *lines[1:]],
        lambda lines: [b"\n", *lines[1:]],
        lambda lines: [b"\0" * len(lines[0]), *lines[1:]],
        lambda lines: lines[1:],
        lambda lines: [],
        lambda lines: None,
    ],
    ids=["flipped", "cut", "blank", "NUL", "gone", "empty", "no file"],
)
def test_a_log_damaged_at_its_beginning_does_not_end_the_run(copy: Path, whole: Path, damage: Callable) -> None:
    path = copy / "metrics.jsonl"
    left = damage(path.read_bytes().splitlines(keepends=True))
    path.unlink() if left is None else path.write_bytes(b"".join(left))
    steps = [json.loads(x)["step"] for x in (whole / "metrics.jsonl").read_text().splitlines() if '"train"' in x]
    assert "metrics.jsonl was damaged or missing" in go_on(copy)
    again = [json.loads(x) for x in path.read_text().splitlines()]
    trained = [record["step"] for record in again if record["phase"] == "train"]
    assert trained == steps[len(steps) - len(trained) :]
    assert json.loads((copy / "summary.json").read_text())["finished"]


@pytest.mark.parametrize("damage", [cut, empty, remove])
def test_damaged_facts_are_named(copy: Path, damage: Callable[[Path], None]) -> None:
    damage(copy / "run.json")
    with pytest.raises(RunError, match=r"run.json is damaged"):
        go_on(copy)


def test_the_completions_before_training_may_be_lost_without_losing_the_run(copy: Path) -> None:
    cut(copy / "before.json")
    (copy / "summary.json").unlink()  # killed before its results were written
    assert "before.json is damaged" in go_on(copy)
    assert json.loads((copy / "summary.json").read_text())["finished"]


def test_before_is_evaluated_again_where_its_record_was_not_kept(copy: Path, whole: Path) -> None:
    """Killed between before.json and the next checkpoint: the metrics go back, so the evaluation must come again."""
    for path in (copy / "checkpoints").glob("step-*"):
        shutil.rmtree(path)
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if json.loads(line)["phase"] == "train")
    (copy / "metrics.jsonl").write_text("".join(lines[:first]))
    assert newest(RunFolder.open(copy))[0] is None
    go_on(copy)
    assert evidence(copy) == evidence(whole)


# ── nothing is run that lies in a file ──────────────────────────────────────────────────────────────────────────────
class Bomb:
    """Leaves a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("name", ["optimizer.pt", "data.pt"])
@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_a_pickle_in_a_checkpoint_is_not_run(copy: Path, tmp_path: Path, name: str, form: str) -> None:
    mark, path = tmp_path / "mark", copy / "checkpoints" / "step-000004"
    if form == "torch":
        torch.save({"state": Bomb(mark)}, path / name)
    else:
        (path / name).write_bytes(pickle.dumps({"state": Bomb(mark)}))
    seals = json.loads((path / "manifest.json").read_text())
    seals["files"][name] = {"sha256": digest(path / name), "bytes": (path / name).stat().st_size}
    (path / "manifest.json").write_text(json.dumps(seals))
    assert inspect(path) is None
    with pytest.raises(RunError, match=f"{name} does not hold plain tensors and containers") as caught:
        go_on(copy)
    said = str(caught.value)
    assert not any(word in said for word in ("weights_only", "safe_globals", "torch.load")), said
    assert form == "pickle" or "could run code, so it is refused" in said
    assert not mark.exists()
    with (path / name).open("rb") as file, pytest.raises(RunError):
        load_state(Path(file.name))


def test_weights_that_are_no_safetensors(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"PK\x03\x04")
    with pytest.raises(RunError, match="not a whole safetensors file"):
        load_weights(tmp_path / "w")


# ── pruning ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_cut_off_checkpoint_does_not_count_as_a_kept_one(copy: Path) -> None:
    run = RunFolder.open(copy)
    cut(run.checkpoints / "step-000004" / "policy.safetensors")
    prune(run, 1)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-000003", "step-000004"]


def test_a_resumed_run_prunes_what_the_killed_one_had_no_time_to(copy: Path, whole: Path) -> None:
    shutil.copytree(copy / "checkpoints" / "step-000002", copy / "checkpoints" / "step-000001")
    go_on(copy)
    kept = [sorted(path.name for path in (folder / "checkpoints").iterdir()) for folder in (copy, whole)]
    assert kept[0] == kept[1]


def test_a_resumed_run_keeps_the_whole_checkpoint_it_went_back_to(copy: Path) -> None:
    for step in (3, 4):
        flip(copy / "checkpoints" / f"step-00000{step}" / "data.pt")
    assert "step-000003 is damaged" in go_on(copy)
    assert inspect(copy / "checkpoints" / "step-000004") is None


def test_references_that_no_kept_checkpoint_needs_go(copy: Path) -> None:
    run = RunFolder.open(copy)
    (copy / "reference-000002.safetensors").write_bytes(b"old")
    prune(run, 3)
    assert not (copy / "reference-000002.safetensors").exists()
    assert run.reference.is_file()


def test_a_checkpoint_is_never_absent_while_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between taking the old folder away and putting the new one in its place."""
    path = tmp_path / "step-000001"
    path.mkdir()
    (path / "a").write_text("old")

    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    with replacing(path) as temporary:
        temporary.mkdir()
        (temporary / "a").write_text("new")
        monkeypatch.setattr(os, "replace", killed)
        monkeypatch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            from grouprl.storage.run_folder import _put

            _put(temporary, path)
        monkeypatch.undo()
        assert not path.exists()
        (tmp_path / ".step-000002.part").mkdir()
        settle(tmp_path)
        assert (path / "a").read_text() == "old"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000001"]
        temporary.mkdir()


# ── full and read-only disks ────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 500 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_fills_up(small_disk: Path) -> None:
    """The run ends in words, leaves nothing half-written, and goes on when there is room."""
    folder = small_disk / "run"
    with pytest.raises(RunError, match=r"the disk is full: .* could not be written .*--resume"):
        begin(folder, steps=40)
    assert not list(folder.rglob(".*.part"))
    done = len([line for line in (folder / "metrics.jsonl").read_text().splitlines() if '"train"' in line])
    assert 0 < done < 40
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    go_on(folder)
    assert json.loads((folder / "summary.json").read_text())["steps"] == 40


def test_a_disk_that_becomes_read_only(small_disk: Path) -> None:
    folder = small_disk / "run"
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    begin(folder)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(RunError, match=r"could not be written: .*Read-only.* make the folder writable"):
        go_on(folder)
    with pytest.raises(InputError, match="Read-only"):
        begin(small_disk / "another")


def test_limits_on_file_size_end_every_writer_in_words(tmp_path: Path) -> None:
    """What a full disk does to each kind of file, without one: no file may grow beyond 4 KB."""
    big = {"w": torch.zeros(100_000)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        from safetensors.torch import save_file

        writers: dict[str, Callable[[Path], object]] = {
            "weights": lambda path: save_file(big, path),
            "state": lambda path: save_state(big, path),
            "text": lambda path: path.write_text("x" * 10_000),
        }
        for name, write in writers.items():
            with pytest.raises(RunError, match="the disk is full"), replacing(tmp_path / name) as temporary:
                write(temporary)
        run = RunFolder(tmp_path)
        with pytest.raises(RunError, match="the disk is full"):
            run.append_metrics({"x": "y" * 5000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert run.read_metrics() == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_other_errors_of_the_disk_are_passed_on_in_words(tmp_path: Path, code: int) -> None:
    with pytest.raises(RunError, match="could not be written"), replacing(tmp_path / "x"):
        raise OSError(code, os.strerror(code))


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run")


# ── one process per folder ──────────────────────────────────────────────────────────────────────────────────────────
def hold(folder: Path, held: Any) -> None:
    FolderLock(RunFolder(folder))
    held.set()
    signal.pause()


def test_two_processes_on_one_folder(copy: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    held = context.Event()
    holder = context.Process(target=hold, args=(copy, held))
    holder.start()
    assert held.wait(60)
    with pytest.raises(InputError, match=rf"in use by process {holder.pid} on .* since 20"):
        go_on(copy)
    holder.kill()
    holder.join()
    go_on(copy)


def test_one_who_asks_whether_a_run_is_active_refuses_no_start(copy: Path) -> None:
    """`grouprl runs` and the viewer take a shared lock for an instant, and a run may begin in it."""
    asking = os.open(copy / ".lock", os.O_RDONLY | os.O_CREAT)
    fcntl.flock(asking, fcntl.LOCK_SH)
    timer = threading.Timer(0.06, os.close, (asking,))
    timer.start()
    FolderLock(RunFolder(copy)).release()
    timer.join()


def test_the_lock_of_a_dead_process_blocks_nobody(copy: Path) -> None:
    (copy / ".lock").write_text(json.dumps({"pid": 1, "host": "elsewhere", "since": "2020-01-01 00:00:00"}))
    lock = FolderLock(RunFolder(copy))
    assert json.loads((copy / ".lock").read_text())["pid"] == os.getpid()
    with pytest.raises(InputError, match=f"process {os.getpid()}"):
        FolderLock(RunFolder(copy))
    lock.release()
    lock.release()
    FolderLock(RunFolder(copy)).release()


def test_a_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    lock = FolderLock(run)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, b"here")
        signal.pause()
    os.read(reads, 4)
    os.close(lock._handle)  # what the kernel does when this process is killed: no call of `release`
    lock._handle = -1
    try:
        FolderLock(run).release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_failed_start_or_resume_gives_the_folder_free(copy: Path) -> None:
    kept = (copy / "run.json").read_bytes()
    (copy / "run.json").write_text("{}")
    with pytest.raises(RunError):
        go_on(copy)
    (copy / "run.json").write_bytes(kept)
    go_on(copy)


# ── beginnings ──────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_start_that_was_killed_before_the_run_began_can_be_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = RunFolder.create(folder)
    FolderLock(run).release()
    run.facts.write_text("{")
    (folder / ".config.yaml.part").write_text("task: add")
    begin(folder)
    assert json.loads((folder / "summary.json").read_text())["finished"]


@pytest.mark.parametrize("name", ["notes.txt", "rollouts/step-000001.parquet", "config.yaml", ".hidden"])
def test_a_folder_with_anything_else_is_refused(tmp_path: Path, name: str) -> None:
    run = RunFolder.create(tmp_path / "run")
    (run.path / name).write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        RunFolder.create(run.path)
    assert (run.path / name).read_text() == "mine"


def test_a_pickle_in_a_model_folder_is_not_run(tmp_path: Path) -> None:
    from transformers import GPT2Config

    from grouprl.policy import load_policy
    from grouprl.policy.language.tiny import char_tokenizer

    folder, mark = tmp_path / "model", tmp_path / "mark"
    tokenizer = char_tokenizer("0123456789")
    GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    torch.save({"transformer.wte.weight": Bomb(mark)}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="could not be loaded"):
        load_policy(folder)
    assert not mark.exists()
