"""The meeting of ranks: rank 0 names those it waits for, and refuses other starts than its own."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from grouprl.config.rank_facts import WHOLE, contents, settings_facts, version_facts
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.processes import roll_call
from grouprl.processes.roll_call import Facts, RollCall, attend, differences, meeting_store, named, patience

FACTS: Facts = {"given": {"--resume": "False"}, "settings": {"seed": "0", "optim.lr": "0.001"}}


def met(*others: Facts, count: int | None = None, seconds: float = 30.0) -> tuple[list[bool], list[str], str]:
    """Let ranks meet; return whether each of the others works, what rank 0 said meanwhile, and its error."""
    store, wanted, said = HashStore(), dict[int, bool](), list[str]()

    def come(rank: int, facts: Facts) -> None:
        wanted[rank] = attend(store, rank, facts)

    threads = [threading.Thread(target=come, args=each) for each in enumerate(others, 1)]
    for thread in threads:
        thread.start()
    error = ""
    try:
        RollCall(store, count or len(others) + 1, FACTS, seconds, said.append).hold()
    except (InputError, RunError) as found:
        error = f"{type(found).__name__}: {found}"
    for thread in threads:
        thread.join()
    return [wanted[rank] for rank in sorted(wanted)], said, error


def test_ranks_that_were_started_alike_work() -> None:
    assert met(FACTS, FACTS) == ([True, True], [], "")
    assert met({}) == ([True], [], ""), "it has no configuration of its own to differ in"


def test_another_setting_is_refused_with_key_rank_and_both_values() -> None:
    other = {**FACTS, "settings": {"seed": "1", "optim.lr": "0.001"}}
    wanted, _, error = met(FACTS, other)
    assert wanted == [False, False]
    assert error.startswith("InputError: rank 2 of 3 was started differently: seed is 1 there and 0 on rank 0. ")


def test_of_many_differences_the_first_are_named() -> None:
    other = {"settings": {"seed": "1", "optim.lr": "9", "steps": "2", "x": "y" * 500}}
    error = met(other)[2]
    assert "seed is 1 there and 0 on rank 0; optim.lr is 9 there and 0.001 on rank 0; steps is 2 there and" in error
    assert "not set on rank 0; and 1 more" in error


def test_a_file_that_one_of_both_lacks_is_no_difference() -> None:
    assert differences({"contents": {"a": "1", "b": "2"}}, {"contents": {"b": "3", "c": "4"}}) == [("b", "2", "3")]


def test_whoever_does_not_come_is_named_and_the_others_are_sent_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "FIRST", 0.2)
    wanted, said, error = met(FACTS, count=5, seconds=1.0)
    assert wanted == [False]
    assert said == ["rank 0 waits for ranks 2-4 of 5 (0 s, at most 1 s)"]
    assert error.startswith(f"RunError: ranks 2-4 of 5 did not come within 1 s ({roll_call.WAIT}). ")


def test_a_rank_that_came_and_died_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "SILENT", 0.3)
    store = HashStore()
    store.set("came/1", "{}")
    store.set("alive/1", "0")
    begun = time.monotonic()
    with pytest.raises(RunError, match=r"rank 1 of 3 came and has given no sign for 0\.3 s"):
        RollCall(store, 3, FACTS, 60.0).hold()
    assert time.monotonic() - begun < 30


def test_a_rank_ends_when_rank_0_has(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(HashStore):  # type: ignore[misc]
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(RunError, match="rank 0 has ended before all ranks had met, and so does rank 3"):
        attend(Lost(), 3, FACTS)


def test_ranks_are_named_as_a_subject() -> None:
    assert named([2], 4) == "rank 2 of 4"
    assert named([1, 3, 4, 5], 6) == "ranks 1 and 3-5 of 6"


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan", "inf"])
def test_the_time_is_a_positive_number(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(roll_call.WAIT, given)
    with pytest.raises(InputError, match=f"{roll_call.WAIT}={given}"):
        patience()


def test_the_time_is_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(roll_call.WAIT, raising=False)
    assert patience() == 300.0
    monkeypatch.setenv(roll_call.WAIT, "12.5")
    assert patience() == 12.5


def test_a_place_that_is_not_told_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ValueError, match="MASTER_ADDR is not set"):
        meeting_store(0, 2, timedelta(seconds=1))


def facts(tmp_path: Path, **changes: Any) -> Facts:
    base = {"task": f"jsonl:{tmp_path / 'rows.jsonl'}", "model": "tiny", "reward": {"function": "exact_match"}}
    return settings_facts(parse_config({**base, **changes}, plugins=False))


def test_settings_and_the_contents_of_their_files_are_facts(tmp_path: Path) -> None:
    rows = tmp_path / "here" / "rows.jsonl"
    for place in (rows, tmp_path / "there" / "rows.jsonl"):
        place.parent.mkdir()
        place.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    here, there = facts(rows.parent), facts(tmp_path / "there")
    assert differences(here, there) == [], "the same file in another folder"
    (tmp_path / "there" / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "3"}\n')
    ((key, own, other),) = differences(here, facts(tmp_path / "there"))
    assert key == "the contents of task"
    assert own.startswith("34 bytes, hash ")
    assert own != other
    assert differences(here, facts(rows.parent, optim={"lr": 0.5}))[0][0] == "optim.lr"


def test_the_ends_and_the_middle_of_a_large_file_count(tmp_path: Path) -> None:
    large, folder = tmp_path / "large", tmp_path
    with large.open("wb") as file:
        file.truncate(WHOLE + 5)
    seen = {contents(large), contents(folder)}
    for at in (0, WHOLE + 4):
        with large.open("r+b") as file:
            file.seek(at)
            file.write(b"x")
        seen |= {contents(large), contents(folder)}
    assert len(seen) == 6


def test_versions_count_and_of_pythons_the_first_two_numbers() -> None:
    versions = {"python": "3.11.7", "torch": "2.13.0"}
    assert version_facts(versions) == version_facts({**versions, "python": "3.11.9"})
    assert differences(version_facts(versions), version_facts({**versions, "torch": "2.14.0"})) == [
        ("the version of torch", "2.13.0", "2.14.0")
    ]
