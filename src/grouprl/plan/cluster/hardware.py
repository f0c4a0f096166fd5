"""Accelerators and clusters of accelerators, as data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from grouprl.core.errors import InputError, suggest

PATTERN = re.compile(r"(?:(\d+)x)?(?:(\d+)x)?([A-Za-z][\w-]*)")
MOST = 100_000
"""Largest number of accelerators in a cluster; beyond it, the estimates mean nothing."""


@dataclass(frozen=True)
class Accelerator:
    """One accelerator; numbers are bytes, bytes/s one way, and dense bfloat16 FLOP/s, as its `source` gives them."""

    name: str
    memory: float
    bandwidth: float
    flops: float
    link: float
    """Bytes/s one way to other accelerators of the same node."""
    network: float
    """Bytes/s one way to accelerators of other nodes."""
    source: str


@dataclass(frozen=True)
class Cluster:
    """`nodes` of `per_node` accelerators of one kind."""

    nodes: int
    per_node: int
    accelerator: Accelerator

    @property
    def count(self) -> int:
        """The number of accelerators in all nodes."""
        return self.nodes * self.per_node

    @property
    def name(self) -> str:
        """The name as it is written: 4x8xH100."""
        return f"{self.nodes}x{self.per_node}x{self.accelerator.name}"

    def speed(self, ranks: int) -> float:
        """Return bytes/s one way between `ranks` neighbouring accelerators: the slowest link that they span."""
        kind = self.accelerator
        return kind.link if ranks <= self.per_node else min(kind.link, kind.network)


@cache
def accelerators() -> dict[str, Accelerator]:
    """Return every known kind of accelerator by name."""
    data = json.loads(files(__package__).joinpath("accelerators.json").read_text(encoding="utf-8"))
    return {name: Accelerator(name, **values) for name, values in data.items()}


def parse_cluster(text: str) -> Cluster:
    """Return the cluster with a name such as "4x8xH100", "8xH100" or "H100".

    Raises:
        InputError: the text has another form, names an unknown kind, or has a number out of range.
    """
    found = PATTERN.fullmatch(text.strip().replace("×", "x"))
    rule = "a cluster is nodes x accelerators of each x kind, such as 4x8xH100, or 8xH100 for one node"
    if found is None:
        raise InputError(f"--on is '{text}'", rule)
    first, second, name = found.groups()
    known = {each.casefold(): each for each in accelerators()}
    if name.casefold() not in known:
        raise InputError(f"--on is '{text}': there is no accelerator '{name}'", remedy=suggest(name, accelerators()))
    nodes, per_node = (int(first or 1), int(second)) if second else (1, int(first or 1))
    if not 1 <= nodes * per_node <= MOST:
        raise InputError(f"--on is '{text}', {nodes * per_node} accelerators", f"a cluster has 1 to {MOST:,}")
    return Cluster(nodes, per_node, accelerators()[known[name.casefold()]])
