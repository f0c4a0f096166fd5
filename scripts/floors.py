"""Print the oldest versions that grouprl's metadata admits of what it needs, as requirements for pip (`make floors`).

torch is left out: its builds for CPUs are installed by themselves, and old ones are not to be had everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata

APART = "torch"


def floors(dependencies: Iterable[str]) -> list[str]:
    """Return `name==version` for each dependency `name>=version`; those of extras are left out.

    Raises:
        ValueError: a dependency has no floor.
    """
    found = []
    for line in dependencies:
        if "extra ==" in line:
            continue
        parts = re.fullmatch(r"([\w.-]+)>=([\w.]+)", line)
        if parts is None:
            raise ValueError(f"the dependency {line} names no oldest version: write name>=version")
        found.append(f"{parts[1]}=={parts[2]}")
    return [each for each in found if not each.startswith(f"{APART}==")]


if __name__ == "__main__":
    print(" ".join(floors(metadata.requires("grouprl") or ())))
