"""Write the listings that a built package brings along: `python scripts/listings.py`, a step of `make wheel`."""

from __future__ import annotations

from grouprl.cli import listing
from grouprl.papers import standings
from grouprl.storage import source_cache


def main() -> None:
    """Compute every listing, and copy what the cache then holds into the package."""
    listing.listed(), listing.listed_parts(), listing.listed_tasks(), standings()
    source_cache.SHIPPED.mkdir(exist_ok=True)
    for kept in source_cache.kept_listings():
        (source_cache.SHIPPED / f"{kept.name.rpartition('-')[0]}.json").write_bytes(kept.read_bytes())


if __name__ == "__main__":
    main()
