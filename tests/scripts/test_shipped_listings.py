"""The listings of a built package can be written over those of an earlier build."""

from __future__ import annotations

from pathlib import Path

import pytest

import listings
from grouprl.storage import source_cache


def test_a_second_build_writes_the_listings_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "shipped"
    monkeypatch.setattr(source_cache, "SHIPPED", shipped)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = lambda: source_cache.from_sources("list", ["papers"], lambda: [{"a": 1}])  # noqa: E731
    for name in ("listed", "listed_parts", "listed_tasks"):
        monkeypatch.setattr(listings.listing, name, made)
    monkeypatch.setattr(listings, "standings", made)
    for _ in range(2):
        listings.main(shipped)
        assert [path.name for path in shipped.iterdir()] == ["list.json"]
