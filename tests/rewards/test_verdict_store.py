"""The store of a judge's answers, which several processes write at once, and which may be killed as they do."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from grouprl.core.errors import RunError
from grouprl.rewards.judging import verdict_store
from grouprl.rewards.judging.verdict_store import VerdictStore
from grouprl.storage.run_folder import settle

ROUNDS = 150


def write_beside(folder: Path, own: float, together: Barrier, found: Queue[Any]) -> None:
    """Keep an answer of one's own to the same requests as others, at the same time; tell which answers stand."""
    store, stand = VerdictStore(folder), []
    try:
        for number in range(ROUNDS):
            together.wait(30.0)
            stand.append(store.keep(["request", number], (own, number / ROUNDS)))
        found.put(stand)
    except BaseException as error:
        together.abort()
        found.put(repr(error))


def test_of_several_answers_that_are_kept_at_once_the_first_stands_for_all(tmp_path: Path) -> None:
    context = get_context("spawn")
    together, found = context.Barrier(3), context.Queue()
    folder = tmp_path / "verdicts"
    processes = [context.Process(target=write_beside, args=(folder, own, together, found)) for own in (0.25, 0.5, 0.75)]
    for process in processes:
        process.start()
    told = [found.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(30)
    assert not [each for each in told if isinstance(each, str)]
    assert told[0] == told[1] == told[2]
    assert [VerdictStore(folder).find(["request", number], 2) for number in range(ROUNDS)] == told[0]
    assert len({own for own, _ in told[0]}) > 1, "the processes really raced"
    assert sorted(path.suffix for path in folder.iterdir()) == [".json"] * ROUNDS


def test_a_damaged_answer_is_replaced_and_a_sound_one_is_not(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path)
    assert store.keep("a", (0.5,)) == (0.5,)
    assert store.keep("a", (1.0,)) == (0.5,)
    (file,) = tmp_path.iterdir()
    for damage in (b"", b'{"scores": [0.', b'{"scores": [0.5, 0.5]}', b'{"scores": [7]}'):
        file.write_bytes(damage)
        assert store.find("a", 1) is None
        assert store.keep("a", (1.0,)) == (1.0,)
        assert store.find("a", 1) == (1.0,)


def test_where_files_cannot_be_linked_answers_are_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(verdict_store.os, "link", refuse)
    store = VerdictStore(tmp_path)
    assert store.keep("a", (0.5,)) == (0.5,)
    assert store.keep("a", (1.0,)) == (0.5,)
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def killed_while_writing(folder: Path, when: str) -> None:
    """Die in the middle of the file, or once it is written and not in its place."""

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def halfway(path: Path) -> Any:
        file = next(folder.glob(".*.part"))
        file.write_bytes(file.read_bytes()[:9])
        die()
        yield

    if when == "placed":
        verdict_store.os.link = die  # type: ignore[assignment]
    else:
        verdict_store.os.fsync = lambda handle: halfway(folder).__enter__()  # type: ignore[assignment]
    VerdictStore(folder).keep("a", (0.5,))


@pytest.mark.parametrize("when", ["written", "placed"])
def test_a_kill_while_an_answer_is_written_leaves_none_and_no_trace(tmp_path: Path, when: str) -> None:
    folder = tmp_path / "verdicts"
    folder.mkdir()
    process = get_context("spawn").Process(target=killed_while_writing, args=(folder, when))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    (left,) = folder.iterdir()
    assert left.name.endswith(".part")
    store = VerdictStore(folder)
    assert store.find("a", 1) is None
    settle(folder)  # as a run does that is resumed
    assert not list(folder.iterdir())
    assert store.keep("a", (0.75,)) == (0.75,)


def test_a_folder_that_cannot_be_written_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "verdicts").write_text("a file where the folder should be")
    with pytest.raises(RunError, match="verdicts"):
        VerdictStore(tmp_path / "verdicts").keep("a", (0.5,))
    assert (tmp_path / "verdicts").is_file()
