"""Write the listings that a built package brings along: `python scripts/listings.py`, a step of `make wheel`."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from grouprl.cli import listing
from grouprl.papers import standings
from grouprl.storage.source_cache import SHIPPED, cache_folder


def main(shipped: Path = SHIPPED) -> None:
    """Compute every listing in an empty cache, and put what the cache then holds into `shipped`."""
    with TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for old in shipped.glob("*.json"):  # else it would be read, and nothing would be computed
            old.unlink()
        listing.listed(), listing.listed_parts(), listing.listed_tasks(), standings()
        shipped.mkdir(exist_ok=True)
        for kept in cache_folder().iterdir():
            (shipped / f"{kept.name.rpartition('-')[0]}.json").write_bytes(kept.read_bytes())


if __name__ == "__main__":
    main()
