"""What a launcher says of a rank: numbers, and one that there can be."""

from __future__ import annotations

import pytest

from grouprl import InputError
from grouprl.processes.current_ranks import check_rank, own_rank, ranks_requested


@pytest.mark.parametrize(("rank", "size", "found"), [("1", "2", (1, 2)), ("", "", (0, 1))])
def test_a_rank_and_its_number_are_read(monkeypatch: pytest.MonkeyPatch, rank: str, size: str, found: object) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    assert (own_rank(), ranks_requested()) == found
    check_rank()


def test_a_rank_beyond_the_others_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="RANK=2 with WORLD_SIZE=2"):
        check_rank()


@pytest.mark.parametrize(("name", "reads"), [("RANK", own_rank), ("WORLD_SIZE", ranks_requested)])
def test_what_is_not_a_number_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, reads: object) -> None:
    monkeypatch.setenv(name, "two")
    with pytest.raises(InputError, match=f"{name}=two"):
        reads()  # type: ignore[operator]
