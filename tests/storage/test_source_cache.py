"""What is computed from the package's sources is kept while they stay as they are, and never longer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from grouprl.storage import source_cache
from grouprl.storage.source_cache import from_sources, hash_of_sources


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of one room, an empty cache, and nothing shipped."""
    (tmp_path / "package" / "room").mkdir(parents=True)
    (tmp_path / "package" / "room" / "a.py").write_text("A = 1")
    monkeypatch.setattr(source_cache, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(source_cache, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hash_of_sources.cache_clear()
    yield tmp_path
    hash_of_sources.cache_clear()


def counted() -> Callable[[], list[dict[str, int]]]:
    numbers = count(1)
    return lambda: [{"call": next(numbers)}]


def changed(package: Path) -> None:
    (package / "package" / "room" / "a.py").write_text("A = 2")
    hash_of_sources.cache_clear()


def test_it_is_computed_once_for_the_same_sources(package: Path) -> None:
    compute = counted()
    assert [from_sources("list", ["room"], compute) for _ in range(3)] == [[{"call": 1}]] * 3
    changed(package)
    assert from_sources("list", ["room"], compute) == [{"call": 2}]


def test_two_checkouts_keep_their_listings_and_old_ones_go(package: Path) -> None:
    compute = counted()
    texts = [f"A = {number}" for number in (0, 1, 0, 1, *range(2, 2 + source_cache.KEPT))]
    for text in texts:
        (package / "package" / "room" / "a.py").write_text(text)
        hash_of_sources.cache_clear()
        from_sources("list", ["room"], compute)
    assert compute() == [{"call": 2 + source_cache.KEPT + 1}]
    assert len(list((package / "cache" / "grouprl").glob("list-*.json"))) == source_cache.KEPT


@pytest.mark.parametrize("change", ["text", "name", "new", "gone"])
def test_every_change_of_a_source_counts(change: str, package: Path) -> None:
    before, room = hash_of_sources(("room",)), package / "package" / "room"
    hash_of_sources.cache_clear()
    if change == "text":
        (room / "a.py").write_text("A = 3")
    elif change == "name":
        (room / "a.py").rename(room / "b.py")
    elif change == "new":
        (room / "b.py").write_text("")
    else:
        (room / "a.py").unlink()
    assert hash_of_sources(("room",)) != before


def test_a_damaged_cache_is_computed_again(package: Path) -> None:
    compute = counted()
    from_sources("list", ["room"], compute)
    (kept,) = (package / "cache" / "grouprl").iterdir()
    kept.write_text(kept.read_text()[:-5])
    assert from_sources("list", ["room"], compute) == [{"call": 2}]


def test_what_is_shipped_is_read_while_it_is_of_these_sources(package: Path) -> None:
    compute = counted()
    (package / "shipped").mkdir()
    shipped = {"sources": hash_of_sources(("room",)), "listing": [{"call": 0}]}
    (package / "shipped" / "list.json").write_text(json.dumps(shipped))
    assert from_sources("list", ["room"], compute) == [{"call": 0}]
    changed(package)
    assert from_sources("list", ["room"], compute) == [{"call": 1}]


def test_a_home_that_cannot_be_written_costs_time_alone(package: Path) -> None:
    (package / "cache").write_text("a file, no folder")
    compute = counted()
    assert from_sources("list", ["room"], compute) == [{"call": 1}]
    assert from_sources("list", ["room"], compute) == [{"call": 2}]


def test_plugins_are_asked_each_time(package: Path) -> None:
    compute = counted()
    assert [from_sources("list", ["room"], compute, keep=False) for _ in range(2)] == [[{"call": 1}], [{"call": 2}]]
    assert not (package / "cache").exists()


def test_a_listing_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        source_cache.write_listing(tmp_path / "a.json", "digest", [{"value": object()}])
    assert list(tmp_path.iterdir()) == []
